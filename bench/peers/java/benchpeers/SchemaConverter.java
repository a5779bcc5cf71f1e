package benchpeers;

import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.DescriptorValidationException;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor.JavaType;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.storage.Converter;

/**
 * Messages of a Protobuf schema for Kafka Connect by protobuf-java's DynamicMessage, which is what there is in Java for a schema that is known
 * only when the program runs. What of a field does not depend on the message is found out once. Without a registry. Timestamps are cut to
 * milliseconds. Not for schemas that contain themselves, nor for messages within messages by name.
 *
 * Configured by `descriptor.set`, a FileDescriptorSet in base64 in which each file comes behind those it imports, and `message`, the full name.
 */
public final class SchemaConverter implements Converter {
    private static final String TIMESTAMP = "google.protobuf.Timestamp";

    private Descriptor message;
    private Plan plan;

    @Override
    public void configure(Map<String, ?> configs, boolean isKey) {
        byte[] set = Base64.getDecoder().decode((String) configs.get("descriptor.set"));
        String wanted = (String) configs.get("message");
        try {
            Map<String, FileDescriptor> files = new HashMap<>();
            for (FileDescriptorProto file : FileDescriptorSet.parseFrom(set).getFileList()) {
                FileDescriptor[] needed = file.getDependencyList().stream().map(files::get).toArray(FileDescriptor[]::new);
                files.put(file.getName(), FileDescriptor.buildFrom(file, needed));
            }
            message = files.values().stream()
                .flatMap(file -> file.getMessageTypes().stream())
                .filter(one -> one.getFullName().equals(wanted))
                .findFirst()
                .orElseThrow(() -> new ConfigException("no message " + wanted));
        } catch (InvalidProtocolBufferException | DescriptorValidationException error) {
            throw new ConfigException("no descriptor set: " + error.getMessage());
        }
        plan = new Plan(message);
    }

    @Override
    public byte[] fromConnectData(String topic, Schema schema, Object value) {
        throw new DataException("messages are only read");
    }

    @Override
    public SchemaAndValue toConnectData(String topic, byte[] value) {
        if (value == null) {
            return SchemaAndValue.NULL;
        }
        try {
            return new SchemaAndValue(plan.schema, plan.struct(DynamicMessage.parseFrom(message, value)));
        } catch (InvalidProtocolBufferException error) {
            throw new DataException("no " + message.getFullName(), error);
        }
    }

    /** What is done with the messages of one type. */
    private static final class Plan {
        private final FieldDescriptor[] fields;
        private final boolean[] presence;
        /** Of maps, null for other fields. */
        private final FieldDescriptor[] keys;
        private final FieldDescriptor[] values;
        /** Of the fields' messages, or of the values of a map; null where there is none. */
        private final Plan[] inner;
        private final Field[] targets;
        private final Schema schema;

        Plan(Descriptor type) {
            fields = type.getFields().toArray(FieldDescriptor[]::new);
            presence = new boolean[fields.length];
            keys = new FieldDescriptor[fields.length];
            values = new FieldDescriptor[fields.length];
            inner = new Plan[fields.length];
            SchemaBuilder builder = SchemaBuilder.struct().name(type.getFullName()).optional();
            for (int at = 0; at < fields.length; at++) {
                FieldDescriptor field = fields[at];
                presence[at] = field.hasPresence();
                if (field.isMapField()) {
                    keys[at] = field.getMessageType().findFieldByNumber(1);
                    values[at] = field.getMessageType().findFieldByNumber(2);
                }
                FieldDescriptor item = keys[at] == null ? field : values[at];
                if (isStruct(item)) {
                    inner[at] = new Plan(item.getMessageType());
                }
                builder.field(field.getName(), schemaOf(at));
            }
            schema = builder.build();
            targets = schema.fields().toArray(Field[]::new);
        }

        Struct struct(Message from) {
            Struct struct = new Struct(schema);
            for (int at = 0; at < fields.length; at++) {
                FieldDescriptor field = fields[at];
                if (!presence[at] || from.hasField(field)) {
                    struct.put(targets[at], value(at, from.getField(field)));
                }
            }
            return struct;
        }

        private Object value(int at, Object found) {
            FieldDescriptor field = fields[at];
            if (!field.isRepeated()) {
                return single(field, inner[at], found);
            }
            List<?> items = (List<?>) found;
            if (keys[at] != null) {
                Map<Object, Object> entries = new HashMap<>();
                for (Object item : items) {
                    Message entry = (Message) item;
                    Object value = single(values[at], inner[at], entry.getField(values[at]));
                    entries.put(single(keys[at], null, entry.getField(keys[at])), value);
                }
                return entries;
            }
            List<Object> list = new ArrayList<>(items.size());
            for (Object item : items) {
                list.add(single(field, inner[at], item));
            }
            return list;
        }

        private static Object single(FieldDescriptor field, Plan plan, Object found) {
            if (plan != null) {
                return plan.struct((Message) found);
            }
            return switch (field.getJavaType()) {
                case ENUM -> ((EnumValueDescriptor) found).getName();
                case BYTE_STRING -> ((ByteString) found).toByteArray();
                case MESSAGE -> date((Message) found);
                default -> found;
            };
        }

        private static Date date(Message found) {
            List<FieldDescriptor> parts = found.getDescriptorForType().getFields(); // seconds and nanos
            long seconds = (Long) found.getField(parts.get(0));
            int nanos = (Integer) found.getField(parts.get(1));
            return new Date(seconds * 1000 + nanos / 1_000_000);
        }

        private Schema schemaOf(int at) {
            if (keys[at] != null) {
                return SchemaBuilder.map(itemSchema(keys[at], null), itemSchema(values[at], inner[at])).optional().build();
            }
            Schema item = itemSchema(fields[at], inner[at]);
            return fields[at].isRepeated() ? SchemaBuilder.array(item).optional().build() : item;
        }

        private static Schema itemSchema(FieldDescriptor field, Plan plan) {
            if (plan != null) {
                return plan.schema;
            }
            return switch (field.getJavaType()) {
                case INT -> Schema.OPTIONAL_INT32_SCHEMA;
                case LONG -> Schema.OPTIONAL_INT64_SCHEMA;
                case FLOAT -> Schema.OPTIONAL_FLOAT32_SCHEMA;
                case DOUBLE -> Schema.OPTIONAL_FLOAT64_SCHEMA;
                case BOOLEAN -> Schema.OPTIONAL_BOOLEAN_SCHEMA;
                case STRING, ENUM -> Schema.OPTIONAL_STRING_SCHEMA;
                case BYTE_STRING -> Schema.OPTIONAL_BYTES_SCHEMA;
                case MESSAGE -> Timestamp.builder().optional().build();
            };
        }

        private static boolean isStruct(FieldDescriptor field) {
            return field.getJavaType() == JavaType.MESSAGE && !field.getMessageType().getFullName().equals(TIMESTAMP);
        }
    }
}
