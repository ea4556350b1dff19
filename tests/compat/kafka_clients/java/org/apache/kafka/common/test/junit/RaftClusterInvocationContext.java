package org.apache.kafka.common.test.junit;

import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;

/**
 * Gives each of Kafka's tests a cluster that it can only reach from outside, instead of brokers in its own process.
 *
 * <p>The class has the name and the package of the one in kafka-test-common-runtime, and stands before it on the class path. What
 * the other one contains, its cluster, is still there: {@link Brokers} runs it.
 */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    /** Why a test is left out: the driver looks for this text. */
    static final String TWIN = "brokers that are controllers too are the same from outside";

    private final String name;
    private final ClusterConfig config;
    private final boolean combined;

    public RaftClusterInvocationContext(String name, ClusterConfig config, boolean combined) {
        this.name = name;
        this.config = config;
        this.combined = combined;
    }

    @Override
    public String getDisplayName(int invocation) {
        return name + " [" + invocation + "]";
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        String command = System.getProperty("txnstore.command");
        Servers servers = command == null ? new Brokers(config, combined) : new Gateways(config, command, name);
        Cluster cluster = new Cluster(config, combined, servers);
        boolean twin = combined && config.clusterTypes().contains(Type.KRAFT);
        return List.of(
            (ExecutionCondition) context -> twin ? ConditionEvaluationResult.disabled(TWIN) : ConditionEvaluationResult.enabled(""),
            (BeforeEachCallback) context -> {
                if (config.isAutoStart()) {
                    cluster.start();
                }
            },
            (AfterTestExecutionCallback) context -> cluster.stop(),
            new ClusterInstanceParameterResolver(cluster));
    }

    /** What the cluster of Kafka's own class waits with. */
    static void waitForCondition(Supplier<Boolean> condition, String details) throws InterruptedException {
        for (int tries = 0; !condition.get(); tries++) {
            if (tries == 150) {
                throw new AssertionError(details);
            }
            TimeUnit.MILLISECONDS.sleep(100);
        }
    }
}
