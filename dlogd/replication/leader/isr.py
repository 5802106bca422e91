"""ISR keeper: proposes followers that caught up, removes those that lag.

Each change is an `AlterPartition` command, a compare-and-set on the partition epoch (KIP-497): one
at a time for each partition, made anew from the present state when it was refused, and proposed
again with its own id while nobody knows what became of it. An expansion counts for the watermark
from before it is proposed; a shrink when it is in the image, never earlier.
Owner: the event loop's thread; made by `dlogd.node.replication_setup`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from dlog.types import NodeId
from dlogd.metadata.commands.codec import AlterPartition
from dlogd.metadata.interface import Metadata
from dlogd.metadata.state.image import (
    Applied,
    NodeRegistration,
    PartitionImage,
    Refused,
)
from dlogd.replication.partition.leader_state import (
    NEAR_MS,
    WAIT_MS_MAX,
    FollowerProgress,
    LeaderState,
)
from dlogd.replication.partition.partition import Partition
from dlogd.replication.placement_diff import Key
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

PROPOSE_TIMEOUT_MS = 5_000
REST_S = 0.2
"""How long a partition rests after a refusal."""
TICK_S = 0.002
LOOK_S = 1.0
"""How often laggards are looked for."""
PROPOSALS_MAX = 512
"""Proposals under way at a time; the rest waits."""


@dataclass(slots=True)
class IsrCounters:
    """What happened since the start; plain values that metrics read."""

    expands_total: int = 0
    shrinks_total: int = 0
    refused_total: int = 0


class IsrKeeper:
    """One for all partitions of a node. Life: `start`; it ends with its tasks."""

    def __init__(
        self,
        store: Metadata,
        node_id: NodeId,
        partitions: dict[Key, Partition],
        *,
        clock: Clock,
        tasks: Tasks,
        new_id: Callable[[], UUID],
        node_epoch: Callable[[], int],
    ) -> None:
        self.counters = IsrCounters()
        self._store = store
        self._node_id = node_id
        self._partitions = partitions
        self._clock = clock
        self._tasks = tasks
        self._new_id = new_id
        self._node_epoch = node_epoch
        self._wanted: dict[Key, None] = {}  # somebody may join
        self._busy: dict[Key, None] = {}
        self._resting: dict[Key, float] = {}  # until when, by the loop's time
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Look from now on."""
        self._tasks.spawn("join ISRs", self._join_often(), is_vital=True)
        self._tasks.spawn("watch for laggards", self._watch_often(), is_vital=True)

    # -- joining

    def on_progress(self, key: Key, partition: Partition, progress: FollowerProgress) -> None:
        """A follower has said something: it may be in sync by now, or nearly."""
        leader = partition.leader
        if leader is None or progress.node_id in leader.isr:
            return
        if partition.may_join(progress):
            self.may_join(key)
        elif progress.behind_ms <= NEAR_MS:
            image = self._image_of(key)
            if image is not None and self._is_eligible(progress, image):
                start = partition.log.log_start_offset
                if leader.wait_for(progress, start, self._clock.now_ms()):
                    loop = asyncio.get_running_loop()
                    loop.call_later(WAIT_MS_MAX / 1000 + TICK_S, self._stop_waiting, key)

    def _stop_waiting(self, key: Key) -> None:
        """Let the watermark of a partition go on without who takes too long to join."""
        partition = self._partitions.get(key)
        leader = None if partition is None else partition.leader
        if partition is None or leader is None or not leader.awaited:
            return
        if leader.stop_waiting(self._clock.now_ms()):
            partition.look_at_watermark()

    def may_join(self, key: Key) -> None:
        """A follower of a partition has caught up, or may be taken for active now."""
        if key not in self._wanted:
            self._wanted[key] = None
            self._wake.set()

    async def _join_often(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            now_s = asyncio.get_running_loop().time()
            rest_s = self._join_all(now_s)
            if rest_s is not None:
                asyncio.get_running_loop().call_later(rest_s, self._wake.set)

    def _join_all(self, now_s: float) -> float | None:
        """Propose what can be proposed; return after how long to look again."""
        rest_s: float | None = None
        for key in list(self._wanted):
            if len(self._busy) >= PROPOSALS_MAX:
                break  # who ends wakes this again
            until_s = self._resting.get(key, 0.0)
            if until_s > now_s:
                rest_s = min(until_s - now_s, rest_s or REST_S)
            elif key not in self._busy:
                self._wanted.pop(key, None)
                self._resting.pop(key, None)
                self._join(key)
        return rest_s

    def _join(self, key: Key) -> None:
        partition = self._partitions.get(key)
        leader = None if partition is None else partition.leader
        image = self._image_of(key)
        if partition is None or leader is None or image is None or leader.pending:
            return
        if not _is_same(leader, image):
            return  # the image is about to be told to the partition
        joining = [
            progress.node_id
            for progress in leader.followers.values()
            if partition.may_join(progress) and self._is_eligible(progress, image)
        ]
        if joining:
            isr = (*image.isr, *joining)
            partition.propose_isr(joining)
            self._propose(key, partition, leader, image, isr)

    def _is_eligible(self, progress: FollowerProgress, image: PartitionImage) -> bool:
        node = self._store.image.nodes.get(progress.node_id)
        return (
            node is not None
            and node.active
            and node.node_epoch == progress.node_epoch
            and progress.node_id not in image.offline
        )

    # -- leaving

    async def _watch_often(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now_ms = self._clock.now_ms()
            for key, partition in list(self._partitions.items()):
                leader = partition.leader
                if leader is None:
                    continue
                self._stop_waiting(key)  # a clock may have run behind the timer
                if len(leader.isr) < len(leader.followers):
                    # Retention moves a log's start without a word; who is out may wait for it.
                    partition.announce()
                if leader.isr and key not in self._busy and len(self._busy) < PROPOSALS_MAX:
                    self._drop_laggards(key, partition, leader, now_ms)

    def _drop_laggards(
        self, key: Key, partition: Partition, leader: LeaderState, now_ms: int
    ) -> None:
        lagging = leader.laggards(
            partition.log.log_end_offset, now_ms, partition.settings.replica_lag_ms_max
        )
        image = self._image_of(key)
        if not lagging or image is None or leader.pending or not _is_same(leader, image):
            return
        isr = tuple(each for each in image.isr if each not in lagging)
        log.warning(
            "Removing lagging followers from the ISR partition=%s nodes=%s isr=%s high_watermark=%d"
            " log_end_offset=%d",
            partition.topic_partition,
            lagging,
            list(isr),
            partition.high_watermark,
            partition.log.log_end_offset,
        )
        self._propose(key, partition, leader, image, isr)

    # -- proposing

    def _image_of(self, key: Key) -> PartitionImage | None:
        topic = self._store.image.topics_by_id.get(key[0])
        return None if topic is None else topic.partition(key[1])

    def _propose(
        self,
        key: Key,
        partition: Partition,
        leader: LeaderState,
        image: PartitionImage,
        isr: tuple[NodeId, ...],
    ) -> None:
        epochs = {each.node_id: each.node_epoch for each in leader.followers.values()}
        known = self._store.image.nodes
        command = AlterPartition(
            command_id=self._new_id(),
            topic_id=key[0],
            partition=key[1],
            node_id=self._node_id,
            node_epoch=self._node_epoch(),
            leader_epoch=leader.leader_epoch,
            partition_epoch=image.partition_epoch,
            isr=tuple(
                (each, epochs[each] if each not in image.isr else _epoch_of(known, each))
                for each in isr
            ),
        )
        self._busy[key] = None
        self._tasks.spawn("change ISR", self._carry_out(key, partition, leader, command))

    async def _carry_out(
        self, key: Key, partition: Partition, leader: LeaderState, command: AlterPartition
    ) -> None:
        grows = len(command.isr) > len(leader.isr) + 1
        try:
            outcome = await self._outcome_of(partition, leader, command)
            if outcome is None:
                return
            if isinstance(outcome, Applied):
                self.counters.expands_total += grows
                self.counters.shrinks_total += not grows
                log.info(
                    "Changed ISR partition=%s isr=%s partition_epoch=%d",
                    partition.topic_partition,
                    [node_id for node_id, _ in command.isr],
                    outcome.value,
                )
                return
            self.counters.refused_total += 1
            log.info(
                "ISR change was refused partition=%s isr=%s reason=%s",
                partition.topic_partition,
                [node_id for node_id, _ in command.isr],
                outcome.message,
            )
            image = self._image_of(key)
            if image is not None and _is_same(leader, image):
                # Else the ISR is another one already, which the partition is about to be told.
                leader.withdraw()
                partition.look_at_watermark()
            self._resting[key] = asyncio.get_running_loop().time() + REST_S
            self._wanted[key] = None
        finally:
            del self._busy[key]
            self._wake.set()

    async def _outcome_of(
        self, partition: Partition, leader: LeaderState, command: AlterPartition
    ) -> Applied | Refused | None:
        """Propose until it is known what has become of it; None: the epoch is over.

        Until then `leader.pending` counts, also while this node has no lease. Who has once heard
        that it may come true takes a refusal only from who applies commands.
        """
        is_sent = False
        while partition.leader_epoch == leader.leader_epoch and not partition.is_ended:
            deadline_ms = self._clock.now_ms() + PROPOSE_TIMEOUT_MS
            outcome = await self._store.propose(command, deadline_ms)
            if isinstance(outcome, Applied):
                return outcome
            if isinstance(outcome, Refused):
                if not is_sent or command.command_id in self._store.image.outcomes:
                    return outcome
                await asyncio.sleep(REST_S)
            is_sent = True
        return None

    def look_at(self, key: Key) -> None:
        """A partition is led, or led on with another ISR: who has caught up already may join."""
        partition = self._partitions.get(key)
        leader = None if partition is None else partition.leader
        if partition is None or leader is None:
            return
        if any(partition.may_join(each) for each in leader.followers.values()):
            self.may_join(key)
        elif len(leader.isr) < len(leader.followers):
            partition.announce()  # they may have to trim their logs, or to say that they have

    def on_image(self) -> None:
        """Nodes have changed: who was not active before may be now."""
        for key in list(self._partitions):
            self.look_at(key)


def _is_same(leader: LeaderState, image: PartitionImage) -> bool:
    """Whether the leader has been told of this image of its partition."""
    return (image.leader_epoch, image.partition_epoch) == (
        leader.leader_epoch,
        leader.partition_epoch,
    )


def _epoch_of(nodes: Mapping[NodeId, NodeRegistration], node_id: NodeId) -> int:
    found = nodes.get(node_id)
    return -1 if found is None else found.node_epoch
