"""Random lives of the replicas of one partition.

Nodes lose power and what they had not flushed, lose their leases, hear late of the metadata, break
connections in the midst of a cut, drop old records; leaders change. In the end everything works for
a while. What must hold at each moment: `tests.fakes.partition_rules`.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from dlog.batch.records import Record, encode
from dlog.errors import WireError
from dlog.types import NodeId
from dlogd.metadata.commands import codec
from dlogd.metadata.commands.codec import ElectionKind, ElectLeaders, FenceNodes, Proof, UnfenceNode
from dlogd.metadata.machine import apply
from dlogd.metadata.state.image import Applied, Unknown
from dlogd.replication.follower import divergence, followed_partition, log_start_sync
from dlogd.replication.leader import isr
from dlogd.runtime.tasks import Tasks
from dlogd.server.handlers import delete_records
from tests.fakes.partition_rules import NODES, PartitionRules
from tests.fakes.plain_log import PlainClock, PlainLog
from tests.fakes.replica_lives import Ack, PlainNode, Wire

STEPS = 400
HEALING_ROUNDS = 400

Action = Callable[[], None]


class PartitionLife(PartitionRules):
    """The nodes, what joins them, and what was promised to users."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.clock = PlainClock()
        self.min_isr = self.rng.randint(1, 3)
        self.unrest = self.rng.choice((1, 2, 4))
        self.cluster.create("t", NODES, min_insync_replicas=str(self.min_isr))
        self.topic_id: Any = self.cluster.image.topics["t"].topic_id
        self.new_id = self.cluster.new_id
        self.logs = {each: PlainLog(self.topic_id, self.rng) for each in NODES}
        self.stored = dict.fromkeys(NODES, 0)  # high watermarks on disks
        self.wires: dict[tuple[NodeId, NodeId], Wire] = {}
        self.fenced_at = dict.fromkeys(NODES, -1)
        self.count = 0
        self.work = [Tasks()]  # of all lives of all nodes; the first is of users
        for each in NODES:
            self.boot(each)

    @property
    def image(self) -> Any:
        return self.cluster.image

    def boot(self, node_id: NodeId) -> None:
        node = PlainNode(
            self, node_id, self.cluster.epoch(node_id), self.logs[node_id], self.stored[node_id]
        )
        self.nodes[node_id] = node
        self.work.append(node.tasks.real)
        node.set_lease(valid=True)

    def apply(self, command: Any) -> Any:
        self.cluster.image, outcome = apply.apply(self.image, codec.encode(command))
        return outcome

    # -- what happens

    def actions(self) -> tuple[tuple[list[Action], float], ...]:
        """Return what may happen, and how often each kind of it does."""
        often = [self.produce, self.flush, self.deliver, self.deliver, self.send, self.hear]
        seldom = [self.connect, self.settle, self.join, self.lag, self.give_memory]
        rare = [self.break_wire, self.crash, self.restart, self.restart, self.lease, self.lease]
        rare += [self.fence, self.fence, self.elect, self.elect, self.retain, self.delete]
        return (often, 12), (seldom, 5), (rare, self.unrest)

    async def step(self) -> None:
        kinds, weights = zip(*self.actions(), strict=True)
        (kind,) = self.rng.choices(kinds, weights)
        action = self.rng.choice(kind)
        self.done.append(action.__name__)
        action()
        for _ in range(self.rng.choice((0, 1, 3, 15))):
            await asyncio.sleep(0)
        self.hear_wires()
        self.check()

    def any_node(self) -> PlainNode | None:
        return self.rng.choice(list(self.nodes.values())) if self.nodes else None

    def produce(self) -> None:
        leaders = [each for each in self.nodes.values() if each.leads]
        if not leaders:
            return
        node = self.rng.choice(leaders)
        self.count += 1
        values = [b"%d" % self.count] * self.rng.randint(1, 3)
        data = encode([Record(value=each, timestamp_ms=1) for each in values])
        partition = node.partition
        try:
            appended = partition.append_as_leader(data, 0, len(data), -1)
        except WireError:
            return
        if appended is not None:
            waiter: Any = Ack(self, *appended[:2], node.log.batches[-1].data)
            if partition.is_safe(appended[1], -1):
                partition.acknowledge(waiter)
            else:
                partition.wait(appended[1], -1, 1 << 30, waiter)

    def flush(self) -> None:
        if (node := self.any_node()) is not None:
            node.log.flush_some()

    def deliver(self) -> None:
        for wire in self.rng.sample(list(self.wires.values()), len(self.wires)):
            to_follower = wire.to_follower and not wire.is_held
            if to_follower and (self.rng.random() < 0.5 or not wire.to_leader):
                wire.deliver_to_follower()
                return
            if wire.to_leader and not wire.is_slow:
                wire.deliver_to_leader()
                return

    def send(self) -> None:
        for wire in self.rng.sample(list(self.wires.values()), len(self.wires)):
            if wire.marked:
                wire.send_data()
                return

    def hear(self) -> None:
        if (node := self.any_node()) is not None and node.image is not self.image:
            node.see(self.image)

    def connect(self) -> None:
        if (node := self.any_node()) is None:
            return
        for leader_id, fetcher in node.replicating.fetching.fetchers.items():
            leader = self.nodes.get(leader_id)
            if leader is None or fetcher._link is not None or not fetcher.followings:
                continue
            if leader.image.nodes[node.node_id].node_epoch <= node.node_epoch:
                self.wires[node.node_id, leader_id] = Wire(node, leader, self.rng)

    def settle(self) -> None:
        """Let the quorum decide about what is proposed, or lose its answer."""
        if not self.proposals:
            return
        command, outcome = self.proposals.pop(self.rng.randrange(len(self.proposals)))
        found: Any = Unknown(message="lost")
        if self.rng.random() < 0.9:
            found = self.apply(command)
            found = found if self.rng.random() < 0.9 else Unknown(message="lost")
        if not outcome.done():
            outcome.set_result(found)

    def join(self) -> None:
        for node in self.nodes.values():
            node.replicating.keeper._join_all(1e18)

    def lag(self) -> None:
        """Time passes; who is behind lags."""
        self.clock.ms += self.rng.choice((10, 300, 11_000))
        for node in self.nodes.values():
            leader, keeper = node.partition.leader, node.replicating.keeper
            if leader is None:
                continue
            if leader.awaited and leader.stop_waiting(self.clock.ms):
                node.partition.look_at_watermark()
            node.partition.announce()
            if leader.isr and node.key not in keeper._busy:
                keeper._drop_laggards(node.key, node.partition, leader, self.clock.ms)

    def give_memory(self) -> None:
        for node in self.nodes.values():
            waiting, node.log.waiting = node.log.waiting, []
            for each in waiting:
                each()

    def break_wire(self) -> None:
        if self.wires:
            self.wires.pop(self.rng.choice(list(self.wires))).abort("")

    def crash(self) -> None:
        if (node := self.any_node()) is not None:
            self.lose_power(node)

    def lose_power(self, node: PlainNode) -> None:
        del self.nodes[node.node_id]
        self.end_wires(node)
        self.logs[node.node_id] = node.log.reopened()
        self.stored[node.node_id] = self.rng.randint(0, node.partition.high_watermark)
        node.partition.close()

    def end_wires(self, node: PlainNode) -> None:
        for key in [each for each in self.wires if node.node_id in each]:
            self.wires.pop(key).abort("")

    def restart(self) -> None:
        down = [each for each in NODES if each not in self.nodes]
        if down:
            self.start(self.rng.choice(down), Proof.FLUSHED)

    def start(self, node_id: NodeId, proof: Proof) -> None:
        outcome = self.apply(self.cluster.registration(node_id, proof=proof))
        assert isinstance(outcome, Applied)
        self.boot(node_id)
        self.nodes[node_id].set_lease(valid=False)
        self.fenced_at[node_id] = self.image.version
        self.hear_wires()

    def hear_wires(self) -> None:
        self.wires = {key: each for key, each in self.wires.items() if each.is_open}

    def lease(self) -> None:
        """Lose a lease, or get it back; who was fenced has heard of that by then."""
        if (node := self.any_node()) is None:
            return
        if node.lease.valid_until_us:
            node.set_lease(valid=False)
        elif node.image.version >= self.fenced_at[node.node_id]:
            self.give_lease(node)

    def give_lease(self, node: PlainNode) -> None:
        id_, epoch = node.node_id, node.node_epoch
        self.apply(UnfenceNode(command_id=self.new_id(), node_id=id_, node_epoch=epoch))
        node.set_lease(valid=True)

    def fence(self) -> None:
        node_id = self.rng.choice(NODES)
        node = self.nodes.get(node_id)
        if node is None or not node.lease.valid_until_us:
            self.note_fenced(node_id)

    def note_fenced(self, node_id: NodeId) -> None:
        nodes = ((node_id, self.cluster.epoch(node_id)),)
        self.apply(FenceNodes(command_id=self.new_id(), nodes=nodes))
        self.fenced_at[node_id] = self.image.version

    def elect(self) -> None:
        self.order_election(ElectionKind.PREFERRED)

    def order_election(self, kind: ElectionKind) -> None:
        where = ((self.topic_id, (0,)),)
        self.apply(ElectLeaders(command_id=self.new_id(), election=kind, partitions=where))

    def retain(self) -> None:
        """A replica drops old records on its own, whole batches that are committed."""
        if (node := self.any_node()) is None:
            return
        limit = min(node.partition.high_watermark, node.log.promised_offset)
        ends = [each.end for each in node.log.batches if each.end <= limit]
        if ends:
            self.trim(node, self.rng.choice(ends), is_deletion=False)

    def delete(self) -> None:
        """Somebody deletes records, as the handler does it."""
        leaders = [each for each in self.nodes.values() if each.leads]
        if leaders:
            node = self.rng.choice(leaders)
            offset = self.rng.randint(node.log.log_start_offset, node.partition.high_watermark)
            self.trim(node, offset, is_deletion=True)

    def trim(self, node: PlainNode, offset: int, *, is_deletion: bool) -> None:
        self.work[0].spawn("trim", self._trim(node, offset, is_deletion=is_deletion))

    async def _trim(self, node: PlainNode, offset: int, *, is_deletion: bool) -> None:
        self.dropped = max(self.dropped, offset)
        try:
            await node.log.trim_to(offset)
            node.log.on_promised(node.log)
            if is_deletion:
                node.partition.announce()
                await delete_records._low_watermark(node.partition, offset, 1e6)  # type: ignore[arg-type]
                self.deleted = max(self.deleted, offset)
        except WireError:
            pass

    # -- in the end

    async def heal(self) -> None:
        """Let everything work for a while; all logs are equal then."""
        for count in range(HEALING_ROUNDS):
            self.mend(count)
            self.restart()
            for node in list(self.nodes.values()):
                if node.image is not self.image:
                    node.see(self.image)
                if not node.lease.valid_until_us:
                    self.give_lease(node)
                node.log.flush_some()
            self.give_memory()
            self.hear_wires()
            for _ in NODES:
                self.connect()
            for wire in list(self.wires.values()):
                wire.work()
            self.clock.ms += 20
            self.join()
            self.settle()
            if count % 10 == 0:
                self.lag()
            for _ in range(15):
                await asyncio.sleep(0)
            self.hear_wires()
            self.check()
            if self.is_whole():
                return
        raise AssertionError("they never agree\n" + self.story())

    def mend(self, count: int) -> None:
        """Undo what does not pass by itself; `count` rounds have gone by."""


async def live(life: PartitionLife) -> PartitionLife:
    """Live through so many steps, and heal."""
    for _ in range(STEPS):
        await life.step()
    await life.heal()
    for each in life.work:
        await each.close()
    return life


def rest_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody rest, and nobody have producers."""

    async def no_producers(*_: Any) -> bool:
        await asyncio.sleep(0)
        return True

    monkeypatch.setattr(divergence, "load_producers", no_producers)
    monkeypatch.setattr(followed_partition.FollowedPartition, "next_rest_s", lambda *_: 0.0)
    monkeypatch.setattr(log_start_sync, "TRIM_AGAIN_S", 0.0)
    monkeypatch.setattr(isr, "REST_S", 0.0)
