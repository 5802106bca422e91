"""Values in which a cluster describes itself to clients.

Pure definitions; `dlog.client.cluster.cluster` and `dlog.client.admin` fill them from responses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from dlog.errors import NONE
from dlog.transport import Address


class NodeView(NamedTuple):
    """One node as it is advertised."""

    node_id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition of a topic; `leader` is -1 when there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    error_code: int = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLeader:
    """Who leads a partition, as far as the client knows; `leader_epoch` is -1 when not told."""

    node_id: int
    address: Address
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic; with an error code there is nothing else to rely on."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionView, ...]
    error_code: int = NONE

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Nodes and topics as one node knew them at one moment."""

    cluster_id: str | None
    controller_id: int
    nodes: Mapping[int, NodeView]
    topics: Mapping[str, TopicView] = field(default_factory=dict)


class ConfigEntry(NamedTuple):
    """One config of a topic, a node or the cluster. Sources and types are Kafka's numbers."""

    name: str
    value: str | None
    source: int
    read_only: bool
    is_sensitive: bool
    config_type: int
    doc: str | None

    @property
    def is_own(self) -> bool:
        """Whether it was set on the topic itself (DescribeConfigs source 1)."""
        return self.source == 1

    @property
    def is_default(self) -> bool:
        """Whether nobody set it (DescribeConfigs source 5)."""
        return self.source == 5


class LogDirView(NamedTuple):
    """One data directory of a node; sizes are -1 where the node does not know them."""

    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int
    partitions: tuple[tuple[str, int, int], ...]
    """(topic, partition, bytes)."""


class ProducedView(NamedTuple):
    """Where a record set was appended."""

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


class FetchedView(NamedTuple):
    """What was read from a partition; the last batch of `records` may be cut short."""

    high_watermark: int
    log_start_offset: int
    records: memoryview
