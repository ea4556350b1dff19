package txnstore;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.LinkedHashSet;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;

/**
 * Appends a line for each event of a test to the file {@code txnstore.outcomes}, so that what is known survives this process:
 * event (STARTED, SKIPPED, SUCCESSFUL, ABORTED, FAILED), time in ms, class, method, number, error; separated by tabs.
 */
public final class Outcomes implements TestExecutionListener {
    private static final Pattern NUMBER = Pattern.compile("\\[(\\d+)\\]");
    private static final int CAUSES = 3;

    @Override
    public void executionStarted(TestIdentifier test) {
        if (test.isTest()) {
            write(test, "STARTED", "");
        }
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        write(test, "SKIPPED", reason);
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        if (test.isTest() || result.getStatus() != TestExecutionResult.Status.SUCCESSFUL) {
            write(test, result.getStatus().name(), result.getThrowable().map(error -> describe(test, error)).orElse(""));
        }
    }

    /** The first lines of an error and its causes, and where the test was. */
    private static String describe(TestIdentifier test, Throwable error) {
        Set<String> lines = new LinkedHashSet<>();
        String place = "";
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (lines.size() < CAUSES || each.getCause() == null) {
                String message = Optional.ofNullable(each.getMessage()).orElse("").lines().findFirst().orElse("");
                lines.add(each.getClass().getSimpleName() + (message.isBlank() ? "" : ": " + message));
            }
            for (StackTraceElement frame : each.getStackTrace()) {
                if (place.isEmpty() && frame.getClassName().split("\\$")[0].equals(className(test))) {
                    place = " (line " + frame.getLineNumber() + ")";
                }
            }
        }
        return String.join(" <- ", lines) + place;
    }

    private static String className(TestIdentifier test) {
        return test.getSource().map(source -> {
            if (source instanceof MethodSource method) {
                return method.getClassName();
            }
            return source instanceof ClassSource of ? of.getClassName() : "";
        }).orElse("");
    }

    private static void write(TestIdentifier test, String event, String error) {
        String method = test.getSource().map(source -> source instanceof MethodSource of ? of.getMethodName() : "").orElse("");
        Matcher number = NUMBER.matcher(test.getDisplayName());
        String line = String.join("\t", event, String.valueOf(System.currentTimeMillis()), className(test), method, number.find() ? number.group(1) : "",
            error.replaceAll("[\\t\\r\\n]+", " "));
        try {
            Files.writeString(Path.of(System.getProperty("txnstore.outcomes")), line + "\n",
                StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException failure) {
            throw new IllegalStateException(failure);
        }
    }
}
