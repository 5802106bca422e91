package dlog.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Produce and consume, with every byte string as base64. */
final class DataCommands {
    private static final int FETCHES_MIN = 10;

    private final String bootstrap;
    // Consumers that wait at a position between two commands, by the name the test gave.
    private final Map<String, KafkaConsumer<byte[], byte[]>> waiting = new HashMap<>();

    DataCommands(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    Map<String, Main.Command> commands() {
        return Map.of(
                "produce", this::produce,
                "consume", this::consume,
                "consume_from_rack", this::consumeFromRack,
                "open_at_end", this::openAtEnd,
                "poll", this::poll);
    }

    private Properties properties(JsonNode arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        JsonNode settings = arguments.get("settings");
        if (settings != null) {
            settings.fields().forEachRemaining(
                    entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        }
        return properties;
    }

    private static byte[] bytes(JsonNode node) throws IOException {
        return node == null || node.isNull() ? null : node.binaryValue();
    }

    private JsonNode produce(JsonNode arguments) throws Exception {
        String topic = arguments.get("topic").asText();
        ArrayNode offsets = Main.JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                properties(arguments), new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : arguments.get("records")) {
                sent.add(producer.send(recordOf(topic, record)));
            }
            producer.flush();
            for (Future<RecordMetadata> one : sent) {
                RecordMetadata metadata = one.get();
                offsets.add(metadata.hasOffset() ? metadata.offset() : -1);
            }
        }
        return offsets;
    }

    private static ProducerRecord<byte[], byte[]> recordOf(String topic, JsonNode node)
            throws IOException {
        JsonNode timestamp = node.get("timestamp_ms");
        int partition = node.get("partition").asInt();
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                topic,
                partition < 0 ? null : partition,
                timestamp.isNull() ? null : timestamp.asLong(),
                bytes(node.get("key")),
                bytes(node.get("value")));
        for (JsonNode header : node.get("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    private KafkaConsumer<byte[], byte[]> consumer(JsonNode arguments) {
        Properties properties = properties(arguments);
        properties.putIfAbsent("auto.offset.reset", "none");
        return new KafkaConsumer<>(
                properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static TopicPartition partitionOf(JsonNode arguments) {
        return new TopicPartition(
                arguments.get("topic").asText(), arguments.get("partition").asInt());
    }

    private JsonNode consume(JsonNode arguments) {
        TopicPartition partition = partitionOf(arguments);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(arguments)) {
            consumer.assign(List.of(partition));
            String start = arguments.get("start").asText();
            if (start.equals("earliest")) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, Long.parseLong(start));
            }
            return read(consumer, arguments);
        }
    }

    /** Reads until so many fetches went to one node; returns offsets, and requests by node. */
    private JsonNode consumeFromRack(JsonNode arguments) {
        TopicPartition partition = partitionOf(arguments);
        int count = arguments.get("count").asInt();
        String wanted = "node-" + arguments.get("node").asInt();
        long end = System.nanoTime() + arguments.get("timeout_ms").asLong() * 1_000_000;
        ObjectNode result = Main.JSON.createObjectNode();
        ArrayNode offsets = result.putArray("offsets");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(arguments)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            Map<String, Double> requests = Map.of();
            while ((offsets.size() < count || requests.getOrDefault(wanted, 0.0) <= FETCHES_MIN)
                    && System.nanoTime() < end) {
                for (ConsumerRecord<byte[], byte[]> one : consumer.poll(Duration.ofMillis(100))) {
                    offsets.add(one.offset());
                }
                requests = requestsByNode(consumer);
            }
            ObjectNode byNode = result.putObject("requests");
            requests.forEach(byNode::put);
        }
        return result;
    }

    private static Map<String, Double> requestsByNode(KafkaConsumer<byte[], byte[]> consumer) {
        Map<String, Double> found = new HashMap<>();
        consumer.metrics().forEach((name, metric) -> {
            if (name.group().equals("consumer-node-metrics") && name.name().equals("request-total")) {
                found.put(name.tags().get("node-id"), (Double) metric.metricValue());
            }
        });
        return found;
    }

    private JsonNode openAtEnd(JsonNode arguments) {
        TopicPartition partition = partitionOf(arguments);
        KafkaConsumer<byte[], byte[]> consumer = consumer(arguments);
        consumer.assign(List.of(partition));
        consumer.seekToEnd(List.of(partition));
        long position = consumer.position(partition);
        waiting.put(arguments.get("name").asText(), consumer);
        return Main.JSON.getNodeFactory().numberNode(position);
    }

    private JsonNode poll(JsonNode arguments) {
        KafkaConsumer<byte[], byte[]> consumer = waiting.remove(arguments.get("name").asText());
        try {
            return read(consumer, arguments);
        } finally {
            // An orderly close would first wait for the fetch that is parked at the server.
            consumer.close(Duration.ZERO);
        }
    }

    private static ArrayNode read(KafkaConsumer<byte[], byte[]> consumer, JsonNode arguments) {
        int count = arguments.get("count").asInt();
        long end = System.nanoTime() + arguments.get("timeout_ms").asLong() * 1_000_000;
        ArrayNode result = Main.JSON.createArrayNode();
        while (result.size() < count && System.nanoTime() < end) {
            long left = Math.max(1, (end - System.nanoTime()) / 1_000_000);
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(left))) {
                result.add(nodeOf(record));
            }
        }
        return result;
    }

    private static ObjectNode nodeOf(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = Main.JSON.createObjectNode();
        node.put("partition", record.partition());
        node.put("offset", record.offset());
        node.put("timestamp_ms", record.timestamp());
        node.put("key", record.key());
        node.put("value", record.value());
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(header.value());
        }
        return node;
    }
}
