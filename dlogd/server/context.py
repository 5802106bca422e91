"""Context of handlers: the image, proposals, partitions, facts about the node.

Deliberately no connection, no socket and no bytes. Made once by `dlogd.node.broker`, which replaces
`config` at a reload; in unit tests made of an image in memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dlog.errors import NotControllerError, RequestTimedOutError, WireError
from dlog.types import NodeId, TopicId, TopicPartition
from dlogd.config.schema import Config
from dlogd.metadata.commands.codec import Command
from dlogd.metadata.interface import Quorum
from dlogd.metadata.machine import admission
from dlogd.metadata.machine.placement import Loads, LoadTracker
from dlogd.metadata.state.image import Applied, ClusterImage, Outcome, Refused
from dlogd.replication.partition.partition import Partition
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Entropy
from dlogd.server.recently_fenced import RecentlyFenced
from dlogd.server.request_turns import RequestTurns

OPEN_PATIENCE_MS = 200
"""How long the answer about new partitions waits for them to be open here, in a cluster."""
OPEN_TOPICS_MAX = 20
"""For more topics than these it does not wait at all there."""
TOGETHER_MAX = 100
"""Commands of one request that are proposed at the same time."""
WAITED_IN_VAIN = (
    "the outcome is unknown, it may have been done or be done later: look before you repeat it"
)
NO_QUORUM = "nothing was changed; bring back controllers until most of them are up, then repeat it"
NOTHING_OFFLINE: frozenset[tuple[TopicId, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """One data directory of this node and what it holds."""

    path: str
    online: bool
    total_bytes: int = -1  # of the file system; -1 when unknown
    free_bytes: int = -1
    partitions: Sequence[tuple[TopicPartition, int]] = ()  # each with its size in bytes


@dataclass(slots=True, kw_only=True)
class ServerContext:
    """The node, as the handlers of its requests see it. Owner: the event loop's thread."""

    node_id: NodeId
    config: Config
    clock: Clock
    entropy: Entropy
    image: Callable[[], ClusterImage]
    """The newest image that this node has applied."""
    propose_command: Callable[[Command, int], Awaitable[Outcome]]
    """Hand a command to the metadata store and wait at most until a time (`Clock.now_ms`)."""
    partition: Callable[[str, int], Partition]
    """Return a partition that this node leads; raise WireError when it does not."""
    partition_by_id: Callable[[TopicId, int], Partition]
    log_dirs: Callable[[], Awaitable[Sequence[LogDir]]]
    await_partitions: Callable[[Sequence[str]], Awaitable[None]]
    """Return when all partitions of some topics that belong on this node have opened or failed."""
    offline: Callable[[], frozenset[tuple[TopicId, int]]] = lambda: NOTHING_OFFLINE
    """Return the partitions out of service on this node, the same object until that changes."""

    producer_id_in_use: Callable[[int, int], int] = lambda _first, _end: -1
    """Return the highest producer id in [first, end) that a log on this node knows; -1: none."""

    until_settled: Callable[[], Coroutine[Any, Any, None] | None] = lambda: None
    """Return what to wait for before clients are told who leads; None: nothing is in doubt."""

    lingering: RecentlyFenced = field(default_factory=RecentlyFenced)
    """Nodes that clients are told of although they are fenced."""

    quorum: Quorum | None = None
    """None: the node keeps its metadata alone."""
    ask_node: Callable[[NodeId, Any], Awaitable[Any]] | None = None
    """Hand a decoded request to another node; raise TransportError, ProtocolError or WireError."""
    load_tracker: LoadTracker = field(default_factory=LoadTracker)
    turns: RequestTurns = field(default_factory=RequestTurns)
    """Where those rest who work on a large request."""

    def loads(self) -> Loads:
        """Return how many leaders and replicas each node has, for the caller to change."""
        return self.load_tracker.loads(self.image())

    def new_id(self) -> UUID:
        """Return a fresh id for a topic or a command."""
        return self.entropy.uuid()

    def deadline_ms(self, timeout_ms: int) -> int:
        """Return when a client's patience ends (`Clock.now_ms`)."""
        return self.clock.now_ms() + max(timeout_ms, 0)

    async def propose(self, command: Command, deadline_ms: int) -> Applied:
        """Return once the command is applied on stable storage; else raise WireError.

        A time-out means that nobody knows whether it took effect, unless its message says so.
        """
        if deadline_ms <= self.clock.now_ms():
            raise RequestTimedOutError("The time-out of the request has passed: nothing was done")
        return settled(await self.propose_command(command, deadline_ms))

    async def propose_all(
        self, commands: Sequence[Command], deadline_ms: int
    ) -> list[Applied | WireError]:
        """Propose commands that do not depend on each other; return what became of each.

        Many at a time, so that they share rounds of the metadata.
        """

        async def outcome(command: Command) -> Applied | WireError:
            try:
                return await self.propose(command, deadline_ms)
            except WireError as error:
                return error

        found: list[Applied | WireError] = []
        for begin in range(0, len(commands), TOGETHER_MAX):
            group = commands[begin : begin + TOGETHER_MAX]
            found += await asyncio.gather(*(outcome(command) for command in group))
        return found

    def rehearse(self, command: Command) -> Applied:
        """Return what proposing the command now would give, without doing it; raise WireError."""
        return settled(admission.evaluate(self.image(), command))

    async def opened(self, topics: Sequence[str], deadline_ms: int) -> bool:
        """Wait until the partitions of topics are open here; return whether they were in time.

        In a cluster for a moment only, not for many, and whoever is late is in time: other nodes
        lead most of them, nobody waits for those, and clients ask them again.
        """
        left_ms = max(deadline_ms - self.clock.now_ms(), 0)
        if self.quorum is not None:
            if len(topics) > OPEN_TOPICS_MAX:
                return True
            left_ms = min(left_ms, OPEN_PATIENCE_MS)
        try:
            async with asyncio.timeout(left_ms / 1000):
                await self.await_partitions(topics)
        except TimeoutError:
            return self.quorum is not None
        return True


def settled(outcome: Outcome) -> Applied:
    """Return an applied outcome; raise WireError for a refused or an unknown one."""
    if isinstance(outcome, Applied):
        return outcome
    if isinstance(outcome, Refused):
        if outcome.code == NotControllerError.code:
            raise RequestTimedOutError(f"{outcome.message}: {NO_QUORUM}")
        raise outcome.error
    raise RequestTimedOutError(f"{outcome.message}: {WAITED_IN_VAIN}")
