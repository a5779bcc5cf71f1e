import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a consumer group that commits what each poll returned before the next one, until its input ends.
 * Arguments: topic, and settings as `key=value`. Each line of the output is an event with its time of the monotonic
 * clock in nanoseconds: `assigned`, `revoked` or `lost` with partitions, `read` and `committed` with a partition and
 * an offset, or `error` and why.
 */
public final class GroupMember {
    private static final Duration WAIT = Duration.ofMillis(50);
    private static PrintStream out;
    private static boolean isBehind;

    private static synchronized void tell(String event, Object... values) {
        StringBuilder line = new StringBuilder().append(System.nanoTime()).append(' ').append(event);
        for (Object value : values) {
            line.append(' ').append(value);
        }
        out.println(line);
    }

    private static void tell(String event, Collection<TopicPartition> partitions) {
        tell(event, partitions.stream().map(TopicPartition::partition).toArray());
    }

    public static void main(String[] arguments) throws Exception {
        out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Map<String, Object> settings = new HashMap<>();
        for (int at = 1; at < arguments.length; at++) {
            String[] parts = arguments[at].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[0]), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    tell("assigned", partitions);
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    tell("revoked", partitions);
                }

                @Override
                public void onPartitionsLost(Collection<TopicPartition> partitions) {
                    tell("lost", partitions);
                }
            });
            while (System.in.available() == 0) {
                read(consumer);
            }
        } catch (Exception error) {
            tell("error", error);
        }
    }

    private static void read(KafkaConsumer<String, String> consumer) {
        ConsumerRecords<String, String> found = consumer.poll(WAIT);
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        for (ConsumerRecord<String, String> one : found) {
            tell("read", one.partition(), one.offset());
            next.put(new TopicPartition(one.topic(), one.partition()), new OffsetAndMetadata(one.offset() + 1));
        }
        if (next.isEmpty() && !isBehind) {
            return;
        }
        try {
            if (next.isEmpty()) {
                // The positions in all of its partitions.
                consumer.commitSync();
            } else {
                consumer.commitSync(next);
            }
            isBehind = false;
        } catch (CommitFailedException | RebalanceInProgressException error) {
            // The next poll joins the group again.
            isBehind = true;
            tell("uncommitted", error.getClass().getSimpleName());
            return;
        }
        next.forEach((partition, offset) -> tell("committed", partition.partition(), offset.offset()));
    }
}
