import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Exactly once with Kafka's own client: consume, transform and produce through a gateway.
 *
 * <p>Kill it at any point and start it again: what it was doing is aborted, and it continues where the last commit ended.
 * Run it with {@code mvn -q compile exec:java -Dexec.args=HOST:PORT} in this folder, with the address of a gateway.
 */
public final class Alarms {
    private static final String READINGS = "readings";
    private static final String ALARMS = "alarms";

    private Alarms() {}

    public static void main(String[] arguments) throws Exception {
        String servers = arguments.length > 0 ? arguments[0] : "127.0.0.1:9092";
        prepare(servers);
        System.out.println("first run: " + run(servers) + " readings");
        System.out.println("second run: " + run(servers) + " readings");
    }

    /** Something to read: 1,000 readings of ten sensors. */
    private static void prepare(String servers) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            for (String topic : List.of(READINGS, ALARMS)) {
                try {
                    admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1))).all().get();
                } catch (ExecutionException failure) {
                    if (!(failure.getCause() instanceof TopicExistsException)) {
                        throw failure;
                    }
                }
            }
        }
        try (KafkaProducer<String, String> producer = producer(Map.of("bootstrap.servers", servers))) {
            for (int number = 0; number < 1000; number++) {
                String value = Integer.toString(number * 37 % 101);
                producer.send(new ProducerRecord<>(READINGS, "sensor-" + number % 10, value));
            }
        }
    }

    /** Processes all existing records in transactions of up to 200; returns their number. */
    private static long run(String servers) {
        Map<String, Object> reading = Map.of(
                "bootstrap.servers", servers,
                "group.id", "alarm-job",
                "isolation.level", "read_committed",
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false, // The offsets are committed by the transactions.
                "max.poll.records", 200);
        Map<String, Object> writing = Map.of("bootstrap.servers", servers, "transactional.id", "alarm-job");
        try (KafkaProducer<String, String> producer = producer(writing);
                KafkaConsumer<String, String> consumer =
                        new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            producer.initTransactions(); // It fences the job's previous instance, and aborts its open transaction.
            consumer.subscribe(List.of(READINGS));
            long done = 0;
            while (!isAtEnd(consumer)) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (!records.isEmpty()) {
                    done += transform(records, consumer, producer);
                }
            }
            return done;
        }
    }

    /** One transaction: the alarms, and the positions of the group. Returns how many records it has processed. */
    private static long transform(
            ConsumerRecords<String, String> records,
            KafkaConsumer<String, String> consumer,
            KafkaProducer<String, String> producer) {
        try {
            producer.beginTransaction();
            for (ConsumerRecord<String, String> record : records) {
                if (Integer.parseInt(record.value()) > 90) {
                    producer.send(new ProducerRecord<>(ALARMS, record.key(), "too high: " + record.value()));
                }
            }
            producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
            producer.commitTransaction();
            return records.count();
        } catch (ApplicationRecoverableException failure) {
            throw failure; // Fenced, or the like: another instance has the job, or a new one begins.
        } catch (KafkaException failure) {
            producer.abortTransaction();
            rewind(consumer);
            return 0;
        }
    }

    /** Goes back to what is committed: the records since then are read again. */
    private static void rewind(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(partition);
            if (offset == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, offset);
            }
        }
    }

    /** Whether all partitions are read to their end; a job that never ends needs no such question. */
    private static boolean isAtEnd(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment());
        return !ends.isEmpty()
                && ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
    }

    private static KafkaProducer<String, String> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("linger.ms", 50);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }
}
