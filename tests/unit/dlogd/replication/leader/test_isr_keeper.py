"""Proposals to change an ISR count until it is sure what has become of them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import InvalidUpdateVersionError, NotControllerError, NotLeaderOrFollowerError
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.state.image import (
    Applied,
    ClusterImage,
    NodeRegistration,
    Outcome,
    PartitionImage,
    Refused,
    TopicImage,
    Unknown,
)
from dlogd.replication.leader import isr
from dlogd.replication.leader.isr import IsrKeeper
from dlogd.replication.partition import leader_state
from dlogd.replication.partition.leader_state import Leadership
from dlogd.replication.partition.partition import Partition
from dlogd.replication.role_assigner import leadership
from dlogd.runtime.tasks import Tasks
from tests.fakes.front import Front, until
from tests.fakes.led_partition import Follower, Waiter, append, batch, check

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
NO_LEADER = Refused.of(NotControllerError("nobody leads"))


class Store:
    """Metadata that are what the test says; a proposal waits until the test settles it."""

    def __init__(self, partition: Partition) -> None:
        nodes = {
            each: NodeRegistration(
                node_id=each,
                node_epoch=1,
                directory_ids=(),
                addresses=(),
                rack=None,
                version="1",
                fenced=False,
            )
            for each in (ONE, TWO, THREE)
        }
        self.topic_id = partition.topic_id
        self.proposed: list[tuple[Any, asyncio.Future[Outcome]]] = []
        self.image = ClusterImage(nodes=nodes)
        self.set((ONE, TWO), 7)

    def set(self, isr: tuple[NodeId, ...], partition_epoch: int) -> PartitionImage:
        partition = PartitionImage(
            replicas=(ONE, TWO, THREE),
            isr=isr,
            leader=ONE,
            leader_epoch=LeaderEpoch(3),
            partition_epoch=PartitionEpoch(partition_epoch),
        )
        topic = TopicImage(name="t", topic_id=self.topic_id, partitions=(partition,))
        self.image = replace(self.image, topics_by_id={topic.topic_id: topic})
        return partition

    def facts(self) -> Leadership:
        return leadership(ONE, self.image.topics_by_id[self.topic_id].partitions[0], 1)

    async def propose(self, command: Any, deadline_ms: int) -> Outcome:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.proposed.append((command, outcome))
        return await outcome

    async def settle(self, outcome: Outcome) -> None:
        number = len(self.proposed)
        await until(lambda: len(self.proposed) >= number and not self.proposed[-1][1].done())
        self.proposed[-1][1].set_result(outcome)
        await asyncio.sleep(0.01)


class Scene:
    """A leader with a member and a follower, which is about to join or a member too."""

    def __init__(
        self, front: Front, partition: Partition, isr: tuple[NodeId, ...] = (ONE, TWO)
    ) -> None:
        self.partition = partition
        self.store = Store(partition)
        self.store.set(isr, 7)
        partition.lead(LeaderEpoch(3), self.store.facts())
        self.two, self.three = Follower(partition, TWO), Follower(partition, THREE)
        for each in (self.two, self.three):
            each.progress.log_start_offset = partition.log.log_start_offset
            each.promise(0)
        key = (partition.topic_id, 0)
        self.tasks = Tasks()
        self.keeper = IsrKeeper(
            self.store,  # type: ignore[arg-type]
            ONE,
            {key: partition},
            clock=front.clock,
            tasks=self.tasks,
            new_id=lambda: UUID(int=len(self.store.proposed)),
            node_epoch=lambda: 1,
        )
        self.keeper.start()
        self.keeper.may_join(key)

    async def append(self) -> int:
        """Append what the leader and the member promise, and the follower does not have."""
        end = append(self.partition, batch())[1]
        await self.partition.log.flush()
        self.two.promise(end)
        return end


def test_an_expansion_counts_when_its_lease_was_lost_and_came_back(tmp_path: Path) -> None:
    """The epoch is the same, so what was proposed in it may still be applied."""

    async def scenario(front: Front, partition: Partition) -> None:
        scene = Scene(front, partition)
        store = scene.store
        await until(lambda: store.proposed)
        partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("no lease"))
        partition.lead(LeaderEpoch(3), store.facts())
        scene.two = Follower(partition, TWO)
        end = await scene.append()
        assert partition.high_watermark == 0, "node 3 may be a member by now"
        store.set((ONE, TWO, THREE), 8)
        await store.settle(Applied(version=1, value=8))
        partition.lead(LeaderEpoch(3), store.facts())
        assert partition.high_watermark == 0
        Follower(partition, THREE).promise(end)
        assert partition.high_watermark == end
        await scene.tasks.close()

    check(scenario, tmp_path)


def test_who_is_refused_without_a_lease_does_not_count_later(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        scene = Scene(front, partition)
        await until(lambda: scene.store.proposed)
        partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("no lease"))
        await scene.store.settle(NO_LEADER)
        partition.lead(LeaderEpoch(3), scene.store.facts())
        scene.two = Follower(partition, TWO)
        end = await scene.append()
        assert partition.high_watermark == end
        await scene.tasks.close()

    check(scenario, tmp_path)


def test_h6_a_shrink_counts_when_it_is_in_the_image_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor when nobody knows what became of it: until then who is left out may be elected."""
    monkeypatch.setattr(isr, "LOOK_S", 0.01)

    async def scenario(front: Front, partition: Partition) -> None:
        scene = Scene(front, partition, isr=(ONE, TWO, THREE))
        store = scene.store
        waiter = Waiter()
        scene.two.progress.caught_up_ms = front.clock.now_ms()
        end = await scene.append()
        partition.wait(end, -1, 60_000, waiter)
        scene.three.progress.caught_up_ms = front.clock.now_ms() - 3_600_000
        await until(lambda: store.proposed)
        assert [node_id for node_id, _ in store.proposed[0][0].isr] == [ONE, TWO]
        assert partition.high_watermark == 0 and not waiter.settled
        await store.settle(Unknown(message="The deadline passed"))
        await until(lambda: len(store.proposed) == 2)
        scene.two.promise(end)
        assert partition.high_watermark == 0 and not waiter.settled
        store.set((ONE, TWO), 8)
        await store.settle(Applied(version=1, value=8))
        assert partition.high_watermark == 0, "the partition has not been told yet"
        partition.lead(LeaderEpoch(3), store.facts())
        assert partition.high_watermark == end and waiter.settled == [(0, None)]
        await scene.tasks.close()

    check(scenario, tmp_path)


def test_a_refusal_after_an_unknown_outcome_proves_nothing(tmp_path: Path) -> None:
    """The first copy may be in the log of the quorum; that the second was not sent says nothing."""

    async def scenario(front: Front, partition: Partition) -> None:
        scene = Scene(front, partition)
        store = scene.store
        await until(lambda: store.proposed)
        await store.settle(Unknown(message="The deadline passed"))
        await until(lambda: len(store.proposed) == 2)
        await store.settle(NO_LEADER)
        end = await scene.append()
        assert partition.high_watermark == 0
        await until(lambda: len(store.proposed) == 3)
        command = store.proposed[-1][0]
        refusal = Refused(code=1, message="by the machine")
        outcomes = store.image.outcomes.with_newest(command.command_id, refusal, 10)
        store.image = replace(store.image, outcomes=outcomes)
        await store.settle(refusal)
        assert partition.high_watermark == end
        assert {each.command_id for each, _ in store.proposed} == {command.command_id}
        await scene.tasks.close()

    check(scenario, tmp_path)


def test_a_refusal_because_the_isr_is_newer_waits_for_that(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        scene = Scene(front, partition)
        store = scene.store
        await until(lambda: store.proposed)
        store.set((ONE, TWO, THREE), 8)  # the partition has not been told yet
        await store.settle(Refused.of(InvalidUpdateVersionError("it is 8")))
        await scene.append()
        assert partition.high_watermark == 0
        await scene.tasks.close()

    check(scenario, tmp_path)


def test_who_is_out_hears_where_the_log_begins_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention tells nobody: a follower that has all, but not that start, would wait for ever."""
    monkeypatch.setattr(isr, "LOOK_S", 0.01)

    async def scenario(front: Front, partition: Partition) -> None:
        scene = Scene(front, partition)
        await until(lambda: scene.store.proposed)
        told = scene.three.watermarks
        await until(lambda: scene.three.watermarks > told)
        scene.store.set((ONE, TWO, THREE), 8)
        await scene.store.settle(Applied(version=1, value=8))
        partition.lead(LeaderEpoch(3), scene.store.facts())
        told = scene.three.watermarks
        await asyncio.sleep(0.05)
        assert scene.three.watermarks == told, "all are in sync: nobody is bothered"
        await scene.tasks.close()

    check(scenario, tmp_path)


def test_who_takes_too_long_to_join_is_waited_for_no_longer_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isr, "LOOK_S", 1000.0)
    monkeypatch.setattr(isr, "WAIT_MS_MAX", 30)
    monkeypatch.setattr(leader_state, "WAIT_MS_MAX", 30)

    async def scenario(front: Front, partition: Partition) -> None:
        scene = Scene(front, partition)
        await until(lambda: scene.store.proposed)
        await scene.store.settle(NO_LEADER)
        end = await scene.append()
        assert partition.high_watermark == end
        scene.three.progress.behind_ms = 10
        scene.keeper.on_progress((partition.topic_id, 0), partition, scene.three.progress)
        leader = partition.leader
        assert leader is not None and leader.awaited == (THREE,)
        end = await scene.append()
        assert partition.high_watermark < end or not leader.awaited  # it may have been slow
        await until(lambda: partition.high_watermark == end)
        assert not leader.awaited
        await scene.tasks.close()

    check(scenario, tmp_path)
