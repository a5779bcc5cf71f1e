import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The word count of Kafka Streams, as its documentation has it. Arguments: bootstrap servers, application id, folder of
 * the state, processing guarantee, topic of the lines, topic of the counts. Runs until its input ends.
 */
public final class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[3]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        // Short times, so that a test sees a commit, a purge of the repartition topic, and a death soon.
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 300);
        settings.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 1000);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 20_000);
        settings.put("request.timeout.ms", 5000);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[4], Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long()))
                .toStream()
                .to(arguments[5], Produced.with(Serdes.String(), Serdes.Long()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((state, before) -> System.out.println(state));
        streams.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (input.readLine() != null) {
            // The caller closes the input to end the program.
        }
        System.exit(streams.close(Duration.ofSeconds(60)) ? 0 : 1);
    }
}
