package org.apache.kafka.common.test.junit;

import java.lang.reflect.Proxy;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import kafka.server.ControllerServer;
import kafka.server.KafkaBroker;
import kafka.server.KafkaConfig;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.internals.Topic;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.server.fault.FaultHandlerException;

/** A cluster as its clients see it: what Kafka's class reads from the memory of its brokers, this one asks for. */
final class Cluster implements ClusterInstance {
    private static final long WAIT_SECONDS = 60;

    private final ClusterConfig config;
    private final boolean combined;
    private final Servers servers;
    private boolean started;
    private boolean stopped;

    Cluster(ClusterConfig config, boolean combined, Servers servers) {
        this.config = config;
        this.combined = combined;
        this.servers = servers;
    }

    /** A test looks into a broker. Not an exception, since tests wait until what they call throws none. */
    static final class NeedsInternals extends Error {
        NeedsInternals(String what) {
            super(what, null, false, true);
        }
    }

    @Override
    public Type type() {
        return combined ? Type.CO_KRAFT : Type.KRAFT;
    }

    @Override
    public ClusterConfig config() {
        return config;
    }

    @Override
    public Map<Integer, KafkaBroker> brokers() {
        Map<Integer, KafkaBroker> brokers = new TreeMap<>();
        servers.ids().forEach(id -> brokers.put(id, broker(id)));
        return brokers;
    }

    /** A broker that can be started and ended, and has no inside. */
    private KafkaBroker broker(int id) {
        return (KafkaBroker) Proxy.newProxyInstance(Cluster.class.getClassLoader(), new Class<?>[] {KafkaBroker.class},
            (proxy, method, arguments) -> {
                switch (method.getName()) {
                    case "isShutdown":
                        return !servers.alive(id);
                    case "shutdown":
                        servers.shutdown(id);
                        return null;
                    case "startup":
                        servers.startup(id);
                        return null;
                    case "awaitShutdown":
                        return null;
                    case "config":
                        return settings(id);
                    case "boundPort":
                        return servers.port(id);
                    case "hashCode":
                        return id;
                    case "equals":
                        return proxy == arguments[0];
                    case "toString":
                        return "broker " + id;
                    default:
                        throw new NeedsInternals("KafkaBroker." + method.getName());
                }
            });
    }

    /** Those of a broker that stores nothing on this machine. */
    private KafkaConfig settings(int id) {
        return new KafkaConfig(Map.of(
            "process.roles", "broker",
            "node.id", String.valueOf(id),
            "listeners", "PLAINTEXT://localhost:" + servers.port(id),
            "controller.listener.names", "CONTROLLER",
            "controller.quorum.bootstrap.servers", "localhost:9",
            "log.dirs", "/nonexistent"), false);
    }

    @Override
    public Map<Integer, ControllerServer> controllers() {
        throw new NeedsInternals("controllers");
    }

    @Override
    public Set<Integer> controllerIds() {
        throw new NeedsInternals("controllerIds");
    }

    @Override
    public List<Integer> controllerBoundPorts() {
        throw new NeedsInternals("controllerBoundPorts");
    }

    @Override
    public String bootstrapControllers() {
        throw new NeedsInternals("bootstrapControllers");
    }

    @Override
    public Set<Integer> brokerIds() {
        return servers.ids();
    }

    @Override
    public List<Integer> brokerBoundPorts() {
        return servers.ids().stream().map(servers::port).toList();
    }

    @Override
    public String bootstrapServers() {
        return brokerBoundPorts().stream().map(port -> "localhost:" + port).collect(Collectors.joining(","));
    }

    @Override
    public ListenerName clientListener() {
        return config.brokerListenerName();
    }

    @Override
    public ListenerName controllerListenerName() {
        return config.controllerListenerName();
    }

    @Override
    public String clusterId() {
        try (Admin admin = admin()) {
            return admin.describeCluster().clusterId().get();
        } catch (ExecutionException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public Set<GroupProtocol> supportedGroupProtocols() {
        try (Admin admin = admin()) {
            var features = admin.describeFeatures().featureMetadata().get().finalizedFeatures();
            var version = features.get("group.version");
            return version != null && version.maxVersionLevel() > 0 ? Set.of(GroupProtocol.values()) : Set.of(GroupProtocol.CLASSIC);
        } catch (ExecutionException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public Optional<FaultHandlerException> firstFatalException() {
        return Optional.empty();
    }

    @Override
    public Optional<FaultHandlerException> firstNonFatalException() {
        return Optional.empty();
    }

    @Override
    public void start() {
        if (!started) {
            started = true;
            run(servers::start);
        }
    }

    @Override
    public boolean started() {
        return started;
    }

    @Override
    public void stop() {
        if (!stopped) {
            stopped = true;
            run(servers::stop);
        }
    }

    @Override
    public boolean stopped() {
        return stopped;
    }

    @Override
    public void shutdownBroker(int id) {
        run(() -> servers.shutdown(id));
    }

    @Override
    public void startBroker(int id) {
        run(() -> servers.startup(id));
    }

    @Override
    public void createTopic(String topic, int partitions, short replicas, Map<String, String> settings) throws InterruptedException {
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, replicas).configs(settings))).all().get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw new AssertionError("topic " + topic + " should be created", error.getCause());
            }
        }
        waitTopicCreation(topic, partitions);
    }

    @Override
    public void waitTopicCreation(String topic, int partitions) throws InterruptedException {
        if (Topic.isInternal(topic)) {
            return; // Who keeps offsets elsewhere takes the request, and shows no topic.
        }
        await(topic + " should have " + partitions + " partitions", admin -> partitions(admin, topic) == partitions);
        servers.settle();
    }

    @Override
    public void waitTopicDeletion(String topic) throws InterruptedException {
        await(topic + " should be deleted", admin -> partitions(admin, topic) == 0);
        servers.settle();
    }

    @Override
    public void waitForReadyBrokers() throws InterruptedException {
        int count = aliveBrokers().size();
        await(count + " brokers should be ready", admin -> admin.describeCluster().nodes().get().size() == count);
        servers.settle();
    }

    @Override
    public void ensureConsistentMetadata() throws InterruptedException {
        servers.settle();
    }

    @Override
    public void waitAcls(AclBindingFilter filter, Collection<AccessControlEntry> entries) throws InterruptedException {
        Set<AccessControlEntry> expected = new HashSet<>(entries);
        await(filter + " should find " + entries, admin -> admin.describeAcls(filter).values().get().stream()
            .map(AclBinding::entry).collect(Collectors.toSet()).equals(expected));
    }

    /** 0 if there is no such topic. */
    private static int partitions(Admin admin, String topic) throws ExecutionException, InterruptedException {
        try {
            return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                return 0;
            }
            throw error;
        }
    }

    private interface Condition {
        boolean holds(Admin admin) throws ExecutionException, InterruptedException;
    }

    private interface Step {
        void run() throws Exception;
    }

    private void await(String expectation, Condition condition) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
        Throwable last = null;
        try (Admin admin = admin()) {
            while (System.nanoTime() < end) {
                try {
                    if (condition.holds(admin)) {
                        return;
                    }
                } catch (ExecutionException error) {
                    if (!(error.getCause() instanceof RetriableException)) {
                        throw new AssertionError(expectation, error.getCause());
                    }
                    last = error.getCause();
                }
                TimeUnit.MILLISECONDS.sleep(50);
            }
        }
        throw new AssertionError(expectation + ", and did not in " + WAIT_SECONDS + " s", last);
    }

    private static void run(Step step) {
        try {
            step.run();
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IllegalStateException(error.getMessage(), error);
        }
    }
}
