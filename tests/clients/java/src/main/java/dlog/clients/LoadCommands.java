package dlog.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** One producer and one consumer at their defaults, running until they are told to stop. */
final class LoadCommands {
    private static final Duration POLL = Duration.ofMillis(200);

    private final String bootstrap;
    private final Object lock = new Object();
    private ArrayNode acks = Main.JSON.createArrayNode();
    private ArrayNode seen = Main.JSON.createArrayNode();
    private ArrayNode errors = Main.JSON.createArrayNode();
    private volatile boolean isWriting = true;
    private volatile boolean isReading = true;
    private volatile long sent;
    private Thread writer;
    private Thread reader;

    LoadCommands(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    Map<String, Main.Command> commands() {
        return Map.of(
                "load_start", this::start,
                "load_take", arguments -> take(),
                "load_stop_writing", this::stopWriting,
                "load_end", this::end);
    }

    private JsonNode start(JsonNode arguments) {
        String topic = arguments.get("topic").asText();
        int partitions = arguments.get("partitions").asInt();
        double rate = arguments.get("rate").asDouble();
        writer = daemon(() -> write(topic, partitions, rate));
        reader = daemon(() -> read(topic, partitions));
        return NullNode.instance;
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private JsonNode stopWriting(JsonNode arguments) throws InterruptedException {
        isWriting = false;
        writer.join();
        return NullNode.instance;
    }

    private JsonNode end(JsonNode arguments) throws InterruptedException {
        isReading = false;
        reader.join(20_000);
        return NullNode.instance;
    }

    /** Everything that happened since the last time; times in seconds of the monotonic clock. */
    private JsonNode take() {
        ObjectNode found = Main.JSON.createObjectNode();
        found.put("sent", sent);
        synchronized (lock) {
            found.set("acks", acks);
            found.set("seen", seen);
            found.set("errors", errors);
            acks = Main.JSON.createArrayNode();
            seen = Main.JSON.createArrayNode();
            errors = Main.JSON.createArrayNode();
        }
        return found;
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private void fail(String what, Throwable error) {
        synchronized (lock) {
            errors.add(what + ": " + error);
        }
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    private void write(String topic, int partitions, double rate) {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                properties(), new ByteArraySerializer(), new ByteArraySerializer())) {
            double begin = now();
            for (long number = 0; isWriting; number++) {
                double wait = begin + number / rate - now();
                if (wait > 0) {
                    Thread.sleep((long) (wait * 1000), (int) (wait * 1e9 % 1e6));
                }
                send(producer, topic, (int) (number % partitions), number);
            }
            producer.flush();
        } catch (Exception error) {
            fail("write", error);
        }
    }

    private void send(
            KafkaProducer<byte[], byte[]> producer, String topic, int partition, long number) {
        byte[] value = Long.toString(number).getBytes(StandardCharsets.US_ASCII);
        double sentAt = now();
        sent = number + 1;
        producer.send(new ProducerRecord<>(topic, partition, null, value), (written, error) -> {
            if (error != null) {
                fail("record " + number, error);
                return;
            }
            synchronized (lock) {
                acks.addArray().add(number).add(written.partition()).add(written.offset())
                        .add(sentAt).add(now());
            }
        });
    }

    private void read(String topic, int partitions) {
        Properties properties = properties();
        properties.put("auto.offset.reset", "none");
        properties.put("enable.auto.commit", "false");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> wanted = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                wanted.add(new TopicPartition(topic, partition));
            }
            consumer.assign(wanted);
            wanted.forEach(partition -> consumer.seek(partition, 0));
            while (isReading) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    long number = Long.parseLong(
                            new String(record.value(), StandardCharsets.US_ASCII));
                    synchronized (lock) {
                        seen.addArray().add(record.partition()).add(record.offset())
                                .add(number).add(now());
                    }
                }
            }
        } catch (Exception error) {
            fail("read", error);
        }
    }
}
