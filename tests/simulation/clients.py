"""What all simulated clients share: topics, the records' content, connections, the clock.

Clients are the real `dlog.transport` and `dlog.client` on simulated loops; the produce and fetch
codecs are used in the version that the plan drew. Nothing here judges: it writes down.
"""

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from uuid import UUID

from dlog.client.cluster.node import NodeClient, open_node
from dlog.transport import Address, ConnectionOptions
from dlog.wire.topics import TopicKey
from tests.histories.history import History, LogKey
from tests.simulation.loop import EPOCH_MS, SimLoop
from tests.simulation.plan import NODE_ADDRESS, PORT, Plan
from tests.simulation.trace import Trace

NODE = Address(NODE_ADDRESS, PORT)


@dataclass(slots=True)
class Topic:
    """One life of a topic."""

    name: str
    topic_id: UUID
    partitions: int
    churns: bool
    # What its configs may be now, after calls whose outcome is not known.
    configs: dict[str, set[str]] = field(default_factory=dict)
    deleting: bool = False

    def logs(self) -> list[LogKey]:
        """Return its logs."""
        return [LogKey(self.topic_id, self.name, number) for number in range(self.partitions)]


class Topics:
    """The topics that clients use now; made by the administrator."""

    def __init__(self) -> None:
        self.live: list[Topic] = []

    def pick(self, rng: random.Random) -> LogKey | None:
        """Return a random log, None while there is no topic."""
        topics = [topic for topic in self.live if not topic.deleting]
        if not topics:
            return None
        return rng.choice(rng.choice(topics).logs())

    def wire_key(self, key: LogKey, version: int, first_with_id: int) -> TopicKey | None:
        """Return how a version of a request names a log's topic; None: it cannot.

        A topic that is made again under its name is only called by its id.
        """
        if version >= first_with_id:
            return key.topic_id
        return None if self.churning(key) or not self.has(key) else key.topic

    def churning(self, key: LogKey) -> bool:
        """Return whether a log's topic is one that is made again and again."""
        return any(topic.topic_id == key.topic_id and topic.churns for topic in self.live)

    def has(self, key: LogKey) -> bool:
        """Return whether a log's topic is there."""
        return any(topic.topic_id == key.topic_id for topic in self.live)


class Surroundings:
    """What a client is given; `active` until the plan's time is over, when all calls shall end."""

    def __init__(self, plan: Plan, loop: SimLoop, history: History, trace: Trace) -> None:
        self.plan = plan
        self.loop = loop
        self.history = history
        self.trace = trace
        self.topics = Topics()
        self.numbers = itertools.count(1)
        self.sessions_seen: set[tuple[int, int]] = set()
        self.active = True

    def now_ns(self) -> int:
        """Return the world's time."""
        return self.loop.world.now_ns

    def timestamp_ms(self) -> int:
        """Return the clients' wall clock."""
        return EPOCH_MS + self.now_ns() // 1_000_000

    def violation(self, text: str) -> None:
        """Write down a breach that a client saw at once."""
        self.trace("violation", text)
        self.history.violations.append(text)

    async def sleep_ms(self, milliseconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(milliseconds / 1000)


class Link:
    """A connection to the node that is opened again when it is lost."""

    def __init__(
        self, around: Surroundings, name: str, loop: SimLoop, timeout_s: float, inflight: int = 5
    ) -> None:
        self._around = around
        self._loop = loop
        self._node: NodeClient | None = None
        self._opening: asyncio.Future[None] | None = None
        self._options = ConnectionOptions(
            client_id=name,
            inflight_max=inflight,
            connect_timeout_s=3.0,
            request_timeout_s=timeout_s,
        )

    async def get(self) -> NodeClient:
        """Return the open connection; raise DlogError when there can be none now."""
        while self._opening is not None:
            await self._opening
        if self._node is None or not self._node.is_open:
            self._opening = self._loop.create_future()
            try:
                self._node = await open_node(self._loop, NODE, self._options)
            finally:
                self._opening.set_result(None)
                self._opening = None
        return self._node

    def close(self) -> None:
        """Close the connection."""
        if self._node is not None:
            self._node.close()


def make_value(number: int, size: int) -> bytes:
    """Return a record's value, which tells its number and is checked to the last byte."""
    head = b"%d:" % number
    if len(head) >= size:
        return head
    pattern = b"%x." % (number * 2654435761 % (1 << 32))
    return (head + pattern * (size // len(pattern) + 1))[:size]


def number_of(value: bytes | None) -> int | None:
    """Return the number in a record's value, None when it is not what was written."""
    if value is None:
        return None
    head, colon, _ = value.partition(b":")
    if not colon or not head.isdigit():
        return None
    number = int(head)
    return number if value == make_value(number, len(value)) else None
