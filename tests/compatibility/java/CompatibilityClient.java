import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Runs one operation of Kafka's Java client per line of input, a JSON object, and answers each with one line. */
public final class CompatibilityClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int PATIENCE_MS = 8000;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", JSON.valueToTree(run(JSON.readTree(line))));
            } catch (Exception error) {
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                answer.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    private static Object run(JsonNode asked) throws Exception {
        switch (asked.get("operation").asText()) {
            case "produce":
                return produce(asked);
            case "fetch":
                return fetch(asked);
            case "group":
                return group(asked);
            case "partitions":
            case "bounds":
            case "offset_at":
                return ask(asked);
            default:
                return administer(asked);
        }
    }

    private static Map<String, Object> settings(JsonNode asked) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", asked.get("bootstrap").asText());
        settings.put("request.timeout.ms", PATIENCE_MS / 2);
        settings.put("default.api.timeout.ms", PATIENCE_MS);
        return settings;
    }

    private static Object produce(JsonNode asked) throws Exception {
        Map<String, Object> settings = settings(asked);
        settings.put("compression.type", asked.get("codec").asText());
        settings.put("enable.idempotence", asked.get("idempotent").asBoolean());
        settings.put("delivery.timeout.ms", PATIENCE_MS);
        settings.put("max.block.ms", PATIENCE_MS);
        settings.put("linger.ms", 5);
        String transactional = asked.path("transactional_id").asText("");
        if (!transactional.isEmpty()) {
            settings.put("transactional.id", transactional);
            settings.put("enable.idempotence", true);
            settings.put("transaction.timeout.ms", PATIENCE_MS);
        }
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            if (!transactional.isEmpty()) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode one : asked.get("records")) {
                ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(
                        asked.get("topic").asText(),
                        asked.get("partition").asInt(),
                        one.get("time_ms").asLong(),
                        one.get("key").binaryValue(),
                        one.get("value").binaryValue());
                for (JsonNode pair : one.get("headers")) {
                    made.headers().add(pair.get("name").asText(), pair.get("value").binaryValue());
                }
                sent.add(producer.send(made));
            }
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> one : sent) {
                offsets.add(one.get(PATIENCE_MS, TimeUnit.MILLISECONDS).offset());
            }
            String group = asked.path("group").asText("");
            if (!group.isEmpty()) {
                producer.sendOffsetsToTransaction(
                        Map.of(
                                new TopicPartition(asked.get("source").asText(), 0),
                                new OffsetAndMetadata(asked.get("source_offset").asLong())),
                        new ConsumerGroupMetadata(group));
            }
            if (!transactional.isEmpty()) {
                if (asked.get("commit").asBoolean()) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            return offsets;
        } finally {
            producer.close(Duration.ofSeconds(1));
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        settings.put("enable.auto.commit", false);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static TopicPartition place(JsonNode asked) {
        return new TopicPartition(asked.get("topic").asText(), asked.get("partition").asInt());
    }

    private static ArrayNode poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        ArrayNode got = JSON.createArrayNode();
        long until = System.nanoTime() + PATIENCE_MS * 1_000_000L;
        while (got.size() < count) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException(got.size() + " of " + count + " records in time");
            }
            for (ConsumerRecord<byte[], byte[]> one : consumer.poll(Duration.ofMillis(500))) {
                ObjectNode made = got.addObject();
                made.put("key", one.key()).put("value", one.value());
                made.put("time_ms", one.timestamp()).put("offset", one.offset());
                ArrayNode headers = made.putArray("headers");
                for (Header pair : one.headers()) {
                    headers.addObject().put("name", pair.key()).put("value", pair.value());
                }
            }
        }
        return got;
    }

    private static Object fetch(JsonNode asked) {
        Map<String, Object> settings = settings(asked);
        settings.put("auto.offset.reset", "none");
        if (asked.path("read_committed").asBoolean()) {
            settings.put("isolation.level", "read_committed");
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.assign(List.of(place(asked)));
            consumer.seek(place(asked), asked.get("start").asLong());
            return poll(consumer, asked.get("count").asInt());
        }
    }

    private static Object group(JsonNode asked) {
        Map<String, Object> settings = settings(asked);
        settings.put("auto.offset.reset", "earliest");
        settings.put("group.id", asked.get("group").asText());
        settings.put("group.protocol", asked.path("by_server").asBoolean() ? "consumer" : "classic");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.subscribe(List.of(asked.get("topic").asText()));
            poll(consumer, asked.get("count").asInt());
            consumer.commitSync();
            TopicPartition first = new TopicPartition(asked.get("topic").asText(), 0);
            return consumer.committed(java.util.Set.of(first)).get(first).offset();
        }
    }

    private static Object ask(JsonNode asked) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings(asked))) {
            TopicPartition place = place(asked);
            switch (asked.get("operation").asText()) {
                case "partitions":
                    return consumer.partitionsFor(place.topic()).size();
                case "bounds":
                    return List.of(
                            consumer.beginningOffsets(List.of(place)).get(place),
                            consumer.endOffsets(List.of(place)).get(place));
                default:
                    OffsetAndTimestamp found =
                            consumer.offsetsForTimes(Map.of(place, asked.get("time_ms").asLong())).get(place);
                    return found == null ? -1 : found.offset();
            }
        }
    }

    private static Object administer(JsonNode asked) throws Exception {
        String topic = asked.get("topic").asText();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = Admin.create(settings(asked))) {
            switch (asked.get("operation").asText()) {
                case "create_topic":
                    admin.createTopics(List.of(new NewTopic(
                            topic, Optional.of(asked.get("partitions").asInt()), Optional.empty()))).all().get();
                    return null;
                case "add_partitions":
                    admin.createPartitions(Map.of(
                            topic, NewPartitions.increaseTo(asked.get("partitions").asInt()))).all().get();
                    return null;
                case "delete_topic":
                    admin.deleteTopics(List.of(topic)).all().get();
                    return null;
                case "config":
                    Map<String, String> values = new HashMap<>();
                    for (ConfigEntry one : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
                        values.put(one.name(), one.value());
                    }
                    return values;
                case "set_config":
                    AlterConfigOp change = new AlterConfigOp(
                            new ConfigEntry(asked.get("key").asText(), asked.get("value").asText()),
                            AlterConfigOp.OpType.SET);
                    admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
                    return null;
                default:
                    throw new IllegalArgumentException("unknown operation");
            }
        }
    }
}
