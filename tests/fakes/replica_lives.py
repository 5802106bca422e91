"""The parts of replication, put together over the plainest of logs, wires and quorums.

Real are the partition, its leader's state, the keeper of ISRs, who is let in and where it may
begin, what a follower takes, cuts and asks for, roles, and the machine of the metadata. A log is a
list of batches of which so much is flushed; a wire is two queues of frames; an image reaches each
node when the test says so.
"""

import asyncio
import random
from collections import deque
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from dlog.errors import (
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import NodeId, Offset
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import ClusterImage, Outcome
from dlogd.node.replication_setup import ReplicationSetup
from dlogd.replication import protocol
from dlogd.replication.leader.follower_partition import FollowerPartition
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_state import ProducerStates
from dlogd.replication.protocol import MORE, Refusal
from dlogd.replication.role_assigner import RoleAssigner
from dlogd.runtime.tasks import Tasks
from tests.fakes.front import SETTINGS
from tests.fakes.plain_log import PlainBatch, PlainLog

FOREVER_US = 1 << 62


class Ack:
    """Who waits for one batch, and tells what was acknowledged."""

    def __init__(self, life: Any, base: int, end: int, data: bytes) -> None:
        self.life, self.base, self.end, self.data = life, base, end, data

    def on_acked(self, index: int, error: WireError | None, now_us: int) -> None:
        if error is None:
            self.life.on_acked(self.base, self.end, self.data)


class Spawning:
    """Tasks, without those that would open connections."""

    def __init__(self) -> None:
        self.real = Tasks()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any], *, is_vital: bool = False) -> Any:
        if name.startswith("follow node"):
            work.close()
            return None
        return self.real.spawn(name, work, is_vital=is_vital)


class PlainNode:
    """One life of a node, with one replica of one partition."""

    def __init__(
        self, world: Any, node_id: NodeId, node_epoch: int, log: PlainLog, high_watermark: int
    ) -> None:
        self.world, self.node_id, self.node_epoch, self.log = world, node_id, node_epoch, log
        self.image: ClusterImage = world.image
        self.key = (log.topic_id, 0)
        self.lease = SimpleNamespace(valid_until_us=0)
        loop = asyncio.get_running_loop()
        self.by_id: dict[Any, Partition] = {}
        self.partition = self._open(log, high_watermark)
        self.tasks = Spawning()
        self.roles = RoleAssigner(self.by_id, node_id, self.lease, world.clock)
        replicas: Any = SimpleNamespace(by_id=self.by_id, roles=self.roles, on_closed=None)
        clustering: Any = SimpleNamespace(
            node_id=node_id,
            store=self,
            new_id=world.new_id,
            own_epoch=lambda: node_epoch,
            address_of=None,
            introduce=None,
            open_requests=None,
            server=SimpleNamespace(adopters={}),
        )
        engine: Any = SimpleNamespace(defer=loop.call_soon)
        self.replicating = ReplicationSetup(
            clustering,
            replicas,
            loop=loop,
            engine=engine,
            clock=world.clock,
            rng=world.rng,
            tasks=self.tasks,  # type: ignore[arg-type]
        )
        self.roles.begin(self.image)
        self.replicating.feeds.image = self.image
        self.roles.assign(self.partition, 0)

    def _open(self, log: PlainLog, high_watermark: int) -> Partition:
        plain: Any = log
        lease, clock = self.lease, self.world.clock
        partition = Partition(
            plain,
            loop=asyncio.get_running_loop(),
            clock=clock,
            producers=ProducerStates(expiry_ms=1 << 40, producers_max=10),
            settings=SETTINGS,
            lease=lease,
            high_watermark=Offset(high_watermark),
        )
        partition.closed = NotLeaderOrFollowerError("being opened")
        partition.leader = None
        self.by_id[self.key] = partition
        return partition

    def replace_log(self, log: PlainLog) -> None:
        """Delete the replica, and open it anew over another log, as the manager does it."""
        self.partition.close(UnknownTopicOrPartitionError("The replica was deleted"))
        self.replicating.fetching.leave(self.key)
        self.log.is_dead = True
        self.log, self.partition = log, self._open(log, 0)
        self.roles.assign(self.partition, 0)

    async def propose(self, command: Any, deadline_ms: int) -> Outcome:
        """Stand in for the store of this node."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.world.proposals.append((command, outcome))
        return await outcome

    @property
    def leads(self) -> bool:
        return self.partition.leader is not None

    def see(self, image: ClusterImage) -> None:
        """Hear of a newer image."""
        delta = between(self.image, image)
        self.image = image
        self.roles.on_image(image, delta)
        self.replicating.on_image(image, delta)

    def set_lease(self, *, valid: bool) -> None:
        self.lease.valid_until_us = FOREVER_US if valid else 0
        self.roles.on_lease()


class Wire:
    """A connection of a follower to a leader: the follower's link, and the leader's feed."""

    def __init__(self, follower: PlainNode, leader: PlainNode, rng: random.Random) -> None:
        self.follower, self.leader, self.rng = follower, leader, rng
        self.to_leader: deque[bytes] = deque()
        self.to_follower: deque[bytes] = deque()
        self.is_open, self.is_held = True, False
        self.is_followed = self.is_fed = True  # by its ends
        self.is_slow = False  # what goes to the leader takes long
        # As the follower's `Link`.
        self.may_send = True
        self.ready = SimpleNamespace(done=lambda: False)
        self.frame: tuple[bytearray, int] = (bytearray(), 0)
        # As the leader's `Feed`.
        self.node_id, self.node_epoch = follower.node_id, follower.node_epoch
        self.feds: dict[int, FollowerPartition] = {}
        self.marked: dict[FollowerPartition, None] = {}
        self.feeds = leader.replicating.feeds
        feed: Any = self
        for each in [each for each in self.feeds.feeds if each.node_id == self.node_id]:
            each.abort("")
        self.feeds.feeds[feed] = None
        fetcher: Any = follower.replicating.fetching.fetchers[leader.node_id]
        self.fetcher = fetcher
        fetcher._begin(self)
        self.ready = SimpleNamespace(done=lambda: True, cancelled=lambda: True)
        self.fetcher._schedule()

    # -- the follower's end

    def send(self, frame: bytes) -> None:
        if self.is_open and self.is_fed:
            self.to_leader.append(frame)

    def hold(self) -> tuple[bytearray, int]:
        self.is_held = True
        return self.frame

    def go_on(self) -> None:
        self.is_held = False

    def close(self, error: Any = None) -> None:
        if self.is_followed:
            self.abort("")

    def work(self) -> None:
        """Bring everybody what is under way."""
        while self.to_leader and self.is_fed:
            self.deliver_to_leader()
        while self.marked and self.is_open:
            self.send_data()
        while self.to_follower and self.is_open and not self.is_held:
            self.deliver_to_follower()

    def deliver_to_follower(self) -> None:
        buffer = bytearray(self.to_follower.popleft())
        self.frame = buffer, 4
        is_taken = self.fetcher._applier.take(buffer, 4, len(buffer))
        assert is_taken or self.is_held

    # -- the leader's end

    def abort(self, reason: str) -> None:
        """Break, for both ends at once."""
        if self.is_open:
            self.end_leader()
            self.end_follower()

    def end_leader(self) -> None:
        """Break where the leader is, who takes and sends nothing more."""
        self.is_fed = False
        self.is_open = self.is_followed
        for fed in list(self.feds.values()):
            fed.leave()
        self.feds.clear()
        self.marked.clear()
        self.to_leader.clear()
        feed: Any = self
        self.feeds.feeds.pop(feed, None)

    def end_follower(self) -> None:
        """Break where the follower is; what it has said may reach the leader all the same."""
        self.is_followed = False
        self.is_open = self.is_fed
        self.to_follower.clear()
        if self.fetcher._link is self:
            self.fetcher._end(self)

    def mark(self, fed: FollowerPartition) -> None:
        fed.is_marked = True
        self.marked[fed] = None

    def say(self, frame: bytes) -> None:
        if self.is_followed:
            self.to_follower.append(frame)

    def mark_watermark(self, fed: FollowerPartition) -> None:
        self.mark(fed)

    def _forget(self, fed: FollowerPartition) -> None:
        fed.leave()
        fed.is_marked = False
        self.marked.pop(fed, None)

    def refuse(self, fed: FollowerPartition, error: Any, start: int = -1, end: int = -1) -> None:
        if self.feds.pop(fed.handle, None) is not None:
            self._forget(fed)
            refusal = Refusal(fed.handle, error.code, -1, -1, start, end)
            self.say(protocol.encode_refused((refusal,)))

    def deliver_to_leader(self) -> None:
        view = memoryview(self.to_leader.popleft())
        kind, count, position = protocol.parse_kind(view, 4, len(view))
        if kind == protocol.PROGRESS:
            _, rows = protocol.parse_progress(view, position, len(view), count)
            for handle, promised, end, start in rows:
                fed = self.feds.get(handle)
                if fed is not None:
                    fed.on_progress(promised, end, start, self.leader.world.clock.now_ms())
                    self.feeds.on_progress(fed)
                    if fed.has_more:
                        self.mark(fed)
        elif kind == protocol.SUBSCRIBE:
            for each in protocol.parse_subscribe(view, position, len(view), count):
                assert each.handle not in self.feds
                feed: Any = self
                found = self.feeds.accept(feed, each)
                if isinstance(found, Refusal):
                    self.say(protocol.encode_refused((found,)))
                else:
                    self.feds[each.handle] = found
                    self.mark(found)
                    self.feeds.on_progress(found)
        else:
            for handle in protocol.parse_unsubscribe(view, position, len(view), count):
                fed = self.feds.pop(handle, None)
                if fed is not None:
                    self._forget(fed)

    def send_data(self) -> None:
        """Send a frame about what is marked."""
        fed = next(iter(self.marked))
        del self.marked[fed]
        fed.is_marked = False
        plog: Any = fed.partition.log
        offset = fed.sent_offset
        if not plog.log_start_offset <= offset <= plog.log_end_offset:
            ends = plog.log_start_offset, plog.log_end_offset
            self.refuse(fed, OffsetOutOfRangeError("trimmed"), *ends)
            return
        some: list[PlainBatch] = []
        if fed.has_more:
            some = [each for each in plog.batches if each.end > offset]
            some = some[: self.rng.randint(1, 3)]
            fed.awaits_word = self.rng.random() < 0.3
            if not fed.awaits_word:
                fed.sent_offset = Offset(some[-1].end)
        data = b"".join(each.data for each in some)
        base = some[0].base if some else offset
        taken: Any = SimpleNamespace(base_offset=base, bytes=len(data))
        row = fed.row(taken)
        assert (row[5] == MORE) == (fed.awaits_word and bool(data))
        self.say(protocol.encode_data([row], len(data)) + data)
        if fed.has_more:
            self.mark(fed)
