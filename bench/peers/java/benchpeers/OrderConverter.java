package benchpeers;

import com.google.protobuf.CodedInputStream;
import com.google.protobuf.WireFormat;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.storage.Converter;

/**
 * Orders of bench/orders.py for Kafka Connect. It knows that one message and reads its bytes straight into Connect's structs, so it does
 * less than any converter that works from a schema. Connect's timestamps are milliseconds: microseconds are cut off.
 */
public final class OrderConverter implements Converter {
    private static final Schema LINE_SCHEMA = SchemaBuilder.struct().name("bench.Line")
        .field("sku", Schema.STRING_SCHEMA)
        .field("quantity", Schema.INT32_SCHEMA)
        .field("price_cents", Schema.INT64_SCHEMA)
        .build();
    private static final Schema ORDER_SCHEMA = SchemaBuilder.struct().name("bench.Order")
        .field("id", Schema.INT64_SCHEMA)
        .field("customer", Schema.STRING_SCHEMA)
        .field("state", Schema.STRING_SCHEMA)
        .field("created", Timestamp.builder().optional().build())
        .field("lines", SchemaBuilder.array(LINE_SCHEMA).build())
        .field("tags", SchemaBuilder.map(Schema.STRING_SCHEMA, Schema.STRING_SCHEMA).build())
        .field("total", Schema.FLOAT64_SCHEMA)
        .field("gift", Schema.BOOLEAN_SCHEMA)
        .build();
    private static final String[] STATES = {"STATE_UNKNOWN", "STATE_NEW", "STATE_PAID", "STATE_SHIPPED"};

    @Override
    public void configure(Map<String, ?> configs, boolean isKey) {}

    @Override
    public byte[] fromConnectData(String topic, Schema schema, Object value) {
        throw new DataException("orders are only read");
    }

    @Override
    public SchemaAndValue toConnectData(String topic, byte[] value) {
        try {
            return new SchemaAndValue(ORDER_SCHEMA, order(CodedInputStream.newInstance(value)));
        } catch (IOException error) {
            throw new DataException("no order", error);
        }
    }

    private static Struct order(CodedInputStream in) throws IOException {
        long id = 0;
        String customer = "";
        int state = 0;
        Date created = null;
        List<Struct> lines = new ArrayList<>(4);
        Map<String, String> tags = new HashMap<>();
        double total = 0;
        boolean gift = false;
        for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
            switch (WireFormat.getTagFieldNumber(tag)) {
                case 1 -> id = in.readInt64();
                case 2 -> customer = in.readStringRequireUtf8();
                case 3 -> state = in.readEnum();
                case 4 -> created = created(in);
                case 5 -> lines.add(line(in));
                case 6 -> readTag(in, tags);
                case 7 -> total = in.readDouble();
                case 8 -> gift = in.readBool();
                default -> in.skipField(tag);
            }
        }
        return new Struct(ORDER_SCHEMA)
            .put("id", id)
            .put("customer", customer)
            .put("state", STATES[state])
            .put("created", created)
            .put("lines", lines)
            .put("tags", tags)
            .put("total", total)
            .put("gift", gift);
    }

    private static Date created(CodedInputStream in) throws IOException {
        int outer = in.pushLimit(in.readRawVarint32());
        long seconds = 0;
        int nanos = 0;
        for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
            switch (WireFormat.getTagFieldNumber(tag)) {
                case 1 -> seconds = in.readInt64();
                case 2 -> nanos = in.readInt32();
                default -> in.skipField(tag);
            }
        }
        in.popLimit(outer);
        return new Date(seconds * 1000 + nanos / 1_000_000);
    }

    private static Struct line(CodedInputStream in) throws IOException {
        int outer = in.pushLimit(in.readRawVarint32());
        String sku = "";
        int quantity = 0;
        long priceCents = 0;
        for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
            switch (WireFormat.getTagFieldNumber(tag)) {
                case 1 -> sku = in.readStringRequireUtf8();
                case 2 -> quantity = in.readInt32();
                case 3 -> priceCents = in.readInt64();
                default -> in.skipField(tag);
            }
        }
        in.popLimit(outer);
        return new Struct(LINE_SCHEMA).put("sku", sku).put("quantity", quantity).put("price_cents", priceCents);
    }

    private static void readTag(CodedInputStream in, Map<String, String> tags) throws IOException {
        int outer = in.pushLimit(in.readRawVarint32());
        String key = "";
        String value = "";
        for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
            switch (WireFormat.getTagFieldNumber(tag)) {
                case 1 -> key = in.readStringRequireUtf8();
                case 2 -> value = in.readStringRequireUtf8();
                default -> in.skipField(tag);
            }
        }
        in.popLimit(outer);
        tags.put(key, value);
    }
}
