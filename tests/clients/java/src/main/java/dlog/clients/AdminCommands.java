package dlog.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

/** The commands of Kafka's Admin client. */
final class AdminCommands implements AutoCloseable {
    private final Admin admin;

    AdminCommands(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("request.timeout.ms", "15000");
        properties.put("default.api.timeout.ms", "20000");
        admin = Admin.create(properties);
    }

    @Override
    public void close() {
        admin.close();
    }

    Map<String, Main.Command> commands() {
        Map<String, Main.Command> all = new HashMap<>();
        all.put("create_topic", this::createTopic);
        all.put("delete_topic", this::deleteTopic);
        all.put("create_partitions", this::createPartitions);
        all.put("describe_topic", this::describeTopic);
        all.put("list_topics", arguments -> Main.JSON.valueToTree(admin.listTopics().names().get()));
        all.put("describe_configs", this::describeConfigs);
        all.put("alter_configs", this::alterConfigs);
        all.put("delete_records", this::deleteRecords);
        all.put("describe_cluster", this::describeCluster);
        all.put("describe_log_dirs", this::describeLogDirs);
        all.put("list_offset", this::listOffset);
        return all;
    }

    private JsonNode createTopic(JsonNode arguments) throws Exception {
        Map<String, String> configs = new HashMap<>();
        arguments.get("configs").fields().forEachRemaining(
                entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        int partitions = arguments.get("partitions").asInt();
        NewTopic topic = new NewTopic(
                arguments.get("topic").asText(), Optional.of(partitions), Optional.empty());
        admin.createTopics(List.of(topic.configs(configs))).all().get();
        return NullNode.instance;
    }

    private JsonNode deleteTopic(JsonNode arguments) throws Exception {
        admin.deleteTopics(List.of(arguments.get("topic").asText())).all().get();
        return NullNode.instance;
    }

    private JsonNode createPartitions(JsonNode arguments) throws Exception {
        NewPartitions wanted = NewPartitions.increaseTo(arguments.get("partitions").asInt());
        admin.createPartitions(Map.of(arguments.get("topic").asText(), wanted)).all().get();
        return NullNode.instance;
    }

    private JsonNode describeTopic(JsonNode arguments) throws Exception {
        String name = arguments.get("topic").asText();
        TopicDescription topic =
                admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
        ObjectNode result = Main.JSON.createObjectNode();
        result.put("topic_id", topic.topicId().toString());
        ArrayNode partitions = result.putArray("leaders");
        for (TopicPartitionInfo partition : topic.partitions()) {
            partitions.add(partition.leader() == null ? -1 : partition.leader().id());
        }
        return result;
    }

    private static ConfigResource topicResource(JsonNode arguments) {
        return new ConfigResource(ConfigResource.Type.TOPIC, arguments.get("topic").asText());
    }

    private JsonNode describeConfigs(JsonNode arguments) throws Exception {
        ConfigResource resource = topicResource(arguments);
        ObjectNode result = Main.JSON.createObjectNode();
        for (ConfigEntry entry :
                admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            result.put(entry.name(), entry.value());
        }
        return result;
    }

    private JsonNode alterConfigs(JsonNode arguments) throws Exception {
        List<AlterConfigOp> operations = new ArrayList<>();
        arguments.get("configs").fields().forEachRemaining(entry -> {
            boolean delete = entry.getValue().isNull();
            ConfigEntry config =
                    new ConfigEntry(entry.getKey(), delete ? null : entry.getValue().asText());
            operations.add(new AlterConfigOp(
                    config, delete ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET));
        });
        admin.incrementalAlterConfigs(Map.of(topicResource(arguments), operations)).all().get();
        return NullNode.instance;
    }

    private static TopicPartition partitionOf(JsonNode arguments) {
        return new TopicPartition(
                arguments.get("topic").asText(), arguments.get("partition").asInt());
    }

    private JsonNode deleteRecords(JsonNode arguments) throws Exception {
        TopicPartition partition = partitionOf(arguments);
        RecordsToDelete before = RecordsToDelete.beforeOffset(arguments.get("offset").asLong());
        long lowWatermark = admin.deleteRecords(Map.of(partition, before))
                .lowWatermarks().get(partition).get().lowWatermark();
        return Main.JSON.getNodeFactory().numberNode(lowWatermark);
    }

    private JsonNode describeCluster(JsonNode arguments) throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        ObjectNode result = Main.JSON.createObjectNode();
        result.put("cluster_id", cluster.clusterId().get());
        result.put("controller", cluster.controller().get().id());
        ArrayNode nodes = result.putArray("nodes");
        cluster.nodes().get().forEach(node -> nodes.add(node.id()));
        return result;
    }

    private JsonNode describeLogDirs(JsonNode arguments) throws Exception {
        int node = admin.describeCluster().nodes().get().iterator().next().id();
        ObjectNode result = Main.JSON.createObjectNode();
        Map<String, LogDirDescription> folders =
                admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        for (LogDirDescription folder : folders.values()) {
            folder.replicaInfos().forEach(
                    (partition, replica) -> result.put(partition.toString(), replica.size()));
        }
        return result;
    }

    private JsonNode listOffset(JsonNode arguments) throws Exception {
        TopicPartition partition = partitionOf(arguments);
        String at = arguments.get("at").asText();
        OffsetSpec wanted = switch (at) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max_timestamp" -> OffsetSpec.maxTimestamp();
            default -> OffsetSpec.forTimestamp(Long.parseLong(at));
        };
        long offset = admin.listOffsets(Map.of(partition, wanted))
                .partitionResult(partition).get().offset();
        return Main.JSON.getNodeFactory().numberNode(offset);
    }
}
