"""The state of the cluster as one immutable value.

Pure. Only `dlogd.metadata.machine` makes new images; everybody else reads them and reacts to what
`dlogd.metadata.delta` says has changed. Mappings and their values are never changed in place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from dlog.errors import WireError, error_for
from dlog.types import (
    NO_NODE,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicPartition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Where one listener of a node is reached."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistration:
    """One node as it registered at its last start."""

    node_id: NodeId
    # Raised at every start of the node; requests of an earlier life are refused (KIP-903).
    node_epoch: int
    directory_ids: tuple[UUID, ...]  # one per data directory (KIP-858)
    addresses: tuple[NodeAddress, ...]
    rack: str | None
    version: str  # of the software
    fenced: bool  # a fenced node leads nothing and gets no new replicas' leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """One partition of a topic.

    Invariant: `isr` is a subset of `replicas`; `leader` is in `isr`, or NO_NODE.
    """

    replicas: tuple[NodeId, ...]  # in order of preference
    isr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch

    @property
    def has_leader(self) -> bool:
        """Whether somebody leads it."""
        return self.leader != NO_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One topic; a re-created topic of the same name has another `topic_id`."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=dict)  # only what was set

    def partition(self, partition_id: int) -> PartitionImage | None:
        """Return a partition, None when there is none of that number."""
        if 0 <= partition_id < len(self.partitions):
            return self.partitions[partition_id]
        return None

    def topic_partition(self, partition_id: int) -> TopicPartition:
        """Return the name of one partition."""
        return TopicPartition(self.name, PartitionId(partition_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The command took effect with the image of `version`."""

    version: int
    # What the command made: the node epoch, the first producer id, the count of partitions; else 0.
    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The command changed nothing."""

    code: int
    message: str

    @property
    def error(self) -> WireError:
        """The refusal as an exception."""
        return error_for(self.code, self.message)

    @classmethod
    def of(cls, error: WireError) -> "Refused":
        """Make a refusal of an exception."""
        return cls(code=error.code, message=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nobody knows whether the command took effect; a repetition with its id is safe."""

    message: str


Outcome = Applied | Refused | Unknown

OUTCOMES_REMEMBERED = 1_000
"""Commands that are recognised when they come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """Everything that all nodes agree on, after `version` commands.

    Invariant: `topics` and `topics_by_id` hold the same topics.
    """

    version: int = 0
    cluster_id: str = ""  # empty until the first node has registered
    configs: Mapping[str, str] = field(default_factory=dict)  # cluster-wide, only what was set
    nodes: Mapping[NodeId, NodeRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    producer_id_next: int = 0
    # The outcomes of the last commands by command id, oldest first.
    outcomes: Mapping[UUID, Applied | Refused] = field(default_factory=dict)

    def partition(self, topic: str, partition_id: int) -> PartitionImage | None:
        """Return a partition, None when topic or partition is not there."""
        found = self.topics.get(topic)
        return None if found is None else found.partition(partition_id)


EMPTY_IMAGE = ClusterImage()
