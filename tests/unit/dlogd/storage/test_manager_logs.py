"""The log manager: logs made, deleted, kept within their bounds."""

import asyncio
import errno

import pytest

from dlog.errors import KafkaStorageError
from dlog.types import Offset
from dlogd.config.units import DiskReserve
from dlogd.storage.directory.log_directory import GROWTH_BYTES, StorageSettings
from dlogd.storage.log.log_config import LogConfig
from tests.fakes.faults import DiskFault, Latency
from tests.fakes.logs import append, run, values_of
from tests.fakes.manager import NODE, SETTINGS, TOPIC_ID, ManagerHost, key, partition, until

# -- create


def test_creation_is_idempotent_also_at_the_same_time() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        await host.start()
        logs = await asyncio.gather(*(host.create(number % 3) for number in range(30)))
        assert len({id(plog) for plog in logs}) == 3 == len(host.manager.logs)
        assert await host.create(0) is logs[0]
        await host.stop()

    run(scenario)


def test_a_thousand_creations_share_flushes() -> None:
    async def scenario() -> None:
        syncs = 0

        def trace(operation: str, path: str, position: int, length: int) -> None:
            nonlocal syncs
            syncs += operation == "sync_directory" and path.endswith("/topics")

        host = ManagerHost()
        await host.start()
        host.machine.trace = trace
        await asyncio.gather(*(host.create(number) for number in range(1000)))
        assert len(host.manager.logs) == 1000 and syncs < 20
        sizes = [len(home.logs) for home in host.manager.homes]
        assert sum(sizes) == 1000 and min(sizes) == 500  # equal disks share evenly
        host.machine.trace = None
        await host.stop()
        assert len((await host.start(*range(1000))).logs) == 1000
        await host.stop()

    run(scenario)


def test_new_logs_go_where_most_space_is() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        host.machine.disks["/disk0"].capacity_bytes = 10 * GROWTH_BYTES
        host.machine.disks["/disk1"].capacity_bytes = 13 * GROWTH_BYTES
        await host.start()
        for number in range(7):
            await host.create(number)
        assert [len(home.logs) for home in host.manager.homes] == [2, 5]
        await host.stop()

    run(scenario)


def test_nothing_is_created_while_stopping() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        await host.start()
        await host.stop()
        with pytest.raises(KafkaStorageError, match="stopping"):
            await host.create(0)

    run(scenario)


# -- delete


def test_a_deleted_log_is_gone_and_never_comes_back() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        for number in range(3):
            await host.create_with(number, b"x")
        await host.manager.delete(partition(1), TOPIC_ID)
        await host.manager.delete(partition(1), TOPIC_ID)
        assert sorted(host.manager.logs) == [key(0), key(2)]
        topics = host.process.open_directory("/disk0/dlog/topics")
        await until(lambda: len(topics.names()) == 2)
        again = await host.create(1)
        assert again.log_end_offset == 0
        await host.stop()
        assert (await host.start(0, 1, 2)).logs[key(1)].log_end_offset == 0
        await host.stop()

    run(scenario)


def test_an_interrupted_deletion_is_finished_by_the_next_start() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"x")
        host.manager.homes[0].directory.mark_deleted([f"t-0.{TOPIC_ID}"])
        await host.crash()
        manager = await host.start(0)
        assert not manager.logs
        topics = host.process.open_directory("/disk0/dlog/topics")
        await until(lambda: not topics.names())
        assert host.process.open_directory("/disk0/dlog/stray").names() == []
        await host.stop()

    run(scenario)


def test_a_log_is_deleted_while_what_the_one_before_it_left_is_still_there() -> None:
    """Its removal takes long, or waits for the next start."""

    async def scenario() -> None:
        host = ManagerHost(1)
        manager = await host.start()
        faults = host.machine.disks["/disk0"].faults
        faults.append(DiskFault(("unlink",), errno.EMFILE, path_part=".deleted"))
        for value in (b"first", b"second", b"third"):
            await host.create_with(0, value)
            await manager.delete(partition(0), TOPIC_ID)
        faults.clear()
        assert await values_of(await host.create_with(0, b"last")) == [(0, b"last")]
        assert not host.failed
        await host.stop()
        manager = await host.start(0)
        topics = host.process.open_directory("/disk0/dlog/topics")
        await until(lambda: len(topics.names()) == 1)
        assert await values_of(manager.logs[key(0)]) == [(0, b"last")]
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("is_saving", [False, True])
def test_a_log_that_is_made_anew_is_not_measured_by_what_the_one_before_had(
    is_saving: bool,
) -> None:
    """A replica that went elsewhere and came back has the same name."""

    async def scenario() -> None:
        host = ManagerHost(1)
        manager = await host.start()
        home, marks = manager.homes[0], manager._upkeep.marks
        await host.create_with(0, *(b"%d" % number for number in range(10)))
        await marks.save(home)
        await host.create_with(1, b"other")
        if is_saving:
            host.machine.disks["/disk0"].latency = Latency(fixed=0.01)
            saving = asyncio.create_task(marks.save(home))
            await asyncio.sleep(0)
        await manager.delete(partition(0), TOPIC_ID)
        await host.create_with(0, b"a", b"b")
        if is_saving:
            await saving
        assert home.names[key(0)] not in home.promised_offsets
        await host.crash()
        manager = await host.start(0, 1)
        assert not manager.failures
        assert await values_of(manager.logs[key(0)]) == [(0, b"a"), (1, b"b")]
        await manager.delete(partition(1), TOPIC_ID)
        await manager._upkeep.marks.save(manager.homes[0])
        kept = manager.homes[0].promised_offsets, manager.homes[0].high_watermarks
        assert [list(each) for each in kept] == [[manager.homes[0].names[key(0)]]] * 2
        await host.stop()

    run(scenario)


def test_deleting_many_at_once_and_while_they_are_made() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        await host.start()
        made = [asyncio.ensure_future(host.create(number)) for number in range(100)]
        await asyncio.sleep(0)
        await asyncio.gather(
            *(host.manager.delete(partition(number), TOPIC_ID) for number in range(100))
        )
        await asyncio.gather(*made, return_exceptions=True)
        assert not host.manager.logs
        await host.stop()
        assert not (await host.start()).logs
        await host.stop()

    run(scenario)


# -- upkeep


def test_a_nearly_full_disk_refuses_appends_and_serves_reads() -> None:
    async def scenario() -> None:
        host = ManagerHost(1, capacity_bytes=100 << 20)
        host.settings = StorageSettings(reserve=DiskReserve(bytes=10 << 20))
        manager = await host.start()
        plog = await host.create_with(0, b"a")
        filler = host.process.open_directory("/disk0").open("filler", create=True)
        filler.preallocate(0, 95 << 20)
        await until(lambda: plog.refusal is not None)
        with pytest.raises(KafkaStorageError, match="less than its reserve"):
            append(plog, b"b")
        assert (await host.create(1)).refusal is not None
        assert await values_of(plog) == [(0, b"a")]
        assert manager.status()["directories"][0]["appends_refused"] is True
        filler.truncate(0)
        filler.close()
        await until(lambda: plog.refusal is None)
        append(plog, b"b")
        await plog.flush()
        manager.reconfigure(StorageSettings(reserve=DiskReserve(bytes=1 << 40)))
        assert plog.refusal is not None
        manager.reconfigure(SETTINGS)
        assert plog.refusal is None
        await host.stop()

    run(scenario)


def test_retention_by_size_drops_old_segments() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        host.config = LogConfig(segment_bytes=4096, preallocate_bytes=0, retention_bytes=8192)
        await host.start()
        plog = await host.create(0)
        for _ in range(40):
            append(plog, b"x" * 1000, timestamp_ms=10**15)
            await plog.flush()
        await until(lambda: plog.log_start_offset > 0 and plog.size_bytes <= 8192 + 4096)
        assert plog.log_end_offset == 40
        assert len(await values_of(plog)) == 40 - plog.log_start_offset
        await host.stop()

    run(scenario)


def test_a_disk_that_hangs_does_not_keep_the_others_from_dropping() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        host.config = LogConfig(segment_bytes=4096, preallocate_bytes=0, retention_bytes=8192)
        await host.start()
        logs = [await host.create(number) for number in range(4)]
        hanging = host.home_of(0)
        number = next(each for each in range(4) if host.home_of(each) is not hanging)
        for plog in (logs[0], logs[number]):
            append(plog, b"x" * 1000, timestamp_ms=10**15)
            await plog.flush()
        disk = host.machine.disks[hanging.path.removesuffix("/dlog")]
        disk.stick()
        append(logs[0], b"x" * 1000, timestamp_ms=10**15)
        await asyncio.sleep(0.2)  # all that goes round has met it
        for _ in range(40):
            append(logs[number], b"x" * 1000, timestamp_ms=10**15)
            await logs[number].flush()
        await until(lambda: logs[number].log_start_offset > 0)
        disk.unstick()
        await host.stop()

    run(scenario)


def test_retention_by_time_drops_the_active_segment_too() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        host.config = LogConfig(preallocate_bytes=0, retention_ms=60_000)
        await host.start()
        old = await host.create_with(0, b"x", b"y")
        young = await host.create(1)
        append(young, b"z", timestamp_ms=host.services.clock.timestamp_ms())
        await young.flush()
        await until(lambda: old.log_start_offset == 2)
        assert old.log_end_offset == 2 and old.size_bytes == 0
        append(old, b"new", timestamp_ms=host.services.clock.timestamp_ms())
        await old.flush()
        await asyncio.sleep(0.05)
        assert await values_of(old) == [(2, b"new")] and young.log_start_offset == 0
        await host.stop()

    run(scenario)


def test_retention_respects_the_high_watermark() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        host.config = LogConfig(segment_bytes=2048, preallocate_bytes=0, retention_ms=60_000)
        manager = host.boot()
        manager.high_watermark_of = lambda plog: Offset(0)
        await manager.claim(NODE, None)
        await manager.open({})
        await manager.begin()
        plog = await host.create_with(0, *[b"x" * 1000] * 10)
        await asyncio.sleep(0.05)
        assert plog.log_start_offset == 0
        await host.stop()

    run(scenario)


def test_high_watermarks_are_saved_and_found_again() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        host.settings = StorageSettings(reserve=DiskReserve(bytes=0), high_watermark_interval_ms=10)
        await host.start()
        await host.create_with(0, b"a", b"b", b"c")
        root = host.home_of(0).directory
        await until(lambda: root._root.exists("high-watermarks"))
        await asyncio.sleep(0.05)
        await host.crash(power_cut=True)
        manager = await host.start(0)
        assert manager.stored_high_watermark(manager.logs[key(0)]) == 3
        await host.stop()

    run(scenario)
