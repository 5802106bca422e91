"""Schema of a node's configuration: every key, in sections.

Pure. The attribute path follows the dotted name (`segment.bytes` -> `config.segment.bytes`,
`frame.bytes.max` -> `config.frame.bytes_max`); durations end in `_ms`. `Config()` is what an empty
file gives. `dlogd.config.load` makes a `Config` from a file, `bounds` checks keys against each
other, `sample` writes `etc/dlog.yaml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dlogd.config import keys
from dlogd.config.choices import (
    AckMode,
    DirectIo,
    FlushPolicy,
    IoEngineKind,
    LogFormat,
    LogLevel,
    MembershipKind,
)
from dlogd.config.cluster_sections import (
    ElectionConfig,
    InternalConfig,
    LeaseConfig,
    MembershipConfig,
    RaftTimingsConfig,
    RefillConfig,
    ReplicaConfig,
    SerfConfig,
)
from dlogd.config.keys import BoundKey, key, keys_of, section
from dlogd.config.service_sections import (
    AckConfig,
    AdvertisedConfig,
    ClusterConfig,
    ConnectionsConfig,
    FrameConfig,
    HttpConfig,
    InflightConfig,
    LogLinesConfig,
    MessageConfig,
    NodeConfig,
    ProducerIdConfig,
    ShutdownConfig,
    TopicConfig,
)
from dlogd.config.storage_sections import (
    AppendConfig,
    DataConfig,
    DiskConfig,
    FlushConfig,
    IndexConfig,
    IoConfig,
    MetadataConfig,
    PreallocateConfig,
    ReadConfig,
    RecoveryConfig,
    RetentionConfig,
    ScrubConfig,
    SegmentConfig,
    StrayConfig,
)
from dlogd.config.units import Address, DiskReserve, NodeAt

__all__ = [
    "KEYS",
    "AckMode",
    "Address",
    "Config",
    "DirectIo",
    "DiskReserve",
    "FlushPolicy",
    "IoEngineKind",
    "LogFormat",
    "LogLevel",
    "MembershipKind",
    "NodeAt",
    "build",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that dlogd can be told, by sections."""

    node: NodeConfig = section(NodeConfig)
    cluster: ClusterConfig = section(ClusterConfig)
    controllers: tuple[NodeAt, ...] | None = key(
        "controllers",
        keys.NODES_AT,
        None,
        "The nodes that keep the metadata and vote on it: 1, 3 or 5, the same list on all nodes. "
        "The first start makes them the voters; later it is whom to ask first. Not set: this node "
        "is a cluster of its own.",
    )
    internal: InternalConfig = section(InternalConfig)
    listeners: tuple[Address, ...] = key(
        "listeners",
        keys.ADDRESSES,
        "127.0.0.1:9092",
        "Addresses for clients. The default is loopback, because nothing is encrypted yet. `[::]` "
        "listens to IPv6 and IPv4, `0.0.0.0` to IPv4 alone. With port 0 the system chooses.",
    )
    advertised: AdvertisedConfig = section(AdvertisedConfig)
    http: HttpConfig = section(HttpConfig)
    data: DataConfig = section(DataConfig)
    metadata: MetadataConfig = section(MetadataConfig)
    raft: RaftTimingsConfig = section(RaftTimingsConfig)
    lease: LeaseConfig = section(LeaseConfig)
    election: ElectionConfig = section(ElectionConfig)
    refill: RefillConfig = section(RefillConfig)
    membership: MembershipConfig = section(MembershipConfig)
    serf: SerfConfig = section(SerfConfig)
    replica: ReplicaConfig = section(ReplicaConfig)
    segment: SegmentConfig = section(SegmentConfig)
    index: IndexConfig = section(IndexConfig)
    preallocate: PreallocateConfig = section(PreallocateConfig)
    direct_io: DirectIo = key(
        "direct_io",
        keys.choice(DirectIo),
        "auto",
        "Whether segments bypass the page cache (O_DIRECT). `auto`: where the file system can; "
        "`on`: a file system that cannot is an error.",
    )
    io: IoConfig = section(IoConfig)
    flush: FlushConfig = section(FlushConfig)
    append: AppendConfig = section(AppendConfig)
    read: ReadConfig = section(ReadConfig)
    retention: RetentionConfig = section(RetentionConfig)
    stray: StrayConfig = section(StrayConfig)
    disk: DiskConfig = section(DiskConfig)
    recovery: RecoveryConfig = section(RecoveryConfig)
    scrub: ScrubConfig = section(ScrubConfig)
    ack: AckConfig = section(AckConfig)
    message: MessageConfig = section(MessageConfig)
    topic: TopicConfig = section(TopicConfig)
    frame: FrameConfig = section(FrameConfig)
    connections: ConnectionsConfig = section(ConnectionsConfig)
    inflight: InflightConfig = section(InflightConfig)
    producer_id: ProducerIdConfig = section(ProducerIdConfig)
    log: LogLinesConfig = section(LogLinesConfig)
    shutdown: ShutdownConfig = section(ShutdownConfig)


KEYS: dict[str, BoundKey] = keys_of(Config)
"""Every key by its dotted name, in the order of the sample file."""


def build(values: Mapping[str, Any], base: Config | None = None) -> Config:
    """Return `base` (or the defaults) with the typed values of some dotted names; no checks."""
    top: dict[str, Any] = {}
    by_section: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        bound = KEYS[name]
        if bound.section is None:
            top[bound.attribute] = value
        else:
            by_section.setdefault(bound.section, {})[bound.attribute] = value
    config = Config() if base is None else base
    for name, changes in by_section.items():
        top[name] = replace(getattr(config, name), **changes)
    return replace(config, **top)
