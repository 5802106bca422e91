"""The partitions of a node where logs fail, cannot be opened or cannot be deleted."""

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import KafkaStorageError
from dlog.types import NodeId
from dlogd.metadata.machine.image_changes import with_topics
from dlogd.replication import replica_manager as manager_module
from dlogd.storage.directory.data_directory import DataDirectory
from tests.fakes.front import until
from tests.fakes.logs import values_of
from tests.fakes.replica_host import Host, append, check


def test_what_cannot_be_opened_is_tried_again_at_its_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "RETRY_S", 0.1)

    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            real, attempts = host.logs.create, 0

            async def broken(*arguments: Any, **options: Any) -> Any:
                nonlocal attempts
                attempts += 1
                raise KafkaStorageError("the disk is on fire")

            monkeypatch.setattr(host.logs, "create", broken)
            topic_id = host.create("t")
            await host.follow()
            with pytest.raises(KafkaStorageError, match="on fire"):
                manager.partition("t", 0)
            assert [str(name) for name in manager.failures] == [
                str(host.image.topics["t"].topic_partition(0))
            ]
            for number in range(20):
                host.alter(topic_id, "max.message.bytes", str(5000 + number))
                await host.follow()
            key = (topic_id, 0)
            assert (manager.offline_keys(), manager.led_count) == (frozenset([key]), 0)
            assert manager.offline_keys() is manager.offline_keys()
            attempts = 0
            await asyncio.sleep(0.55)
            assert 3 <= attempts <= 6, "one timer, however often the image has changed"
            monkeypatch.setattr(host.logs, "create", real)
            await until(lambda: not manager.failures)
            assert manager.partition("t", 0).settings.batch_bytes_max == 5019
            assert (manager.offline_keys(), manager.led_count) == (frozenset(), 1)

    check(scenario, tmp_path)


def test_a_log_that_fails_in_service_is_offline_and_not_led(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            topic_id = host.create("t", partitions=3)
            await host.follow()
            before = manager.offline_keys()
            assert (before, manager.led_count) == (frozenset(), 3)
            manager.partition("t", 1).log.fail(OSError(errno.EINVAL, "not the disk's fault"))
            assert manager.offline_keys() == frozenset([(topic_id, 1)])
            assert (list(manager.offline()), manager.led_count) == (
                [manager.partition("t", 1).topic_partition],
                2,
            )
            host.delete(topic_id)
            await host.follow()
            assert manager.led_count == 0

    check(scenario, tmp_path)


def test_a_failed_deletion_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manager_module, "RETRY_S", 0.01)
    mark = DataDirectory.mark_deleted
    tries: list[Sequence[str]] = []

    def mark_deleted(self: DataDirectory, names: Sequence[str]) -> None:
        tries.append(names)
        if len(tries) <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        mark(self, names)

    monkeypatch.setattr(DataDirectory, "mark_deleted", mark_deleted)

    async def scenario() -> None:
        host = Host(tmp_path)
        topic_id = host.create("t")
        async with host.running():
            host.delete(topic_id)
            await host.follow()
            await until(lambda: len(tries) >= 4)
            await until(lambda: not list(tmp_path.glob(f"**/topics/*{topic_id}*")))
            other_id = host.create("t")
            await host.follow()
            assert list(tmp_path.glob(f"**/topics/*{other_id}*"))
            await asyncio.sleep(0.05)
            assert len(tries) == 4
        assert len([line for line in caplog.messages if "Could not delete log" in line]) == 1

    asyncio.run(scenario())


def test_what_comes_back_before_it_could_be_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = DataDirectory.mark_deleted
    tries: list[Sequence[str]] = []

    def mark_deleted(self: DataDirectory, names: Sequence[str]) -> None:
        tries.append(names)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        mark(self, names)

    monkeypatch.setattr(DataDirectory, "mark_deleted", mark_deleted)

    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            topic_id = host.create("t")
            await host.follow()
            host.place(topic_id, 2)
            await host.follow()
            assert not manager.by_id and len(tries) == 1
            host.place(topic_id, 1)
            await host.follow()
            back = manager.partition("t", 0)
            await append(back, b"kept")
            # Something else happens.
            host.create("other")
            await host.follow()
            assert manager.partition("t", 0) is back and not back.is_ended
            assert await values_of(back.log) == [(0, b"kept")]
            assert len(tries) == 1

    check(scenario, tmp_path)


def test_a_replica_that_failed_and_is_given_back_is_in_service_again(tmp_path: Path) -> None:
    """Else it is told to be offline for ever, and no ISR takes it."""

    async def scenario(host: Host) -> None:
        async with host.running() as manager:
            topic_id = host.create("t", partitions=2)
            await host.follow()
            manager.partition("t", 1).log.fail(OSError(errno.EINVAL, "not the disk's fault"))
            assert manager.offline_keys() == frozenset([(topic_id, 1)])
            for nodes, offline in (((2,), set()), ((1,), set())):
                host.place(topic_id, *nodes)
                await host.follow()
                assert manager.offline_keys() == offline
            assert manager.partition("t", 1).log.failed is None

    check(scenario, tmp_path)


def test_a_log_with_an_epoch_that_never_was_is_damaged(tmp_path: Path) -> None:
    """No checksum is over it: believed, the batches would be cut as what nobody else has."""

    async def scenario(host: Host) -> None:
        async with host.running(clean=False) as manager:
            topic_id = host.create("t")
            await host.follow()
            for value in (b"one", b"two"):
                await append(manager.partition("t", 0), value)
        (file,) = tmp_path.glob("**/topics/t-0.*/*.log")
        content = bytearray(file.read_bytes())
        second = 12 + int.from_bytes(content[8:12], "big")
        content[second + 13] ^= 1
        file.write_bytes(content)
        async with host.running() as manager:
            assert manager.offline_keys() == frozenset([(topic_id, 0)])
            with pytest.raises(KafkaStorageError, match="had none after 0"):
                manager.partition("t", 0)
            assert host.logs.status()["logs_failed"] == 1
            # The others have it, and count on it no more: then it begins anew.
            host.place(topic_id, 1, 2)
            (topic,) = host.image.topics_by_id.values()
            alone = replace(topic.partitions[0], isr=(NodeId(2),), leader=NodeId(2))
            host.image = with_topics(host.image, [replace(topic, partitions=(alone,))])
            host.image = host.image.having(version=host.image.version + 1)
            await host.follow()
            assert not manager.failures
            assert manager.by_id[topic_id, 0].log.log_end_offset == 0
        (aside,) = tmp_path.glob("**/stray/**/*.log")
        assert aside.read_bytes()[: len(content)] == content

    check(scenario, tmp_path)
