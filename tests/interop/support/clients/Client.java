import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.CertificateFactory;
import java.util.HexFormat;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;

/**
 * Downloads and uploads over two TLS connections of each version that share a cache of sessions.
 *
 * <p>Client.java PORT AUTHORITY NAME LENGTH VERSION... prints a line for each connection: version,
 * "-", the hash of what it downloaded, and the origin's report about the upload of the same bytes.
 * The API does not show whether a session was resumed.
 */
public class Client {
    static SSLContext trust(String authority) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (FileInputStream file = new FileInputStream(authority)) {
            CertificateFactory certificates = CertificateFactory.getInstance("X.509");
            store.setCertificateEntry("authority", certificates.generateCertificate(file));
        }
        TrustManagerFactory managers =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }

    static void run(SSLContext context, String version, String origin, String length)
            throws Exception {
        SSLParameters parameters = new SSLParameters();
        parameters.setProtocols(new String[] {"TLSv" + version});
        HttpClient client =
                HttpClient.newBuilder().sslContext(context).sslParameters(parameters).build();
        HttpResponse<byte[]> got =
                client.send(
                        HttpRequest.newBuilder(URI.create(origin + "/bytes/" + length)).build(),
                        BodyHandlers.ofByteArray());
        HttpResponse<String> report =
                client.send(
                        HttpRequest.newBuilder(URI.create(origin + "/upload"))
                                .POST(BodyPublishers.ofByteArray(got.body()))
                                .build(),
                        BodyHandlers.ofString());
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(got.body());
        System.out.printf(
                "%s - %s %s%n",
                got.sslSession().get().getProtocol(),
                HexFormat.of().formatHex(hash),
                report.body());
    }

    public static void main(String[] words) throws Exception {
        String origin = "https://" + words[2] + ":" + words[0];
        for (int version = 4; version < words.length; version++) {
            SSLContext context = trust(words[1]);
            for (int connection = 0; connection < 2; connection++) {
                run(context, words[version], origin, words[3]);
            }
        }
        // The threads of an idle HttpClient would go on until it is collected.
        System.exit(0);
    }
}
