"""Values that administrative calls take and return.

Pure definitions; `dlog.client.admin` and `dlog.client.admin_cluster` fill them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple
from uuid import UUID

from dlog.transport import Address

DEFAULT = -1
"""Let the cluster choose the number of partitions or replicas."""


class Resource(IntEnum):
    """What a config belongs to (KIP-133)."""

    TOPIC = 2
    BROKER = 4


class Election(IntEnum):
    """Which leader is wanted (KIP-460)."""

    PREFERRED = 0  # the first replica, if it is in sync
    UNCLEAN = 1  # any replica where there is no leader; may lose acknowledged records


class Drain(StrEnum):
    """What an operator wants off a node."""

    NONE = "none"
    LEADERS = "leaders"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """One topic to create; with `assignments` the two numbers follow from them."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[Sequence[int]] | None = None
    """The nodes of each partition, preferred leader first."""
    configs: Mapping[str, str] = field(default_factory=dict)


class NodeState(NamedTuple):
    """One node as the cluster's metadata has it, up or not."""

    node_id: int
    address: Address
    rack: str | None
    is_fenced: bool
    drain: Drain


class MaintenanceLock(NamedTuple):
    """Who works on the cluster; times are wall clock of the nodes."""

    owner: str
    node: int | None  # that is worked on
    since_ms: int
    expires_ms: int  # unless it is renewed


class QuorumReplica(NamedTuple):
    """One node that keeps the metadata; times are wall clock, -1 where unknown."""

    node_id: int
    directory_id: UUID
    log_end_offset: int  # exclusive; -1 where unknown
    last_fetch_ms: int
    last_caught_up_ms: int
    address: Address | None  # of the metadata's listener; voters only


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    """Who keeps the metadata, as the leader of the quorum tells it."""

    leader_id: int
    term: int
    high_watermark: int  # exclusive
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


class ReassignmentView(NamedTuple):
    """One partition whose replicas move."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Candidates(NamedTuple):
    """Who may lead a partition besides those in sync (KIP-966)."""

    eligible: tuple[int, ...]  # hold all that was acknowledged
    last_leader: tuple[int, ...]  # where nobody is in sync or eligible
