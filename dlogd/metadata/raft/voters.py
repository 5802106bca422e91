"""Voters of the quorum, as one immutable value, and its changes.

Pure. A voter is a node *and* the directory that holds its log: a node that comes back with another
directory has forgotten what it promised, so it is an observer until it is made a voter again
(KIP-853). Until the cluster has first met a voter of the config its directory is UNBOUND.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from dlog.errors import InvalidRequestError
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer

UNBOUND = UUID(int=0)
VOTERS_MAX = 9
HOST_LENGTH_MAX = 255
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One voter and where it is reached."""

    node_id: int
    directory_id: UUID = UNBOUND
    host: str
    port: int

    def is_in(self, directory_id: UUID) -> bool:
        """Whether a node with this directory is the voter."""
        return self.directory_id in (UNBOUND, directory_id)


@dataclass(frozen=True, slots=True)
class Voters:
    """All voters, ordered by node id."""

    members: tuple[Voter, ...] = ()

    @classmethod
    def of(cls, members: Iterable[Voter]) -> "Voters":
        """Make a set; raise MalformedError when a node comes twice or there are too many."""
        ordered = tuple(sorted(members, key=lambda voter: voter.node_id))
        ids = [voter.node_id for voter in ordered]
        if len(set(ids)) != len(ids) or len(ids) > VOTERS_MAX or (ids and ids[0] < 0):
            raise MalformedError(f"no set of voters: {ids}")
        return cls(ordered)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All node ids, ascending."""
        return tuple(voter.node_id for voter in self.members)

    @property
    def quorum(self) -> int:
        """How many make a majority."""
        return len(self.members) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        """Return a voter, None when the node is none."""
        for voter in self.members:
            if voter.node_id == node_id:
                return voter
        return None

    def holds(self, node_id: int, directory_id: UUID) -> bool:
        """Whether this node with this directory is a voter."""
        voter = self.get(node_id)
        return voter is not None and voter.is_in(directory_id)

    def changes_since(self, before: "Voters") -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return which nodes have come and which have left; both, for another directory.

        A directory that is bound now and was not is the same voter.
        """
        came = tuple(
            voter.node_id
            for voter in self.members
            if (old := before.get(voter.node_id)) is None or not old.is_in(voter.directory_id)
        )
        gone = (each for each in before.node_ids if self.get(each) is None or each in came)
        return came, tuple(gone)

    def bound(self, node_id: int, directory_id: UUID) -> "Voters":
        """Return the set with the directory of an unbound voter noted."""
        return Voters(
            tuple(
                replace(voter, directory_id=directory_id)
                if voter.node_id == node_id and voter.directory_id == UNBOUND
                else voter
                for voter in self.members
            )
        )

    def with_voter(self, voter: Voter) -> "Voters":
        """Return the set with one more; raise InvalidRequestError when that cannot be."""
        if self.get(voter.node_id) is not None:
            raise InvalidRequestError(f"Node {voter.node_id} is a voter already")
        if len(self.members) >= VOTERS_MAX:
            raise InvalidRequestError(f"There are {VOTERS_MAX} voters already")
        return Voters.of((*self.members, voter))

    def without(self, node_id: int) -> "Voters":
        """Return the set with one less; raise InvalidRequestError when that cannot be."""
        if self.get(node_id) is None:
            raise InvalidRequestError(f"Node {node_id} is no voter")
        if len(self.members) == 1:
            raise InvalidRequestError("The last voter cannot be removed")
        return Voters(tuple(voter for voter in self.members if voter.node_id != node_id))


def expect_place(host: str, port: int) -> None:
    """Raise InvalidRequestError unless a voter might be reached there.

    What goes into the log is dialled by all nodes for as long as it is there.
    """
    try:
        sound = 0 < len(host) <= HOST_LENGTH_MAX and host.isprintable() and " " not in host
        sound = sound and bool(host.encode("idna"))
    except UnicodeError:
        sound = False
    if not sound or not 0 < port <= PORT_MAX:
        raise InvalidRequestError(f"{host[:80]!r} and port {port} are no address of a voter")


def write(writer: Writer, voters: Voters) -> None:
    """Write a set of voters."""
    writer.u8(len(voters.members))
    for voter in voters.members:
        writer.i32(voter.node_id)
        writer.uuid(voter.directory_id)
        writer.text(voter.host)
        writer.u16(voter.port)


def read(reader: Reader) -> Voters:
    """Read a set of voters; raise only MalformedError."""
    return Voters.of(
        Voter(
            node_id=reader.i32(),
            directory_id=reader.uuid(),
            host=reader.text(),
            port=reader.u16(),
        )
        for _ in range(reader.u8())
    )
