package org.apache.kafka.common.test.junit;

import java.lang.reflect.Constructor;
import java.util.SortedSet;
import java.util.TreeSet;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.api.ClusterConfig;

/** Kafka's own brokers, in this process: they show which tests can pass from outside at all. */
final class Brokers implements Servers {
    private final ClusterInstance cluster;

    Brokers(ClusterConfig config, boolean combined) {
        try {
            Class<?> original = Class.forName(RaftClusterInvocationContext.class.getName() + "$RaftClusterInstance");
            Constructor<?> constructor = original.getDeclaredConstructor(ClusterConfig.class, boolean.class);
            constructor.setAccessible(true);
            cluster = (ClusterInstance) constructor.newInstance(config, combined);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("this is another release of kafka-test-common-runtime", error);
        }
    }

    @Override
    public void start() {
        cluster.start();
    }

    @Override
    public void stop() {
        cluster.stop();
    }

    @Override
    public SortedSet<Integer> ids() {
        return new TreeSet<>(cluster.brokers().keySet());
    }

    @Override
    public boolean alive(int id) {
        return !cluster.brokers().get(id).isShutdown();
    }

    @Override
    public int port(int id) {
        return cluster.brokers().get(id).boundPort(cluster.clientListener());
    }

    @Override
    public void shutdown(int id) {
        cluster.shutdownBroker(id);
    }

    @Override
    public void startup(int id) {
        cluster.startBroker(id);
    }

    @Override
    public void settle() throws InterruptedException {
        cluster.ensureConsistentMetadata();
    }
}
