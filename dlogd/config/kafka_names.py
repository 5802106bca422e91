"""Kafka's names for keys of a node's file, those whose meaning is the same.

Pure. Tools ask a broker for these names. Left out are names whose meaning dlog does not have, and
names that every cluster and topic config has already (`dlogd.metadata.state.topic_configs`).
"""

KAFKA_NAMES = {
    "advertised.listeners": "advertised.address",
    "broker.id": "node.id",
    "broker.rack": "node.rack",
    "node.id": "node.id",
    "listeners": "listeners",
    "num.partitions": "topic.partitions.default",
    "default.replication.factor": "topic.replication.default",
    "auto.create.topics.enable": "topic.auto_create",
    "log.dirs": "data.directories",
    "log.dir": "data.directories",
    "metadata.log.dir": "metadata.directory",
    "socket.request.max.bytes": "frame.bytes.max",
    "queued.max.request.bytes": "inflight.bytes.max",
    "max.connections": "connections.max",
    "max.connections.per.ip": "connections.per_ip.max",
    "max.connection.creation.rate": "connections.rate",
    "connections.max.idle.ms": "connections.idle.timeout",
    "producer.id.expiration.ms": "producer_id.expiry",
}
"""The key of the file that gives the value, by Kafka's name for the value."""
