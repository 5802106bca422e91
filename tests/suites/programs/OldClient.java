// Old Java clients against a server: reads a plan as lines from standard input, writes what it saw.
// Lines, because kafka-clients brings no JSON: `bootstrap`, `topic`, `codec`, then `batch`,
// `record TIMESTAMP KEY VALUE [NAME VALUE]...` (base64, `-` for null) and `time MS`.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.Scanner;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class OldClient {
    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text.substring(1));
    }

    private static String text(byte[] data) {
        return data == null ? "-" : "+" + Base64.getEncoder().encodeToString(data);
    }

    public static void main(String[] arguments) throws Exception {
        Scanner input = new Scanner(System.in, "UTF-8");
        String bootstrap = input.nextLine(), topic = input.nextLine(), codec = input.nextLine();
        List<List<ProducerRecord<byte[], byte[]>>> batches = new ArrayList<>();
        List<Long> times = new ArrayList<>();
        while (input.hasNextLine()) {
            String[] words = input.nextLine().split(" ");
            if (words[0].equals("batch")) {
                batches.add(new ArrayList<>());
            } else if (words[0].equals("record")) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                        topic, 0, Long.parseLong(words[1]), bytes(words[2]), bytes(words[3]));
                for (int word = 4; word < words.length; word += 2) {
                    record.headers().add(words[word], bytes(words[word + 1]));
                }
                batches.get(batches.size() - 1).add(record);
            } else {
                times.add(Long.parseLong(words[1]));
            }
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", codec);
        settings.put("acks", "all");
        settings.put("linger.ms", "200");
        settings.put("batch.size", "900000");
        int count = 0;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (List<ProducerRecord<byte[], byte[]>> batch : batches) {
                List<Future<?>> answers = new ArrayList<>();
                for (ProducerRecord<byte[], byte[]> each : batch) {
                    answers.add(producer.send(each));
                }
                producer.flush();
                for (Future<?> each : answers) {
                    each.get();
                }
                count += batch.size();
            }
        }
        if (times.isEmpty()) {
            return; // the plan only wants it to produce
        }
        settings.put("enable.auto.commit", "false");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(Collections.singletonList(partition));
            consumer.seek(partition, 0);
            long end = System.nanoTime() + 30_000_000_000L;
            int found = 0;
            while (found < count && System.nanoTime() < end) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(1))) {
                    found += 1;
                    StringBuilder line = new StringBuilder("record " + each.timestamp() + " "
                            + text(each.key()) + " " + text(each.value()));
                    for (Header one : each.headers()) {
                        line.append(" " + one.key() + " " + text(one.value()));
                    }
                    System.out.println(line);
                }
            }
            for (Long time : times) {
                OffsetAndTimestamp at = consumer
                        .offsetsForTimes(Collections.singletonMap(partition, time)).get(partition);
                System.out.println("offset " + (at == null ? -1 : at.offset()));
            }
        }
    }
}
