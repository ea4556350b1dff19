package org.apache.kafka.common.test.junit;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.test.JaasUtils;
import org.apache.kafka.common.test.api.ClusterConfig;

/**
 * A gateway process for each broker, up to {@code txnstore.gateways}, all on one store in a new folder.
 *
 * <p>The files of their output stay in the folder {@code txnstore.logs}, each under the name of its test.
 */
final class Gateways implements Servers {
    private static final Pattern LISTENING = Pattern.compile("^listening on .*:(\\d+)$", Pattern.MULTILINE);
    /** What a gateway refuses is left out: most settings of a broker have no meaning for one. */
    private static final Set<String> PROPERTIES = Set.of(System.getProperty("txnstore.properties").split(","));
    private static final int CONTROLLER = 3000;
    private static final long START_SECONDS = 60;

    private final ClusterConfig config;
    private final String command;
    private final String test;
    private final Map<Integer, Process> processes = new TreeMap<>();
    private final Map<Integer, Integer> ports = new TreeMap<>();
    private final Map<Integer, Path> outputs = new TreeMap<>();
    private Path folder;
    private Path logs;

    Gateways(ClusterConfig config, String command, String test) {
        this.config = config;
        this.command = command;
        this.test = test;
    }

    @Override
    public void start() throws Exception {
        folder = Files.createTempDirectory("gateways-");
        logs = Files.createTempDirectory(Path.of(System.getProperty("txnstore.logs")), test + "-");
        copyNewStore();
        if (hasUsers()) {
            // As Kafka's own class does.
            String admin = "User:" + JaasUtils.KAFKA_PLAIN_ADMIN;
            txnstore("acl", "enable", "--super-user", admin, "--yes", "--principal", admin, "--store", store());
        }
        int count = Math.min(config.numBrokers(), Integer.getInteger("txnstore.gateways"));
        for (int id = 0; id < count; id++) {
            ports.put(id, count == 1 ? 0 : freePort());
        }
        for (int id : ports.keySet()) {
            launch(id);
        }
        for (int id : ports.keySet()) {
            awaitStart(id);
        }
    }

    @Override
    public void stop() throws Exception {
        for (Process process : processes.values()) {
            process.destroy();
        }
        for (int id : processes.keySet()) {
            end(id);
        }
        if (folder != null) {
            try (Stream<Path> paths = Files.walk(folder)) {
                paths.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
            }
        }
    }

    @Override
    public SortedSet<Integer> ids() {
        return new TreeSet<>(ports.keySet());
    }

    @Override
    public boolean alive(int id) {
        return processes.get(id).isAlive();
    }

    @Override
    public int port(int id) {
        return ports.get(id);
    }

    @Override
    public void shutdown(int id) throws Exception {
        processes.get(id).destroy();
        end(id);
    }

    @Override
    public void startup(int id) throws Exception {
        launch(id);
        awaitStart(id);
    }

    @Override
    public void settle() {
        // A gateway that does not know a topic asks the store.
    }

    /** A new store is one file; copying it saves the start of a process. */
    private void copyNewStore() throws Exception {
        Path first = logs.getParent().resolve("new-store");
        if (!Files.exists(first)) {
            txnstore("init", "--store", first.toString());
        }
        Files.createDirectories(Path.of(store()));
        Files.copy(first.resolve("store.json"), Path.of(store(), "store.json"));
    }

    private void txnstore(String... arguments) throws Exception {
        Path output = logs.resolve(arguments[0] + ".log");
        if (launch(output, Stream.concat(Stream.of(command), Stream.of(arguments)).toList()).waitFor() != 0) {
            throw new IOException("txnstore " + arguments[0] + ": " + Files.readString(output));
        }
    }

    private boolean hasUsers() {
        return config.brokerSecurityProtocol() == SecurityProtocol.SASL_PLAINTEXT;
    }

    private String store() {
        return folder.resolve("store").toString();
    }

    private void launch(int id) throws IOException {
        List<String> arguments = new ArrayList<>(List.of(command, "gateway", "--store", store(), "--listen", address(id)));
        if (ports.size() > 1) {
            arguments.addAll(List.of("--peers", ports.keySet().stream().map(this::address).collect(Collectors.joining(","))));
        }
        if (hasUsers()) {
            // Passwords without TLS, as the tests want it; and the gateway may do what a broker may.
            arguments.addAll(List.of("--insecure", "--sasl", System.getProperty("txnstore.users")));
            arguments.addAll(List.of("--principal", "User:" + JaasUtils.KAFKA_PLAIN_ADMIN));
        }
        // The only default that is not Kafka's.
        Map<String, String> properties = new TreeMap<>(Map.of("auto.create.topics.enable", "true"));
        properties.putAll(config.serverProperties());
        // A gateway is what creates topics, too.
        for (int node : List.of(CONTROLLER, id)) {
            properties.putAll(config.perServerOverrideProperties().getOrDefault(node, Map.of()));
        }
        properties.keySet().retainAll(PROPERTIES);
        properties.forEach((key, value) -> arguments.addAll(List.of("--property", key + "=" + value)));
        outputs.put(id, Files.createTempFile(logs, "gateway-" + id + "-", ".log"));
        processes.put(id, launch(outputs.get(id), arguments));
    }

    private static Process launch(Path output, List<String> arguments) throws IOException {
        return new ProcessBuilder(arguments).redirectErrorStream(true).redirectOutput(output.toFile()).start();
    }

    private void awaitStart(int id) throws Exception {
        for (long tries = 0; tries < START_SECONDS * 50; tries++) {
            String output = Files.readString(outputs.get(id));
            Matcher line = LISTENING.matcher(output);
            if (line.find()) {
                ports.put(id, Integer.parseInt(line.group(1)));
                return;
            }
            if (!processes.get(id).isAlive()) {
                throw new IOException("gateway " + id + " ended with " + processes.get(id).exitValue() + ": " + output);
            }
            TimeUnit.MILLISECONDS.sleep(20);
        }
        throw new IOException("gateway " + id + " did not start in " + START_SECONDS + " s");
    }

    private void end(int id) throws InterruptedException {
        if (!processes.get(id).waitFor(20, TimeUnit.SECONDS)) {
            processes.get(id).destroyForcibly().waitFor();
            throw new AssertionError("gateway " + id + " ignored SIGTERM for 20 s");
        }
    }

    private String address(int id) {
        return "127.0.0.1:" + ports.get(id);
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        }
    }
}
