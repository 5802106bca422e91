"""The partitions of a node follow the image: opened, changed, deleted, found again."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dlog.batch.records import Record, encode
from dlog.errors import (
    NotLeaderOrFollowerError,
    OutOfOrderSequenceNumberError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from dlog.types import PartitionEpoch, TopicPartition
from dlogd.config.schema import build
from dlogd.metadata.machine.image_changes import with_topics
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_snapshots import SNAPSHOT
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.config_reload import plan_reload
from dlogd.storage.directory.data_directory import WEAK, DataDirectory
from tests.fakes.front import until
from tests.fakes.logs import values_of
from tests.fakes.replica_host import Host, append, check


def test_partitions_come_and_go_with_the_image(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            topic_id = host.create("t", partitions=3)
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.partition("t", 0)
            await host.follow()
            assert manager.partition("t", 2) is manager.partition_by_id(topic_id, 2)
            assert len(manager.by_id) == len(manager.by_name) == 3
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.partition("t", 3)
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.partition_by_id(topic_id, -1)
            with pytest.raises(UnknownTopicIdError):
                manager.partition_by_id(UUID(int=999), 0)
            old = manager.partition("t", 0)
            await append(old, b"old")
            host.delete(topic_id)
            again = host.create("t")
            await host.follow()
            assert isinstance(old.closed, UnknownTopicOrPartitionError)
            new = manager.partition("t", 0)
            assert new is not old and new.topic_id == again and new.log.log_end_offset == 0
            with pytest.raises(UnknownTopicIdError):
                manager.partition_by_id(topic_id, 0)
            assert len(manager.by_id) == len(manager.by_name) == 1

    check(scenario, tmp_path)


def test_a_large_topic_goes_with_a_few_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is made in its place waits for them."""
    marked: list[int] = []
    mark_deleted = DataDirectory.mark_deleted

    def count(self: DataDirectory, names: Sequence[str]) -> None:
        marked.append(len(names))
        mark_deleted(self, names)

    monkeypatch.setattr(DataDirectory, "mark_deleted", count)

    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            topic_id = host.create("t", partitions=40)
            await host.follow()
            host.delete(topic_id)
            host.create("t", partitions=2)
            await host.follow()
            assert len(manager.by_id) == 2
            assert sum(marked) == 40 and len(marked) <= 8

    check(scenario, tmp_path)


def test_what_was_created_and_deleted_before_it_was_opened_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            topic_id = host.create("t", partitions=5)
            host.tell()
            await asyncio.sleep(0)
            host.delete(topic_id)
            await host.follow()
            await host.follow()
            assert not manager.by_id and not manager.by_name and not manager.failures
            assert not host.logs.logs

    check(scenario, tmp_path)


def test_what_was_deleted_while_the_node_registered_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            doomed, kept = host.create("doomed", partitions=2), host.create("kept")
            await host.follow()
            await append(manager.partition("kept", 0), b"kept")
        async with host.running(registering=lambda: host.delete(doomed)) as manager:
            assert list(manager.by_id) == [(kept, 0)]
            assert list(host.logs.logs) == [(kept, 0)]
            assert await values_of(manager.partition("kept", 0).log) == [(0, b"kept")]

    check(scenario, tmp_path)


def test_configs_reach_open_partitions(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            topic_id = host.create("t", max_message_bytes="5000")
            host.create("u")
            await host.follow()
            t, u = manager.partition("t", 0), manager.partition("u", 0)
            assert t.settings.batch_bytes_max == 5000
            host.alter(topic_id, "max.message.bytes", "6000")
            await host.follow()
            assert (t.settings.batch_bytes_max, u.settings.batch_bytes_max) == (6000, 1048588)
            host.alter(None, "min.insync.replicas", "2")
            await host.follow()
            assert t.leader is not None and u.leader is not None
            # No more than there are replicas.
            assert t.leader.min_isr == u.leader.min_isr == 1
            manager.reconfigure(build({"message.bytes.max": 7000}, host.config))
            await until(lambda: u.settings.batch_bytes_max == 7000)
            assert t.settings.batch_bytes_max == 6000
            assert u.log.config.max_message_bytes == 7000

    check(scenario, tmp_path)


def test_configs_that_change_while_the_node_registers_reach_what_was_recovered(
    tmp_path: Path,
) -> None:
    """Recovery may take long; retention would go on by what held before it."""

    async def scenario(host: Host) -> None:
        async with host.running():
            topic_id = host.create("t", retention_ms="1000")
            await host.follow()

        def alter() -> None:
            host.alter(topic_id, "retention.ms", "-1")
            host.alter(topic_id, "flush.policy", "never")

        async with host.running(registering=alter) as manager:
            plog = manager.partition("t", 0).log
            assert plog.config.retention_ms == -1
            assert not plog.config.durable and not plog.active.durable
            assert plog.directory.exists(WEAK)

    check(scenario, tmp_path)


def test_a_change_of_one_partition_costs_nothing_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(host: Host) -> None:
        async with host.running():
            topic_id = host.create("t", partitions=20)
            await host.follow()
            changed: list[int] = []
            real = ReplicaManager._change

            async def change(manager: ReplicaManager, partition: Partition, effective: Any) -> None:
                changed.append(partition.topic_partition.partition)
                await real(manager, partition, effective)

            monkeypatch.setattr(ReplicaManager, "_change", change)
            topic = host.image.topics_by_id[topic_id]
            other = replace(topic.partitions[7], partition_epoch=PartitionEpoch(99))
            partitions = (*topic.partitions[:7], other, *topic.partitions[8:])
            host.image = with_topics(host.image, [replace(topic, partitions=partitions)])
            host.tell()
            await until(lambda: changed)
            await asyncio.sleep(0.05)
            assert changed == [7]

    check(scenario, tmp_path)


def test_reloaded_limits_of_producers_reach_open_partitions(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            host.create("t")
            await host.follow()
            partition = manager.partition("t", 0)
            fields = {"producer_epoch": 0, "base_sequence": 0}
            for producer_id in range(5):
                await append(partition, b"x", **fields, producer_id=producer_id)
            producers = partition.producers
            wanted = build({"producer_id.expiry": 60_000, "producer_id.per_partition.max": 2})
            plan = plan_reload(host.config, wanted)
            assert not plan.needs_restart and len(plan.applied) == 2
            manager.reconfigure(plan.config)
            await until(lambda: producers.expiry_ms == 60_000)
            assert len(producers) == 5
            await append(partition, b"x", **fields, producer_id=5)
            assert [each.producer_id for each in producers.describe()] == [4, 5]
            assert producers.expire(SystemClock().timestamp_ms() + 60_001) == 2

    check(scenario, tmp_path)


def test_a_reload_while_partitions_are_opened_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            host.create("t")
            await host.follow()
            gate, real = asyncio.Event(), host.logs.create

            async def late(*arguments: Any, **options: Any) -> Any:
                await gate.wait()
                return await real(*arguments, **options)

            monkeypatch.setattr(host.logs, "create", late)
            host.create("u")
            host.tell()
            await asyncio.sleep(0.01)
            manager.reconfigure(build({"message.bytes.max": 7000}, host.config))
            gate.set()
            await until(lambda: manager.partition("t", 0).settings.batch_bytes_max == 7000)
            assert manager.partition("u", 0).settings.batch_bytes_max == 7000

    check(scenario, tmp_path)


def test_who_waits_for_partitions_is_let_go_at_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            host.create("t")

            async def never(*_: Any) -> Any:
                await asyncio.Event().wait()

            monkeypatch.setattr(host.logs, "create", never)
            host.tell()
            waiting = asyncio.ensure_future(manager.await_partitions(["t"]))
            await asyncio.sleep(0.01)
            with pytest.raises(NotLeaderOrFollowerError):
                manager.partition("t", 0)
            assert not waiting.done()
        await waiting

    check(scenario, tmp_path)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [None, b"", b"nonsense", "older"])
def test_producers_are_known_again_after_a_restart(
    tmp_path: Path, clean: bool, damage: bytes | str | None
) -> None:
    async def scenario(host: Host) -> None:
        host.create("t")
        fields = {"producer_id": 5, "producer_epoch": 0}
        older = b""
        async with host.running(clean=clean) as manager:
            partition = manager.partition("t", 0)
            for sequence in range(4):
                await append(partition, b"%d" % sequence, base_sequence=sequence, **fields)
                if sequence == 1:
                    await manager._snapshotting.save(partition)
                    older = snapshot_of(tmp_path).read_bytes()
        if damage is not None:
            snapshot_of(tmp_path).write_bytes(older if isinstance(damage, str) else damage)
        async with host.running() as manager:
            partition = manager.partition("t", 0)
            assert await append(partition, b"2", base_sequence=2, **fields) == 2
            with pytest.raises(OutOfOrderSequenceNumberError):
                await append(partition, b"x", base_sequence=9, **fields)
            assert await append(partition, b"4", base_sequence=4, **fields) == 4
            assert [value for _, value in await values_of(partition.log)] == [
                b"0", b"1", b"2", b"3", b"4",
            ]  # fmt: skip

    check(scenario, tmp_path)


def snapshot_of(folder: Path) -> Path:
    (found,) = folder.rglob(SNAPSHOT)
    return found


def test_a_topic_made_anew_is_never_served_from_the_log_of_the_one_before(tmp_path: Path) -> None:
    """The image knows the new one, the old one is still open: whoever names the id means the new
    one, and must neither write into the old log nor read from it (H19, KIP-516).
    """

    async def scenario() -> None:
        host = Host(tmp_path)
        old = host.create("t", 3)
        async with host.running() as manager:
            host.delete(old)
            new = host.create("t", 3)
            host.tell()
            assert (old, 1) in manager.by_id and (new, 1) not in manager.by_id
            with pytest.raises(NotLeaderOrFollowerError, match="t-1 is not open here"):
                manager.partition_by_id(new, 1)
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.partition_by_id(new, 3)
            await manager.await_partitions(())
            assert manager.partition_by_id(new, 1).topic_id == new
            with pytest.raises(UnknownTopicIdError):
                manager.partition_by_id(old, 1)

    asyncio.run(scenario())


def test_a_deleted_topic_takes_nothing_from_the_moment_that_the_image_says_so(
    tmp_path: Path,
) -> None:
    """Its logs are deleted one by one: none of them may serve its name meanwhile."""

    async def scenario() -> None:
        host = Host(tmp_path)
        old = host.create("t", 3)
        async with host.running() as manager:
            await host.follow()
            partition = manager.partition("t", 1)
            host.delete(old)
            host.create("t", 3)
            host.tell()
            batch = bytearray(encode([Record(value=b"late", timestamp_ms=1)]))
            assert manager.by_name["t", 1] is partition, "its log is there yet"
            with pytest.raises(UnknownTopicOrPartitionError, match="t was deleted"):
                partition.append_as_leader(batch, 0, len(batch), 1)
            with pytest.raises(UnknownTopicOrPartitionError, match="t was deleted"):
                partition.check_serving()
            await manager.await_partitions(())
            assert manager.partition("t", 1).append_as_leader(batch, 0, len(batch), 1) == (0, 1, -1)

    asyncio.run(scenario())


def test_what_gets_its_place_back_before_its_turn_comes_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader may have heard by then what it holds, and count on it (seed 61588)."""
    monkeypatch.setattr("dlogd.replication.replica_deletion.COUNT_MAX", 1)

    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            busy, topic_id = host.create("busy"), host.create("t")
            await host.follow()
            partition = manager.partition("t", 0)
            await append(partition, b"kept")
            deleting, may_go_on = asyncio.Event(), asyncio.Event()
            delete = host.logs.delete

            async def slow(name: TopicPartition, of_topic: UUID) -> None:
                deleting.set()
                await may_go_on.wait()
                await delete(name, of_topic)

            host.logs.delete = slow  # type: ignore[method-assign]
            host.place(busy, 2)
            host.place(topic_id, 2)
            host.tell()
            await deleting.wait()
            assert manager.by_id.get((topic_id, 0)) is partition, "its turn has not come"
            host.place(topic_id, 2, 1)
            host.tell()
            may_go_on.set()
            await host.follow()
            assert list(manager.by_id.items()) == [((topic_id, 0), partition)]
            assert not partition.is_ended
            assert await values_of(partition.log) == [(0, b"kept")]
            host.place(topic_id, 2)
            await host.follow()
            assert partition.is_ended and not manager.by_id and not host.logs.logs

    check(scenario, tmp_path)
