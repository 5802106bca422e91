"""Image: the state of the cluster as one immutable value.

Pure. Only `dlogd.metadata.machine.apply` makes new images; everybody else reads them and reacts to
what `dlogd.metadata.state.delta` says has changed. Mappings and their values are never changed in
place; the large ones share with their predecessors what did not change
(`dlogd.metadata.state.persistent_map`).

What is *not* here: leases and who is heard of at the moment (`dlogd.controller`), the progress of
replicas (it would enter the log with each fetch).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any
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
from dlogd.metadata.state.limits import (
    EPOCH_FLOOR_MAX,
    LEVEL_EPOCH_FLOOR,
    LEVEL_OLDEST,
    OUTCOMES_REMEMBERED,
)
from dlogd.metadata.state.persistent_map import PersistentMap
from dlogd.metadata.state.recent_map import RecentMap

__all__ = [
    "EMPTY_IMAGE",
    "OUTCOMES_REMEMBERED",
    "Applied",
    "ClusterImage",
    "Controller",
    "Drain",
    "MaintenanceLock",
    "NodeAddress",
    "NodeRegistration",
    "Outcome",
    "PartitionImage",
    "Refused",
    "TopicImage",
    "Unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Where one listener of a node is reached."""

    listener: str
    host: str
    port: int


class Drain(IntEnum):
    """What an operator wants off a node; kept over restarts."""

    NONE = 0
    LEADERS = 1  # leads nothing while others can, and gets no new replicas
    REPLICAS = 2  # and what it holds moves to others, so that it can be removed


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
    # Fenced since it registered, and has proved that its replicas are whole: it keeps its places in
    # ISRs until it is unfenced, or fenced once more because it is not heard of.
    returning: bool = False
    shutting_down: bool = False  # leads nothing and joins no ISR until it registers again
    drain: Drain = Drain.NONE
    failed_directory_ids: tuple[UUID, ...] = ()  # known, and out of service or gone
    # The feature levels that its software can work at, both inclusive.
    level_min: int = LEVEL_OLDEST
    level_max: int = LEVEL_OLDEST

    @property
    def active(self) -> bool:
        """Whether it may lead partitions and join ISRs."""
        return not self.fenced and not self.shutting_down


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """One partition of a topic.

    Invariant: `isr` is a subset of `replicas`; `leader` is in `isr`, or NO_NODE.
    Invariant: `elr` is a subset of `replicas` and has no member of `isr`; it is empty while `isr`
    has at least min.insync.replicas members (or all replicas).
    Invariant: `adding`, `removing` and `offline` are subsets of `replicas`.
    """

    replicas: tuple[NodeId, ...]  # in order of preference
    isr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    # Eligible leader replicas: not in sync, but the high watermark has not moved since (KIP-966).
    elr: tuple[NodeId, ...] = ()
    # A reassignment: `adding` must come into the ISR before `removing` go. Both are in `replicas`.
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()
    # Who led last, when nobody is left in `isr` and `elr`; else NO_NODE. It holds the most.
    last_leader: NodeId = NO_NODE
    # Replicas that are out of service on a node that may be up: a failed disk, a damaged log.
    offline: tuple[NodeId, ...] = ()

    @property
    def has_leader(self) -> bool:
        """Whether somebody leads it."""
        return self.leader != NO_NODE

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """Who has what was acknowledged, as far as can be known: one of them at least has to stay.

        Those in sync, if there are any: who was eligible may be down, and for good. In the end who
        led last. Empty: nobody is known to have anything.
        """
        last = () if self.last_leader == NO_NODE else (self.last_leader,)
        return self.isr or self.elr or last


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """Who acts as controller; commands of an earlier one are refused by its epoch."""

    epoch: int = 0  # one more with each claim
    node_id: NodeId = NO_NODE
    node_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceLock:
    """Who works on the cluster, so that no second operation runs beside it.

    Times are wall clock, of the node that proposed the command.
    """

    owner: str  # for people: what is done, by whom
    token: UUID  # known to the holder alone
    node_id: NodeId  # the node that is worked on; NO_NODE: none in particular
    since_ms: int
    expires_ms: int  # exclusive

    def is_held(self, timestamp_ms: int) -> bool:
        """Whether it has not expired."""
        return timestamp_ms < self.expires_ms

    @property
    def facts(self) -> dict[str, Any]:
        """What all clients may know, as JSON has it: all but the token."""
        return {
            "owner": self.owner,
            "node": None if self.node_id == NO_NODE else int(self.node_id),
            "since_ms": self.since_ms,
            "expires_ms": self.expires_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """Everything that all nodes agree on, after `version` commands.

    Invariant: `topics` and `topics_by_id` hold the same topics.
    """

    version: int = 0
    cluster_id: str = ""  # empty until the first node has registered
    configs: Mapping[str, str] = field(default_factory=dict)  # cluster-wide, only what was set
    nodes: Mapping[NodeId, NodeRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=PersistentMap)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=PersistentMap)
    producer_id_next: int = 0
    # The outcomes of the last commands by command id, oldest first.
    outcomes: RecentMap[Applied | Refused] = field(default_factory=RecentMap)
    # Which commands and formats are in use: all nodes know them (`SetFeatureLevel`).
    feature_level: int = LEVEL_OLDEST
    controller: Controller = Controller()
    # Partitions that got a leader which may lack acknowledged records, ever.
    unclean_elections: int = 0
    # The first leader epoch of new partitions. From LEVEL_EPOCH_FLOOR on the floor is above each
    # epoch that a deleted topic had: a topic made again never looks older than the one before it.
    epoch_floor: int = 0
    # The last lock that was held and not released; it may have expired. From LEVEL_MAINTENANCE on.
    maintenance: MaintenanceLock | None = None
    # Topic names that have a `.` or a `_`, by what they are when both are `_`. Follows from topics.
    unified_names: Mapping[str, str] = field(default_factory=PersistentMap)

    def having(self, **changes: object) -> "ClusterImage":
        """Do what `dataclasses.replace` does, faster: each command does it three times."""
        values: dict[str, Any] = dict(zip(_FIELDS, _VALUES(self), strict=True))
        return ClusterImage(**(values | changes))

    def at_level(self, level: int) -> "ClusterImage":
        """Return the image with another feature level, and with what begins at that level."""
        floor = self.epoch_floor
        if self.feature_level < LEVEL_EPOCH_FLOOR <= level and self.cluster_id:
            # Nobody noted the epochs of topics deleted so far. One command raises an epoch twice at
            # most (a replica that is reported lost and found), so all are below.
            floor = min(2 * self.version, EPOCH_FLOOR_MAX)
        return self.having(feature_level=level, epoch_floor=floor)

    def maintenance_at(self, timestamp_ms: int) -> MaintenanceLock | None:
        """Return the lock that is held at a time (wall clock), None when it is free."""
        lock = self.maintenance
        return lock if lock is not None and lock.is_held(timestamp_ms) else None

    def partition(self, topic: str, partition_id: int) -> PartitionImage | None:
        """Return a partition, None when topic or partition is not there."""
        found = self.topics.get(topic)
        return None if found is None else found.partition(partition_id)


_FIELDS = tuple(each.name for each in fields(ClusterImage))
_VALUES = attrgetter(*_FIELDS)

EMPTY_IMAGE = ClusterImage()
