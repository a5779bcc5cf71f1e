import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * One idempotent producer of Kafka's Java client that lives as long as the input. Arguments: bootstrap servers and
 * topic. A line is a list of `PARTITION:VALUE` with blanks between them; all are sent before the first is waited
 * for. The answer is one line: their offsets, or `error` and why.
 */
public final class IdleProducer {
    private static final int PATIENCE_MS = 20_000;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0],
                "enable.idempotence", true,
                "linger.ms", 0,
                "batch.size", 1,
                "request.timeout.ms", PATIENCE_MS / 2,
                "delivery.timeout.ms", PATIENCE_MS);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (String one : line.split(" ")) {
                    String[] parts = one.split(":");
                    sent.add(producer.send(
                            new ProducerRecord<>(arguments[1], Integer.valueOf(parts[0]), null, parts[1])));
                }
                List<String> answer = new ArrayList<>();
                try {
                    for (Future<RecordMetadata> one : sent) {
                        answer.add(Long.toString(one.get(2 * PATIENCE_MS, TimeUnit.MILLISECONDS).offset()));
                    }
                } catch (Exception error) {
                    answer.clear();
                    answer.add("error " + error.getMessage());
                }
                out.println(String.join(" ", answer));
            }
        }
    }
}
