"""A disk that hangs while replicas on it are to be deleted: the others get theirs meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast
from uuid import UUID

from dlog.errors import KafkaStorageError
from dlogd.metadata.state.image import TopicImage
from dlogd.replication.placement_diff import Key
from dlogd.replication.replica_deletion import COUNT_MAX, MOMENT_S, ReplicaDeletion
from dlogd.runtime.tasks import Tasks
from tests.fakes.small_fleet import SmallFleet, tell

HANGING, OTHER = "data1", "data0"


async def _with_one_on_each_disk(fleet: SmallFleet) -> str:
    """Make two topics; return that whose replica on node 3 lies on the disk that will hang."""
    homes = {}
    for name in ("a1", "a2"):
        await fleet.create(name)
        homes[fleet.replica(3, name).log.directory.path.split("/")[1]] = name
    assert sorted(homes) == [OTHER, HANGING]
    return homes[HANGING]


def test_a_new_replica_waits_for_no_deletion_on_another_disk() -> None:
    async def story(fleet: SmallFleet) -> None:
        doomed = await _with_one_on_each_disk(fleet)
        disk = fleet.host(3).machine.disks[f"/{HANGING}"]
        disk.stick()
        await fleet.admin.delete_topic(doomed, timeout_ms=1000)
        await fleet.sleep(2)
        replicas = fleet.broker(3).replicas
        assert replicas is not None
        configs = {"min.insync.replicas": "1"}
        await fleet.admin.create_topic("b", partitions=1, replication_factor=3, configs=configs)
        await fleet.until(lambda: ("b", 0) in replicas.by_name, 3)
        assert fleet.replica(3, "b").log.directory.path.startswith(f"/{OTHER}")
        await fleet.produce("b", b"x")
        disk.unstick()
        files = fleet.host(3).machine.disks[f"/{HANGING}"].root.files("")
        await fleet.until(lambda: not any(doomed in path for path, _ in files), 10)

    tell(story, mounts=2, config={"disk.timeout": "30s"})


def _topics(count: int) -> dict[Key, TopicImage]:
    keys = [(UUID(int=number), 0) for number in range(count)]
    return {key: cast("TopicImage", _Named(f"t{key[0].int}")) for key in keys}


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def topic_partition(self, index: int) -> str:
        return f"{self.name}-{index}"


def _run(body: Callable[["_Disk", ReplicaDeletion], Awaitable[None]]) -> None:
    async def work() -> None:
        tasks, disk = Tasks(task_count_max=COUNT_MAX + 8), _Disk()
        try:
            await body(disk, ReplicaDeletion(disk.delete, tasks, disk.failed.set))
        finally:
            await tasks.close()

    asyncio.run(work())


class _Disk:
    """What is deleted on it waits for `answers`; names in `broken` fail."""

    def __init__(self) -> None:
        self.answers, self.failed = asyncio.Event(), asyncio.Event()
        self.broken: set[str] = set()
        self.begun: list[str] = []
        self.deleted: list[str] = []

    async def delete(self, topic: TopicImage, _index: int) -> None:
        self.begun.append(topic.name)
        await self.answers.wait()
        if topic.name in self.broken:
            raise KafkaStorageError("as the test wants it")
        self.deleted.append(topic.name)


def test_many_that_hang_are_begun_once_and_not_all_at_once() -> None:
    async def body(disk: _Disk, deletions: ReplicaDeletion) -> None:
        gone = _topics(COUNT_MAX + 10)
        for _ in range(2):  # the next time the same ones are asked for
            await asyncio.wait_for(deletions.carry_out(gone), MOMENT_S + 5)
            assert len(disk.begun) == COUNT_MAX
            assert len(deletions.undeleted) == 10
        disk.answers.set()
        for key in gone:
            await deletions.settle(key)
        await deletions.carry_out(deletions.undeleted)
        assert sorted(disk.deleted) == sorted(each.name for each in gone.values())
        assert deletions.undeleted == {}

    _run(body)


def test_a_deletion_that_fails_when_nobody_waits_is_told_and_tried_again() -> None:
    async def body(disk: _Disk, deletions: ReplicaDeletion) -> None:
        gone = _topics(2)
        disk.broken = {"t1"}
        await deletions.carry_out(gone)
        assert not deletions.undeleted and not disk.failed.is_set()
        disk.answers.set()
        await asyncio.wait_for(disk.failed.wait(), 5)
        assert [each.name for each in deletions.undeleted.values()] == ["t1"]
        await deletions.carry_out(deletions.undeleted)  # fails at once: whoever waits sees it
        assert disk.begun == ["t0", "t1", "t1"]
        await deletions.carry_out({})  # it came back: nothing is to be deleted any more
        assert deletions.undeleted == {}

    _run(body)


def test_who_opens_a_replica_again_waits_for_its_deletion() -> None:
    async def body(disk: _Disk, deletions: ReplicaDeletion) -> None:
        gone: dict[Key, Any] = _topics(1)
        (key,) = gone
        await deletions.carry_out(gone)
        waiting = asyncio.ensure_future(deletions.settle(key))
        await asyncio.sleep(0)
        assert not waiting.done()
        disk.answers.set()
        await asyncio.wait_for(waiting, 5)
        assert disk.deleted == ["t0"]

    _run(body)
