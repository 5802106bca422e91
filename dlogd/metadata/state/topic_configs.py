"""Table of topic configs: Kafka's names, types, meanings, bounds, reasons.

Pure. Every key can be set for a topic, and for the whole cluster under its `cluster_name` (Kafka's
name for the broker's default). A key without effect takes every value that Kafka takes, unless the
value promises what this software does not do. `dlogd.metadata.state.effective_configs` says which
value holds.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dlog.errors import InvalidConfigError
from dlog.types import NodeId
from dlogd.config.choices import AckMode, FlushPolicy
from dlogd.config.kafka_names import KAFKA_NAMES
from dlogd.config.schema import KEYS, Config
from dlogd.metadata.state import throttled_replicas
from dlogd.metadata.state.config_values import (
    BOOLEAN,
    INT64_MAX,
    ConfigType,
    ValueKind,
    choice,
    double,
    integer,
    long,
    only,
    word_list,
)


@dataclass(frozen=True, slots=True)
class TopicConfigKey:
    """One config: its names, kind, default and documentation."""

    name: str
    cluster_name: str
    kind: ValueKind
    # The value where nobody sets one; for keys with a `node_key` that key's own default.
    default: str
    doc: str
    # The key of the node's file that gives the default, None where it cannot.
    node_key: str | None = None

    @property
    def type(self) -> ConfigType:
        """Type as DescribeConfigs reports it."""
        return self.kind.type

    def node_value(self, config: Config) -> str | None:
        """Return what the node's file says, as this config writes it."""
        return None if self.node_key is None else _text_of(KEYS[self.node_key].value_in(config))


def _text_of(value: Any) -> str:
    return str(value.value) if isinstance(value, AckMode | FlushPolicy) else str(value)


def _from_node(
    name: str, cluster_name: str, kind: ValueKind, node_key: str, doc: str
) -> TopicConfigKey:
    default = _text_of(KEYS[node_key].key.default)
    return TopicConfigKey(name, cluster_name, kind, default, doc, node_key)


def _inert(
    name: str, cluster_name: str, kind: ValueKind, value: str, reason: str
) -> TopicConfigKey:
    """Return a key of which only the value that holds anyway is accepted."""
    return TopicConfigKey(name, cluster_name, only(kind, value, reason), value, f"Fixed: {reason}")


def _accept_cleanup(words: tuple[str, ...]) -> None:
    for word in words:
        if word not in ("delete", "compact"):
            raise ValueError("String must be one of: delete, compact")
    if not words:
        raise ValueError("only delete is possible; to keep all, set retention.ms to -1")
    if "compact" in words:
        raise ValueError("compaction is not available in this version, only delete")


def _level(low: int, high: int, *also: int) -> ValueKind:
    """Return the kind of a codec's levels, as Kafka bounds them."""
    number = integer(min((low, *also)), high)

    def parse(text: str) -> int:
        value = int(number.parse(text))
        if value < low and value not in also:
            raise ValueError(f"Value must be at least {low}")
        return value

    return ValueKind(ConfigType.INT, parse, bounds=f"from {low} to {high}")


def _hint_only(
    name: str, cluster_name: str, kind: ValueKind, default: str, reason: str
) -> TopicConfigKey:
    """Return a key that clients may set, and that changes nothing which they can see."""
    return TopicConfigKey(name, cluster_name, kind, default, f"Without effect: {reason}.")


_CHOICES_OF_FLUSH = choice(*(policy.value for policy in FlushPolicy))
_CHOICES_OF_ACK = choice(*(mode.value for mode in AckMode))
_CODECS = choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
_OPAQUE = "batches are kept as the producer compressed them"
_NO_TIERS = "there is no remote storage"
_THROTTLED = (
    "Replicas as `partition:node,...`, or `*`, that {}"
    " at no more than `{}.replication.throttled.rate`; replicas in sync never wait."
)
_NOT_COMPACTED = "Kept for compaction, which is not available in this version; no effect yet."

_KEYS = (
    # Retention and segments.
    TopicConfigKey(
        "cleanup.policy", "log.cleanup.policy", word_list(_accept_cleanup), "delete",
        "Old segments: `delete` drops them by age and size.",
    ),
    _from_node(
        "retention.ms", "log.retention.ms", long(-1), "retention.time",
        "Segments whose newest record is older are dropped; -1: no limit.",
    ),
    _from_node(
        "retention.bytes", "log.retention.bytes", long(-1), "retention.bytes",
        "Old segments are dropped while a partition is larger; -1: no limit.",
    ),
    _from_node(
        "segment.bytes", "log.segment.bytes", integer(1024), "segment.bytes",
        "A segment is closed before it grows beyond this.",
    ),
    _from_node(
        "segment.ms", "log.roll.ms", long(1), "segment.ms",
        "A segment is closed at this age even when it is small.",
    ),
    _hint_only(
        "segment.index.bytes", "log.index.size.max.bytes", integer(4), str(10 << 20),
        "an index grows with its segment, 12 bytes per `index.interval.bytes`",
    ),
    _from_node(
        "index.interval.bytes", "log.index.interval.bytes", integer(0), "index.interval.bytes",
        "One index entry per so many bytes of log; more than 4 MiB count as 4 MiB.",
    ),
    _from_node(
        "preallocate.bytes", "preallocate.bytes", integer(0), "preallocate.bytes",
        "Step in which an active segment takes disk space ahead of its tail; 0: none.",
    ),
    _hint_only(
        "preallocate", "log.preallocate", BOOLEAN, "false",
        "`preallocate.bytes` says how far ahead space is taken",
    ),
    _hint_only(
        "segment.jitter.ms", "log.roll.jitter.ms", long(0), "0",
        "a segment is closed at `segment.ms`",
    ),
    _hint_only(
        "file.delete.delay.ms", "log.segment.delete.delay.ms", long(0), "60000",
        "a file is deleted when no reader holds it",
    ),
    # Durability.
    _from_node(
        "flush.policy", "flush.policy", _CHOICES_OF_FLUSH, "flush.policy",
        "When appended records are flushed: `always` (before the acknowledgement), `interval`, "
        "`never`.",
    ),
    _from_node(
        "flush.interval.ms", "flush.interval.ms", long(1), "flush.interval",
        "Longest time that data stays unflushed under `flush.policy=interval`.",
    ),
    TopicConfigKey(
        "flush.messages", "log.flush.interval.messages", long(1), str(INT64_MAX),
        "Without effect under `flush.policy=always`. Under another policy any number turns the"
        " policy into `always`.",
    ),
    TopicConfigKey(
        "flush.ms", "log.flush.interval.ms", long(0), str(INT64_MAX),
        "Without effect under `flush.policy=always`. Under another policy data is flushed at least"
        " this often; 0 turns the policy into `always`.",
    ),
    TopicConfigKey(
        "min.insync.replicas", "min.insync.replicas", integer(1), "1",
        "Replicas that must be in sync for a write with acks=all; of a topic that has fewer, all.",
    ),
    TopicConfigKey(
        "unclean.leader.election.enable", "unclean.leader.election.enable", BOOLEAN, "false",
        "Whether a replica that is not in sync may lead when no other is left: loses data. "
        "If no replica is proven to be in sync, as after an unclean stop of all, the last leader "
        "leads again in any case.",
    ),
    _from_node(
        "ack.default", "ack.default", _CHOICES_OF_ACK, "ack.default",
        "Default of dlog's own clients: none, leader, all.",
    ),
    _from_node(
        "ack.floor", "ack.floor", _CHOICES_OF_ACK, "ack.floor",
        "Weaker produce requests are raised to this.",
    ),
    _from_node(
        "replica.lag.time.max.ms", "replica.lag.time.max.ms", long(1), "replica.lag.time.max",
        "A follower that has not had all that its leader has for so long leaves the ISR.",
    ),
    # Batches.
    _from_node(
        "max.message.bytes", "message.max.bytes", integer(0), "message.bytes.max",
        "Largest record batch, compressed. A batch that a node cannot hold is refused in any case.",
    ),
    TopicConfigKey(
        "message.timestamp.type", "log.message.timestamp.type",
        choice("CreateTime", "LogAppendTime"), "CreateTime",
        "Whether records keep the producer's time or get that of the append.",
    ),
    TopicConfigKey(
        "message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms",
        long(0), str(INT64_MAX),
        "How far a producer's timestamp may lie in the past.",
    ),
    TopicConfigKey(
        "message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms",
        long(0), "3600000",
        "How far a producer's timestamp may lie in the future.",
    ),
    TopicConfigKey(
        "compressed.records.validate", "log.compressed.records.validate", BOOLEAN, "false",
        "Whether compressed records are unpacked and checked before the append, as plain ones are:"
        " what no reader can decode is refused. Costs the leader CPU for each batch.",
    ),
    _hint_only("compression.type", "compression.type", _CODECS, "producer", _OPAQUE),
    _hint_only("compression.gzip.level", "compression.gzip.level", _level(1, 9, -1), "-1", _OPAQUE),
    _hint_only("compression.lz4.level", "compression.lz4.level", _level(1, 17), "9", _OPAQUE),
    _hint_only(
        "compression.zstd.level", "compression.zstd.level", _level(-131_072, 22), "3", _OPAQUE
    ),
    # Compaction: without effect while `cleanup.policy` can only be `delete`.
    TopicConfigKey(
        "delete.retention.ms", "log.cleaner.delete.retention.ms",
        long(0), "86400000", _NOT_COMPACTED,
    ),
    TopicConfigKey(
        "min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms",
        long(0), "0", _NOT_COMPACTED,
    ),
    TopicConfigKey(
        "max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms",
        long(1), str(INT64_MAX), _NOT_COMPACTED,
    ),
    TopicConfigKey(
        "min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio",
        double(0, 1), "0.5", _NOT_COMPACTED,
    ),
    # Replication quotas and tiers.
    TopicConfigKey(
        "leader.replication.throttled.replicas", "leader.replication.throttled.replicas",
        word_list(throttled_replicas.accept), "",
        _THROTTLED.format("send to followers while they lead", "leader"),
    ),
    TopicConfigKey(
        "follower.replication.throttled.replicas", "follower.replication.throttled.replicas",
        word_list(throttled_replicas.accept), "",
        _THROTTLED.format("fetch from their leader", "follower"),
    ),
    _inert(
        "remote.storage.enable", "remote.storage.enable", BOOLEAN, "false", _NO_TIERS
    ),
    _hint_only("remote.log.copy.disable", "remote.log.copy.disable", BOOLEAN, "false", _NO_TIERS),
    _hint_only(
        "remote.log.delete.on.disable", "remote.log.delete.on.disable", BOOLEAN, "false", _NO_TIERS
    ),
    _hint_only("local.retention.ms", "log.local.retention.ms", long(-2), "-2", _NO_TIERS),
    _hint_only("local.retention.bytes", "log.local.retention.bytes", long(-2), "-2", _NO_TIERS),
)  # fmt: skip

TOPIC_CONFIGS: dict[str, TopicConfigKey] = {key.name: key for key in _KEYS}
"""Every config by the name that it has for a topic."""

_NODE_KEYS = (
    TopicConfigKey(
        "leader.replication.throttled.rate", "leader.replication.throttled.rate",
        long(0), str(INT64_MAX),
        "Bytes per second that a node sends at most to followers of the replicas in"
        " `leader.replication.throttled.replicas`.",
    ),
    TopicConfigKey(
        "follower.replication.throttled.rate", "follower.replication.throttled.rate",
        long(0), str(INT64_MAX),
        "Bytes per second that a node fetches at most for its replicas in"
        " `follower.replication.throttled.replicas`.",
    ),
)  # fmt: skip

NODE_CONFIGS: dict[str, TopicConfigKey] = {key.name: key for key in _NODE_KEYS}
"""What single nodes can have at run time, and the whole cluster for all of them; no topic."""

CLUSTER_CONFIGS: dict[str, TopicConfigKey] = {
    **{key.cluster_name: key for key in _KEYS},
    **NODE_CONFIGS,
}
"""Every config by the name that it has for the whole cluster."""


def name_for_node(name: str, node_id: NodeId) -> str:
    """Return the name under which the metadata keeps what a single node has of NODE_CONFIGS."""
    return f"{name}@{node_id}"


def is_of_a_node(name: str) -> bool:
    """Whether `name_for_node` made this name, of which the cluster itself has none."""
    return "@" in name


def validate_topic(configs: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for the first config that no topic can have."""
    for name, value in configs.items():
        _validate(name, value, TOPIC_CONFIGS, "topic")


def validate_cluster(configs: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for the first config that no cluster can have."""
    for name, value in configs.items():
        _validate(name, value, CLUSTER_CONFIGS, "cluster")


def validate_stored(configs: Mapping[str, str]) -> None:
    """Do as `validate_cluster`, also for what the metadata keeps for single nodes."""
    for name, value in configs.items():
        of_node, _, node_id = name.partition("@")
        is_of_node = node_id.isdecimal() and of_node in NODE_CONFIGS
        _validate(of_node if is_of_node else name, value, CLUSTER_CONFIGS, "cluster")


def _validate(name: str, value: str, table: Mapping[str, TopicConfigKey], scope: str) -> None:
    key = table.get(name)
    if key is None:
        raise _unknown(name, table, scope)
    try:
        key.kind.parse(value)
    except ValueError as error:
        shown = value if len(value) <= 80 else f"{value[:80]}..."
        raise InvalidConfigError(
            f"Invalid value {shown} for configuration {name}: {error}"
        ) from None


def check_deleted(name: str, *, of_topic: bool) -> None:
    """Raise InvalidConfigError for the name of a config that no topic, or no cluster, can have."""
    table, scope = (TOPIC_CONFIGS, "topic") if of_topic else (CLUSTER_CONFIGS, "cluster")
    if name not in table:
        raise _unknown(name, table, scope)


def _unknown(name: str, table: Mapping[str, TopicConfigKey], scope: str) -> InvalidConfigError:
    return InvalidConfigError(f"Unknown {scope} config name: {name}{_hint(name, table)}")


def _hint(name: str, table: Mapping[str, TopicConfigKey]) -> str:
    """Return a suggestion: where else it is set, the other scope's name, or the nearest one."""
    for key in _KEYS:
        if name in (key.name, key.cluster_name):
            return f"; here it is {key.name if table is TOPIC_CONFIGS else key.cluster_name}"
    file_key = KAFKA_NAMES.get(name, name)
    if file_key in KEYS:
        return f"; {file_key} in the file of each node sets it"
    near: Iterable[str] = difflib.get_close_matches(name[:100], table, n=1, cutoff=0.7)
    return "".join(f"; did you mean {each}?" for each in near)
