import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Map;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.CallbackHandler;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.callback.PasswordCallback;
import javax.security.auth.x500.X500Principal;
import javax.security.sasl.SaslClient;
import org.apache.kafka.common.security.scram.ScramExtensionsCallback;
import org.apache.kafka.common.security.scram.internals.ScramSaslClient;

/**
 * Kafka's own SCRAM client over standard input and output. A line `MECHANISM TAB NAME TAB PASSWORD` starts an
 * exchange; with a fourth field the name is that of a delegation token. Messages of both sides follow in base64,
 * one a line. It ends with `complete`, with `refused` after our line of that name, or with `error`. A line
 * `subject TAB HEX` is answered by the name that Kafka gives to a certificate's subject, in base64.
 */
public final class SaslJudge {
    private static BufferedReader in;
    private static PrintStream out;

    public static void main(String[] arguments) throws Exception {
        in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t");
            try {
                if (fields[0].equals("subject")) {
                    String name = new X500Principal(HexFormat.of().parseHex(fields[1])).getName();
                    out.println(encoded(name.getBytes(StandardCharsets.UTF_8)));
                } else {
                    authenticate(fields);
                }
            } catch (Exception error) {
                out.println("error " + error);
            }
        }
    }

    private static void authenticate(String[] fields) throws Exception {
        SaslClient client = new ScramSaslClient.ScramSaslClientFactory()
                .createSaslClient(new String[] {fields[0]}, null, "kafka", "host", Map.of(), handler(fields));
        byte[] message = client.evaluateChallenge(new byte[0]);
        while (true) {
            out.println(encoded(message));
            String answer = in.readLine();
            if (answer.equals("refused")) {
                out.println("refused");
                return;
            }
            message = client.evaluateChallenge(Base64.getDecoder().decode(answer));
            if (client.isComplete()) {
                out.println("complete");
                return;
            }
        }
    }

    private static CallbackHandler handler(String[] fields) {
        return callbacks -> {
            for (Callback callback : callbacks) {
                if (callback instanceof NameCallback name) {
                    name.setName(fields[1]);
                } else if (callback instanceof PasswordCallback password) {
                    password.setPassword(fields[2].toCharArray());
                } else if (callback instanceof ScramExtensionsCallback extensions && fields.length > 3) {
                    extensions.extensions(Map.of("tokenauth", "true"));
                }
            }
        };
    }

    private static String encoded(byte[] data) {
        return Base64.getEncoder().encodeToString(data);
    }
}
