package org.apache.kafka.common.test.junit;

import java.util.SortedSet;

/** The processes or threads that answer Kafka's clients. */
interface Servers {
    /** Starts them all; returns when they answer. */
    void start() throws Exception;

    /** Ends them all, and removes what they stored. */
    void stop() throws Exception;

    /** The ids of all, also of those that do not run. */
    SortedSet<Integer> ids();

    boolean alive(int id);

    int port(int id);

    void shutdown(int id) throws Exception;

    /** Starts one again that was shut down, with the same port. */
    void startup(int id) throws Exception;

    /** Waits until all that run tell the same about topics. */
    void settle() throws InterruptedException;
}
