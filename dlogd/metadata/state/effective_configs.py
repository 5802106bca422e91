"""Effective configs of a topic, and the source of each value.

Pure. Order of sources, the first that has a value wins: topic, cluster, the node's file, default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dlog.types import NodeId
from dlogd.config.bounds import FRAME_OVERHEAD_BYTES
from dlogd.config.choices import AckMode, FlushPolicy
from dlogd.config.schema import KEYS, Config
from dlogd.metadata.state.config_values import INT64_MAX, ConfigSource, ConfigType
from dlogd.metadata.state.throttled_replicas import ThrottledReplicas, throttled
from dlogd.metadata.state.topic_configs import (
    CLUSTER_CONFIGS,
    NODE_CONFIGS,
    TOPIC_CONFIGS,
    TopicConfigKey,
    name_for_node,
)

INDEX_INTERVAL_MAX = 4 << 20
"""Bytes; well below the largest write, which ends at an entry: recovery knows torn ones by that."""


class TimestampType(Enum):
    """Whose time records carry."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveTopicConfig:
    """The values that hold for one topic on one node."""

    retention_ms: int  # -1: no limit
    retention_bytes: int  # -1: no limit
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    preallocate_bytes: int
    flush_policy: FlushPolicy
    flush_interval_ms: int
    min_insync_replicas: int
    unclean_leader_election: bool
    ack_default: AckMode  # never weaker than the floor
    ack_floor: AckMode
    max_message_bytes: int  # never more than the node can hold
    timestamp_type: TimestampType
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    opens_compressed: bool
    replica_lag_time_max_ms: int
    leader_throttled: ThrottledReplicas
    follower_throttled: ThrottledReplicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """One source's value, under the name that it has there."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One config as DescribeConfigs reports it."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool
    doc: str
    synonyms: tuple[ConfigSynonym, ...]  # the one that holds first
    sensitive: bool = False


def _synonyms(
    key: TopicConfigKey, topic: Mapping[str, str], cluster: Mapping[str, str], node: Config
) -> list[ConfigSynonym]:
    """Return all values that there are for a key, the one that holds first."""
    found = []
    if (value := topic.get(key.name)) is not None:
        found.append(ConfigSynonym(name=key.name, value=value, source=ConfigSource.TOPIC))
    if (value := cluster.get(key.cluster_name)) is not None:
        found.append(ConfigSynonym(name=key.cluster_name, value=value, source=ConfigSource.CLUSTER))
    value = key.node_value(node)
    if key.node_key is not None and value is not None and value != key.default:
        found.append(ConfigSynonym(name=key.node_key, value=value, source=ConfigSource.NODE_FILE))
    found.append(
        ConfigSynonym(name=key.cluster_name, value=key.default, source=ConfigSource.DEFAULT)
    )
    return found


def _value(name: str, topic: Mapping[str, str], cluster: Mapping[str, str], node: Config) -> Any:
    """Return the typed value that holds; a stored one that this version refuses is passed over."""
    key = TOPIC_CONFIGS[name]
    for synonym in _synonyms(key, topic, cluster, node):
        try:
            return key.kind.parse(synonym.value)
        except ValueError:
            continue
    return key.kind.parse(key.default)


def _flushing(
    policy: FlushPolicy, interval_ms: int, messages: int, ms: int
) -> tuple[FlushPolicy, int]:
    """Return the policy and the interval that keep what `flush.messages` and `flush.ms` say, too.

    Neither ever weakens the policy. Records are not counted: a bound on them is kept by `always`.
    """
    if policy is FlushPolicy.ALWAYS or messages < INT64_MAX or ms == 0:
        return FlushPolicy.ALWAYS, interval_ms
    if ms == INT64_MAX:
        return policy, interval_ms
    return FlushPolicy.INTERVAL, ms if policy is FlushPolicy.NEVER else min(ms, interval_ms)


def batch_bytes_max(node: Config) -> int:
    """Return the largest batch that fits the node's frames and append memory."""
    return min(node.frame.bytes_max - FRAME_OVERHEAD_BYTES, node.append.memory_bytes // 2)


def resolve(
    topic: Mapping[str, str], cluster: Mapping[str, str], node: Config
) -> EffectiveTopicConfig:
    """Return the values that hold for a topic with these configs in this cluster on this node."""

    def value(name: str) -> Any:
        return _value(name, topic, cluster, node)

    flush_policy, flush_interval_ms = _flushing(
        FlushPolicy(value("flush.policy")),
        value("flush.interval.ms"),
        value("flush.messages"),
        value("flush.ms"),
    )
    floor = AckMode(value("ack.floor"))
    default = AckMode(value("ack.default"))
    return EffectiveTopicConfig(
        retention_ms=value("retention.ms"),
        retention_bytes=value("retention.bytes"),
        segment_bytes=value("segment.bytes"),
        segment_ms=value("segment.ms"),
        # Kafka's 0 means an entry for each batch, which 1 does as well. A write ends at an entry.
        index_interval_bytes=min(max(1, value("index.interval.bytes")), INDEX_INTERVAL_MAX),
        preallocate_bytes=min(value("preallocate.bytes"), value("segment.bytes")),
        flush_policy=flush_policy,
        flush_interval_ms=flush_interval_ms,
        min_insync_replicas=value("min.insync.replicas"),
        unclean_leader_election=value("unclean.leader.election.enable"),
        ack_default=default if default.strength >= floor.strength else floor,
        ack_floor=floor,
        max_message_bytes=min(value("max.message.bytes"), batch_bytes_max(node)),
        timestamp_type=TimestampType(value("message.timestamp.type")),
        timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
        opens_compressed=value("compressed.records.validate"),
        replica_lag_time_max_ms=value("replica.lag.time.max.ms"),
        leader_throttled=throttled(value("leader.replication.throttled.replicas")),
        follower_throttled=throttled(value("follower.replication.throttled.replicas")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottledRates:
    """Bytes per second that a node replicates at most, of throttled replicas."""

    leader: int
    follower: int


def throttled_rates(cluster: Mapping[str, str], node_id: NodeId) -> ThrottledRates:
    """Return the rates that hold on a node; INT64_MAX: no limit."""

    def value(name: str) -> int:
        key = NODE_CONFIGS[name]
        for text in (cluster.get(name_for_node(name, node_id)), cluster.get(name)):
            try:
                if text is not None:
                    return int(key.kind.parse(text))
            except ValueError:
                continue
        return int(key.kind.parse(key.default))

    return ThrottledRates(
        leader=value("leader.replication.throttled.rate"),
        follower=value("follower.replication.throttled.rate"),
    )


RESOLVED_MAX = 1_000


class Resolver:
    """`resolve` with a memory: most topics of a cluster set the same few configs, or none."""

    def __init__(self) -> None:
        self._around: tuple[object, object] = (None, None)
        self._known: dict[tuple[tuple[str, str], ...], EffectiveTopicConfig] = {}

    def resolve(
        self, topic: Mapping[str, str], cluster: Mapping[str, str], node: Config
    ) -> EffectiveTopicConfig:
        """Return what `resolve` returns."""
        if self._around[0] is not cluster or self._around[1] is not node:
            self._around = (cluster, node)
            self._known.clear()
        key = tuple(topic.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= RESOLVED_MAX:
                self._known.clear()
            found = self._known[key] = resolve(topic, cluster, node)
        return found


def _entry(name: str, key: TopicConfigKey, synonyms: list[ConfigSynonym]) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=synonyms[0].value,
        source=synonyms[0].source,
        type=key.type,
        read_only=False,
        doc=key.doc,
        synonyms=tuple(synonyms),
    )


def describe_topic(
    topic: Mapping[str, str], cluster: Mapping[str, str], node: Config
) -> list[ConfigEntry]:
    """Return all configs of a topic, ordered by name."""
    return [
        _entry(name, key, _synonyms(key, topic, cluster, node))
        for name, key in sorted(TOPIC_CONFIGS.items())
    ]


def describe_cluster(cluster: Mapping[str, str]) -> list[ConfigEntry]:
    """Return what is set for the whole cluster, ordered by name."""
    return [
        _entry(
            name,
            CLUSTER_CONFIGS[name],
            [ConfigSynonym(name=name, value=value, source=ConfigSource.CLUSTER)],
        )
        for name, value in sorted(cluster.items())
        if name in CLUSTER_CONFIGS
    ]


def describe_throttles(
    cluster: Mapping[str, str], node_id: NodeId, *, set_only: bool = False
) -> list[ConfigEntry]:
    """Return what a node has of NODE_CONFIGS; with `set_only` what is set for it alone."""
    entries = []
    for name, key in sorted(NODE_CONFIGS.items()):
        found = []
        if (value := cluster.get(name_for_node(name, node_id))) is not None:
            found.append(ConfigSynonym(name=name, value=value, source=ConfigSource.NODE))
        elif set_only:
            continue
        if (value := cluster.get(name)) is not None:
            found.append(ConfigSynonym(name=name, value=value, source=ConfigSource.CLUSTER))
        found.append(ConfigSynonym(name=name, value=key.default, source=ConfigSource.DEFAULT))
        entries.append(_entry(name, key, found))
    return entries


def describe_node(cluster: Mapping[str, str], node: Config) -> list[ConfigEntry]:
    """Return a node's configs, ordered by name: defaults of topics, and its file (read only)."""
    entries = {
        name: _entry(name, key, _synonyms(key, {}, cluster, node))
        for name, key in CLUSTER_CONFIGS.items()
        if name not in NODE_CONFIGS
    }
    for name in KEYS:
        if name not in entries:
            entries[name] = _file_entry(name, node)
    return [entries[name] for name in sorted(entries)]


def _file_entry(name: str, node: Config) -> ConfigEntry:
    bound = KEYS[name]
    value = bound.value_in(node)
    source = ConfigSource.DEFAULT if value == bound.key.default else ConfigSource.NODE_FILE
    if value is None:
        text = None
    elif bound.key.kind.is_list:
        text = ",".join(bound.key.kind.format(each) for each in value)
    else:
        text = bound.key.kind.format(value)
    return ConfigEntry(
        name=name,
        value=text,
        source=source,
        type=ConfigType.LIST if bound.key.kind.is_list else ConfigType.STRING,
        read_only=True,
        doc=bound.key.doc,
        synonyms=() if text is None else (ConfigSynonym(name=name, value=text, source=source),),
    )
