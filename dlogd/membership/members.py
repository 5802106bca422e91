"""Members of the cluster as gossip sees them, and the tags of a node.

Pure. A hint and nothing more: membership discovers nodes and their addresses; who may lead is
decided by leases and written in the metadata, and a node that gossip calls failed keeps its place
there until an operator removes it. `dlogd.membership.serf` and `static` make these values.

The tags of a dlog node, all together at most 512 bytes (Serf's limit):

    dlog     format of these tags: 1
    node     node id, decimal
    cluster  cluster id; absent before the node has joined one
    rack     absent when the node has none
    version  of the software
    a.NAME   host:port of the listener NAME
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dlog.types import NodeId
from dlogd.metadata.state.image import NodeAddress, NodeRegistration

TAGS_FORMAT = "1"
TAGS_BYTES_MAX = 512
NODE_ID_MAX = 2**31 - 1
_ADDRESS_PREFIX = "a."


class MemberState(StrEnum):
    """What gossip says of a member. Only `LEFT` and `FAILED` speak against it."""

    ALIVE = "alive"
    # Said to be leaving, or nobody looks. Serf shows nodes as leaving that came back long ago
    # (hashicorp/serf#359), so this never means dead.
    UNCERTAIN = "uncertain"
    LEFT = "left"
    FAILED = "failed"


class Source(StrEnum):
    """Where a member is known from."""

    SERF = "serf"
    CONFIG = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node that somebody speaks of."""

    node_id: NodeId
    addresses: tuple[NodeAddress, ...]  # by listener, sorted by its name
    rack: str | None
    version: str  # of the software; empty when unknown
    state: MemberState
    source: Source

    def address(self, listener: str) -> NodeAddress | None:
        """Return where a listener is reached, None when the member does not say."""
        return next((each for each in self.addresses if each.listener == listener), None)


@dataclass(slots=True)
class MembershipCounters:
    """What happened since the start; plain values that metrics read."""

    connects_total: int = 0
    connect_failures_total: int = 0
    events_total: int = 0
    resyncs_total: int = 0
    changes_total: int = 0
    # Of the last look at the members:
    foreign: int = 0  # agents that are no dlog nodes, or of another cluster
    malformed: int = 0  # tags that cannot be read
    conflicts: int = 0  # node ids that more than one live agent claims


OnMembers = Callable[[tuple[Member, ...], tuple[Member, ...]], None]
"""Is called with the old and the new members, each sorted by node id."""


class Membership(Protocol):
    """Where members come from. Owner: the event loop's thread. Life: `start`, then `stop` once."""

    @property
    def counters(self) -> MembershipCounters:
        """What happened since the start."""

    @property
    def problem(self) -> str | None:
        """Why the members may be out of date, in one line; None when they are not."""

    def members(self) -> tuple[Member, ...]:
        """Return what is known, sorted by node id."""

    def subscribe(self, callback: OnMembers) -> None:
        """Call back after each change."""

    def announce(self, tags: Mapping[str, str]) -> None:
        """Say this of the own node from now on (`encode_tags`)."""

    async def start(self) -> None:
        """Begin; does not wait until somebody is found."""

    async def stop(self) -> None:
        """End. The agent keeps running and the node stays a member."""


class MalformedTagsError(ValueError):
    """The tags of a dlog node cannot be read."""


def encode_tags(
    node_id: NodeId,
    addresses: Sequence[NodeAddress],
    *,
    cluster_id: str = "",
    rack: str | None = None,
    version: str = "",
) -> dict[str, str]:
    """Return the tags by which a node makes itself known.

    Raises MalformedTagsError when they are longer than gossip carries.
    """
    tags = {"dlog": TAGS_FORMAT, "node": str(node_id)}
    if cluster_id:
        tags["cluster"] = cluster_id
    if rack is not None:
        tags["rack"] = rack
    if version:
        tags["version"] = version
    for address in sorted(addresses, key=lambda each: each.listener):
        tags[_ADDRESS_PREFIX + address.listener] = f"{address.host}:{address.port}"
    size = sum(tag_bytes(name) + tag_bytes(value) for name, value in tags.items()) + 4
    if size > TAGS_BYTES_MAX:
        raise MalformedTagsError(f"tags of {size} bytes, at most {TAGS_BYTES_MAX} are carried")
    return tags


def tag_bytes(text: str) -> int:
    """Return the encoded size of one name or value (msgpack: up to three bytes of head)."""
    size = len(text.encode())
    return size + (1 if size < 32 else 3)


def is_dlog(tags: Mapping[str, str]) -> bool:
    """Return whether an agent says that it stands beside a dlog node."""
    return "dlog" in tags


def decode_tags(tags: Mapping[str, str], state: MemberState) -> Member:
    """Return the member that tags describe; raise MalformedTagsError.

    Unknown tags are passed over: a newer version may say more.
    """
    if tags.get("dlog") != TAGS_FORMAT:
        raise MalformedTagsError(f"tags of format {tags.get('dlog')!r}")
    addresses = [
        _parse_address(name.removeprefix(_ADDRESS_PREFIX), value)
        for name, value in sorted(tags.items())
        if name.startswith(_ADDRESS_PREFIX)
    ]
    return Member(
        node_id=_parse_node_id(tags.get("node", "")),
        addresses=tuple(addresses),
        rack=tags.get("rack"),
        version=tags.get("version", ""),
        state=state,
        source=Source.SERF,
    )


def _parse_node_id(text: str) -> NodeId:
    # isdecimal() alone would take digits of other scripts, of any length.
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise MalformedTagsError(f"node id {text[:40]!r}")
    number = int(text)
    if number > NODE_ID_MAX:
        raise MalformedTagsError(f"node id {number}")
    return NodeId(number)


def _parse_address(listener: str, text: str) -> NodeAddress:
    host, colon, port = text.rpartition(":")
    usable = colon and host and port.isascii() and port.isdecimal() and len(port) <= 5
    if not listener or not usable or not 0 < int(port) < 65536:
        raise MalformedTagsError(f"address {text[:80]!r} of listener {listener[:40]!r}")
    return NodeAddress(listener=listener, host=host, port=int(port))


# Disagreement between gossip and metadata.


class DisagreementKind(StrEnum):
    """How gossip and metadata differ about one node."""

    UNREGISTERED = "unregistered"  # gossip knows a live node that the metadata does not
    UNHEARD = "unheard"  # registered, not fenced, and gossip has never heard of it
    GONE = "gone"  # registered, not fenced, and gossip calls it failed or left
    FENCED_ALIVE = "fenced_alive"  # fenced in the metadata, alive in gossip
    ADDRESS = "address"  # both know it, at different addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One difference, for `status` and a metric; nothing acts on it."""

    node_id: NodeId
    kind: DisagreementKind
    message: str


def disagreements(
    members: Sequence[Member], nodes: Mapping[NodeId, NodeRegistration]
) -> tuple[Disagreement, ...]:
    """Return where gossip and metadata differ, sorted by node id; at most one of each kind."""
    by_id = {member.node_id: member for member in members}
    found: list[Disagreement] = []
    for node_id in sorted({*by_id, *nodes}):
        member, node = by_id.get(node_id), nodes.get(node_id)
        for kind, message in _differences(member, node):
            found.append(Disagreement(node_id=node_id, kind=kind, message=message))
    return tuple(found)


def _differences(
    member: Member | None, node: NodeRegistration | None
) -> list[tuple[DisagreementKind, str]]:
    if node is None:
        if member is None or member.state in (MemberState.LEFT, MemberState.FAILED):
            return []  # it never belonged here, or has gone for good
        return [(DisagreementKind.UNREGISTERED, "known by gossip, not registered")]
    if member is None:
        if node.fenced:
            return []
        return [(DisagreementKind.UNHEARD, "registered and active, unknown to gossip")]
    found = []
    if not node.fenced and member.state in (MemberState.LEFT, MemberState.FAILED):
        found.append((DisagreementKind.GONE, f"active, but gossip calls it {member.state.value}"))
    if node.fenced and member.state is MemberState.ALIVE:
        found.append((DisagreementKind.FENCED_ALIVE, "fenced, but alive in gossip"))
    told = {each.listener: each for each in member.addresses}
    for address in node.addresses:
        other = told.get(address.listener)
        if other is not None and other != address:
            message = (
                f"listener {address.listener} registered at {address.host}:{address.port},"
                f" gossip says {other.host}:{other.port}"
            )
            found.append((DisagreementKind.ADDRESS, message))
            break
    return found
