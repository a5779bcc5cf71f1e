import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A read-process-write loop of Kafka's Java client that lives as long as its input. Arguments: bootstrap servers,
 * group, transactional id, topic to read, topic to write. Each transaction copies some records to the same
 * partition of the other topic. Prints `committed` and their number, or `again` and why it starts over.
 */
public final class ExactlyOnce {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static volatile boolean stopping;

    public static void main(String[] arguments) {
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException error) {
                // The end as well.
            }
            stopping = true;
        });
        input.setDaemon(true);
        input.start();
        while (!stopping) {
            try {
                run(arguments);
            } catch (KafkaException error) {
                OUT.println("again " + error);
            }
        }
    }

    private static Map<String, Object> settings(String[] arguments) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("metadata.max.age.ms", 500);
        settings.put("reconnect.backoff.max.ms", 300);
        settings.put("request.timeout.ms", 3000);
        return settings;
    }

    private static KafkaProducer<byte[], byte[]> producer(String[] arguments) {
        Map<String, Object> settings = settings(arguments);
        settings.put("transactional.id", arguments[2]);
        settings.put("transaction.timeout.ms", 10_000);
        settings.put("delivery.timeout.ms", 30_000);
        settings.put("max.block.ms", 30_000);
        settings.put("linger.ms", 0);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String[] arguments) {
        Map<String, Object> settings = settings(arguments);
        settings.put("group.id", arguments[1]);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("max.poll.records", 10);
        settings.put("session.timeout.ms", 6000);
        settings.put("heartbeat.interval.ms", 500);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void run(String[] arguments) {
        try (KafkaProducer<byte[], byte[]> producer = producer(arguments);
                KafkaConsumer<byte[], byte[]> consumer = consumer(arguments)) {
            producer.initTransactions();
            consumer.subscribe(List.of(arguments[3]));
            while (!stopping) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                try {
                    producer.beginTransaction();
                    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                    for (ConsumerRecord<byte[], byte[]> one : records) {
                        producer.send(new ProducerRecord<>(arguments[4], one.partition(), one.key(), one.value()));
                        offsets.put(
                                new TopicPartition(one.topic(), one.partition()),
                                new OffsetAndMetadata(one.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    producer.commitTransaction();
                    OUT.println("committed " + records.count());
                } catch (ProducerFencedException
                        | InvalidProducerEpochException
                        | OutOfOrderSequenceException
                        | AuthorizationException
                        | TimeoutException error) {
                    // The producer cannot go on, or does not know what happened: its successor finds out.
                    throw error;
                } catch (KafkaException error) {
                    OUT.println("aborts " + error);
                    producer.abortTransaction();
                    rewind(consumer);
                }
            }
        }
    }

    private static void rewind(KafkaConsumer<byte[], byte[]> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition one : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(one);
            if (offset == null) {
                consumer.seekToBeginning(List.of(one));
            } else {
                consumer.seek(one, offset.offset());
            }
        }
    }
}
