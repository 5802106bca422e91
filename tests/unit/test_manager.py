"""The log manager: start, restart, crash, strays, placement, deletion, failed and full disks."""

import asyncio
import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from dlog.errors import ConfigError, KafkaStorageError
from dlog.types import NodeId, Offset, PartitionId
from dlogd.config.choices import FlushPolicy
from dlogd.config.units import DiskReserve
from dlogd.service import exit_code_of
from dlogd.storage.errnos import is_disk_failure
from dlogd.storage.homes import GROWTH_BYTES, StorageSettings
from dlogd.storage.log_config import LogConfig
from dlogd.storage.manager import LogManager
from tests.fakes.disk import Machine
from tests.fakes.faults import DiskFault, ProcessDied, read_only
from tests.fakes.logs import append, run, settle, values_of
from tests.fakes.manager import CONFIG, NODE, SETTINGS, TOPIC_ID, ManagerHost, partition, wanted


def key(number: int) -> tuple[UUID, PartitionId]:
    return (TOPIC_ID, PartitionId(number))


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until a condition holds."""
    for _ in range(int(seconds * 200)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("It did not happen")


# -- start and stop


def test_a_new_cluster_begins_and_is_found_again() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        manager = await host.start()
        cluster_id, directory_ids = manager.cluster_id, manager.directory_ids
        assert len(cluster_id) == 22 and len(set(directory_ids)) == 2
        await host.create_with(0, b"a", b"b")
        await host.stop()
        for _ in range(2):
            manager = await host.start(0, cluster_id=cluster_id)
            assert (manager.cluster_id, manager.directory_ids) == (cluster_id, directory_ids)
            assert await values_of(manager.logs[key(0)]) == [(0, b"a"), (1, b"b")]
            assert manager.progress.finished and not manager.failures
            await host.stop()

    run(scenario)


def test_a_given_cluster_id_is_taken_and_another_refused() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        manager = await host.start(cluster_id="mine")
        assert manager.cluster_id == "mine"
        await host.stop()
        with pytest.raises(ConfigError, match="belongs to cluster mine") as raised:
            await host.boot().claim(NODE, "other")
        assert len(raised.value.problems) == 2
        with pytest.raises(ConfigError, match="belongs to node 1, this is node 2"):
            await host.boot().claim(NodeId(2), "mine")
        assert await host.boot().claim(NODE, "mine") == "mine"

    run(scenario)


def test_a_second_daemon_is_refused_and_the_first_goes_on() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        await host.start()
        plog = await host.create_with(0, b"a")
        services, first = host.services, host.manager
        with pytest.raises(ConfigError, match="in use by another process") as raised:
            await host.boot().claim(NODE, None)
        assert exit_code_of(raised.value) == os.EX_TEMPFAIL
        append(plog, b"b")
        await plog.flush()
        host.services, host.manager = services, first
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("claims", [False, True])
def test_a_start_that_was_refused_leaves_nothing_behind(claims: bool) -> None:
    """Its stop must not write a clean-shutdown marker into a directory of somebody else."""

    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        if claims:
            await host.crash()
        before = host.machine.boot().open_directory("/disk0/dlog").names()
        manager = host.boot()
        if claims:
            await manager.claim(NODE, None)
        else:
            with pytest.raises(ConfigError):
                await manager.claim(NODE, None)
        await manager.close()
        found = host.machine.boot().open_directory("/disk0/dlog").names()
        assert found == before and "clean-shutdown" not in found

    run(scenario)


def test_high_watermarks_of_logs_out_of_service_are_kept() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a", b"b")
        await host.create_with(1, b"c")
        await host.stop()
        manager = await host.start(0, 1)
        manager.logs[key(0)].fail(OSError(errno.EMFILE, "Too many open files"))
        await host.stop()
        manager = await host.start(0, 1)
        assert manager.stored_high_watermark(manager.logs[key(0)]) == 2
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("power_cut", [False, True])
def test_what_was_flushed_survives(power_cut: bool) -> None:
    async def scenario() -> None:
        host = ManagerHost()
        await host.start()
        for number in range(10):
            await host.create_with(number, b"%d" % number, b"more")
        await host.crash(power_cut=power_cut)
        manager = await host.start(*range(10))
        assert not manager.failures and len(manager.logs) == 10
        for number in range(10):
            values = await values_of(manager.logs[key(number)])
            assert values == [(0, b"%d" % number), (1, b"more")]
        done = [(home.logs_done, home.logs_failed) for home in manager.progress.homes]
        assert sum(count for count, _ in done) == 10
        assert sum(home.scanned_bytes for home in manager.progress.homes) > 0
        assert host.services.metrics.recovered_bytes_total > 0
        await host.stop()

    run(scenario)


def test_the_marker_is_written_last_and_removed_first() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        root = host.process.open_directory("/disk0/dlog")
        assert not root.exists("clean-shutdown")
        await host.stop()
        assert host.machine.boot().open_directory("/disk0/dlog").exists("clean-shutdown")
        manager = await host.start(0)
        assert manager.homes[0].clean_ends
        assert not host.process.open_directory("/disk0/dlog").exists("clean-shutdown")
        await host.crash()
        assert not (await host.start(0)).homes[0].clean_ends

    run(scenario)


def test_a_log_that_ends_elsewhere_than_the_marker_says_is_recovered() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        await host.stop()
        directory = host.boot().homes[0].directory
        directory.claim()
        name = f"t-0.{TOPIC_ID}"
        directory.save_clean_shutdown({name: Offset(0)})
        host.machine.crash()
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"a")]
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("policy", [FlushPolicy.ALWAYS, FlushPolicy.NEVER])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("names", [[".log"], [".log", ".idx", ".tdx"]])
def test_a_log_without_its_last_segment_is_out_of_service(
    policy: FlushPolicy, is_clean: bool, names: list[str]
) -> None:
    """Else its offsets would be given to other records. After a weak policy nobody can know."""

    async def scenario() -> None:
        host = ManagerHost(1)
        host.config = replace(CONFIG, flush_policy=policy, segment_ms=1 << 60)
        await host.start()
        await host.create_with(0, b"a", b"b")
        await host.manager._upkeep._save_all()
        await (host.stop() if is_clean else host.crash())
        log_directory = host.machine.boot().open_directory(f"/disk0/dlog/topics/t-0.{TOPIC_ID}")
        for suffix in names:
            log_directory.unlink(f"{0:020}{suffix}")
        manager = await host.start(0)
        if is_clean or policy is FlushPolicy.ALWAYS:
            with pytest.raises(KafkaStorageError, match="ends at offset 0, but held all up to 2"):
                await host.create(0)
            assert key(0) not in manager.logs
        else:
            assert manager.logs[key(0)].log_end_offset == 0
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_directory_that_is_gone_is_missed_once(
    is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """To move it away is how an operator gives up a copy: the log begins anew, not in silence."""

    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a", b"b")
        await host.manager._upkeep._save_all()
        await (host.stop() if is_clean else host.crash())
        name = f"t-0.{TOPIC_ID}"
        host.machine.boot().open_directory("/disk0/dlog/topics").remove_tree(name)
        await host.start(0)
        assert "Log is gone partition=t-0" in caplog.text
        caplog.clear()
        await host.create_with(0, b"new")
        await host.crash()
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"new")]
        assert "Log is gone" not in caplog.text
        await host.stop()

    run(scenario)


def test_logs_without_metadata_are_not_set_aside() -> None:
    """A wrong metadata.directory would make strays of all of them."""

    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        await host.stop()
        with pytest.raises(ConfigError, match="but there is no metadata"):
            await host.boot().claim(NODE, None, has_metadata=False)
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"a")]
        await host.stop()
        empty = ManagerHost(1)
        await empty.boot().claim(NODE, None, has_metadata=False)

    run(scenario)


# -- strays and duplicates


def test_a_log_without_a_topic_is_set_aside_and_kept() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"old")
        await host.create_with(1, b"kept")
        await host.stop()
        manager = await host.start(1)
        assert list(manager.logs) == [key(1)]
        plog = await host.create(0)
        assert plog.log_end_offset == 0
        stray = host.process.open_directory("/disk0/dlog/stray")
        assert stray.names() == [f"t-0.{TOPIC_ID}"]
        assert stray.directory(stray.names()[0]).names()
        await host.stop()

    run(scenario)


def test_an_empty_second_copy_is_set_aside_but_two_with_records_stop_the_start() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        await host.start()
        await host.create_with(0, b"a")
        other = next(home for home in host.manager.homes if key(0) not in home.names)
        other.directory.make_log_directories([f"t-0.{TOPIC_ID}"])
        await host.stop()
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"a")]
        other = next(home for home in manager.homes if key(0) not in home.names)
        other.directory.make_log_directories([f"t-0.{TOPIC_ID}"])
        directory = other.directory.topics.directory(f"t-0.{TOPIC_ID}")
        file = directory.open("00000000000000000000.log", create=True)
        file.pwrite(b"records", 0)
        file.close()
        await host.stop()
        host.boot()
        await host.manager.claim(NODE, None)
        with pytest.raises(ConfigError, match="both with records"):
            await host.manager.open(wanted(0))

    run(scenario)


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_directory_that_comes_back_has_the_older_copy(power_cut: bool) -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        await host.start()
        await host.create_with(0, b"old", b"older")
        failed = host.home_of(0)
        host.manager.on_home_error(failed, OSError(errno.EIO, "Input/output error"))
        # The replica is taken from this node, and given to it again.
        await host.manager.delete(partition(0), TOPIC_ID)
        await host.create_with(0, b"new")
        assert host.home_of(0) is not failed
        await host.crash(power_cut=power_cut)
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"new")]
        assert host.home_of(0).path != failed.path
        stray = host.process.open_directory(f"{failed.path}/stray")
        assert stray.names() == [f"t-0.{TOPIC_ID}"]
        await host.stop()

    run(scenario)


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


# -- damaged logs


def test_a_damaged_log_is_out_of_service_alone_and_can_be_deleted() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a" * 100, b"b" * 100)
        await host.create_with(1, b"fine")
        await host.crash()
        path = f"/disk0/dlog/topics/t-0.{TOPIC_ID}"
        file = host.machine.boot().open_directory(path).open("00000000000000000000.log")
        file.pwrite(b"\xff" * 20, 70)
        file.sync()
        file.close()
        manager = await host.start(0, 1)
        assert list(manager.logs) == [key(1)] and list(manager.failures) == [key(0)]
        assert manager.status()["logs_failed"] == 1
        for _ in range(2):
            with pytest.raises(KafkaStorageError, match="damaged"):
                await host.create(0)
        await manager.delete(partition(0), TOPIC_ID)
        assert (await host.create(0)).log_end_offset == 0
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("suffix", [".log", ".idx", ".tdx"])
@pytest.mark.parametrize("clean", [False, True])
def test_a_directory_in_the_place_of_a_file_stops_one_log(suffix: str, clean: bool) -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a" * 100)
        await host.create_with(1, b"fine")
        if clean:
            await host.stop()
        else:
            await host.crash()
        root = host.machine.boot().open_directory(f"/disk0/dlog/topics/t-0.{TOPIC_ID}")
        root.unlink("00000000000000000000" + suffix)
        root.directory("00000000000000000000" + suffix, create=True)
        manager = await host.start(0, 1)
        assert list(manager.logs) == [key(1)] and not host.failed
        with pytest.raises(KafkaStorageError, match=r"(?i)directory"):
            await host.create(0)
        await host.stop()

    run(scenario)


# -- failed directories


def test_a_failed_disk_takes_its_own_logs_down_and_no_others() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        await host.start()
        for number in range(4):
            await host.create_with(number, b"%d" % number)
        broken = host.home_of(0)
        mine = [number for number in range(4) if host.home_of(number) is broken]
        assert 0 < len(mine) < 4
        disk = host.machine.disks[broken.path.removesuffix("/dlog")]
        disk.faults.append(DiskFault(operations=("write", "sync", "sync_directory", "create")))
        append(host.manager.logs[key(mine[0])], b"lost")
        await until(lambda: host.failed)
        assert [path for path, _ in host.failed] == [broken.path]
        for number in range(4):
            plog = host.manager.logs[key(number)]
            assert (plog.failed is not None) == (number in mine)
            if number in mine:
                with pytest.raises(KafkaStorageError):
                    append(plog, b"x")
            else:
                append(plog, b"x")
                await plog.flush()
        assert host.manager.directory_ids != () and len(host.manager.directory_ids) == 1
        for number in range(10, 14):
            await host.create_with(number, b"new")
            assert host.home_of(number) is not broken
        status = {item["path"]: item["online"] for item in host.manager.status()["directories"]}
        assert status[broken.path] is False and sum(status.values()) == 1
        await host.manager.delete(partition(mine[0]), TOPIC_ID)
        await host.stop()
        host.machine.heal()
        left = [number for number in (*range(4), *range(10, 14)) if number != mine[0]]
        manager = await host.start(*left)
        assert sorted(manager.logs) == [key(number) for number in left]
        for number in mine[1:]:
            assert await values_of(manager.logs[key(number)]) == [(0, b"%d" % number)]
        await host.stop()

    run(scenario)


@pytest.mark.parametrize(
    "fault", [read_only(), DiskFault(operations=("names", "read", "open", "create"))]
)
def test_a_start_without_one_disk_serves_the_others_and_makes_no_empty_copies(
    fault: DiskFault,
) -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        manager = await host.start()
        known = manager.directory_ids
        for number in range(4):
            await host.create_with(number, b"%d" % number)
        places = {number: host.home_of(number).path for number in range(4)}
        await host.stop()
        host.machine.disks["/disk0"].faults.append(fault)
        manager = await host.start(*range(4), known=known)
        assert [path for path, _ in host.failed] == ["/disk0/dlog"]
        for number, path in places.items():
            if path == "/disk1/dlog":
                assert await values_of(await host.create(number)) == [(0, b"%d" % number)]
            else:
                with pytest.raises(KafkaStorageError, match="/disk0/dlog"):
                    await host.create(number)
        assert (await host.create(50)).log_end_offset == 0
        await host.stop()
        host.machine.heal()
        manager = await host.start(*range(4), 50)
        assert len(manager.logs) == 5 and not manager.failures
        await host.stop()

    run(scenario)


def test_a_disk_that_was_swapped_for_an_empty_one_counts_as_lost() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        known = (await host.start()).directory_ids
        for number in range(4):
            await host.create_with(number, b"x")
        lost = [number for number in range(4) if host.home_of(number).path.startswith("/disk0")]
        await host.stop()
        empty = Machine(random.Random(1), ("/disk0",)).disks["/disk0"]
        host.machine.disks["/disk0"] = empty
        manager = await host.start(*range(4), known=known)
        assert len(manager.directory_ids) == 2 and known[0] not in manager.directory_ids
        for number in range(4):
            if number in lost:
                with pytest.raises(KafkaStorageError, match=str(known[0])):
                    await host.create(number)
            else:
                await host.create(number)
        await host.stop()

    run(scenario)


def test_without_any_working_directory_the_start_ends() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        for disk in host.machine.disks.values():
            disk.faults.append(read_only())
        with pytest.raises(ConfigError, match=r"/disk0/dlog does not work") as raised:
            await host.boot().claim(NODE, None)
        assert len(raised.value.problems) == 2

    run(scenario)


def test_errors_that_say_nothing_about_the_disk() -> None:
    for code in (errno.EIO, errno.EROFS, errno.ENODEV, errno.ENOENT, errno.ESTALE):
        assert is_disk_failure(OSError(code, "x"))
    for code in (errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EISDIR):
        assert not is_disk_failure(OSError(code, "x"))


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


# -- anything, at any moment


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_at_any_operation_loses_no_flushed_log(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        host = ManagerHost(2, seed=seed)
        host.config = CONFIG
        expected: dict[int, list[tuple[int, bytes]]] = {}
        deleted: set[int] = set()
        for life in range(4):
            died = asyncio.Event()
            host.machine.die_at(rng.randrange(20, 400), died.set)
            work = asyncio.ensure_future(_live(host, life, expected, deleted))
            waiting = asyncio.ensure_future(died.wait())
            await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=20)
            host.machine.power_cut()
            for task in (work, waiting):
                task.cancel()
            await asyncio.gather(work, waiting, return_exceptions=True)
            await settle()
        manager = await host.start(*sorted(set(expected) - deleted))
        assert not manager.failures
        for number in sorted(set(expected) - deleted):
            found = await values_of(await host.create(number))
            assert found[: len(expected[number])] == expected[number]
        await host.stop()

    run(scenario)


async def _live(
    host: ManagerHost,
    life: int,
    expected: dict[int, list[tuple[int, bytes]]],
    deleted: set[int],
) -> None:
    """Start, append, delete until the power is cut."""
    try:
        manager: LogManager = await host.start(*sorted(set(expected) - deleted))
        for step in range(60):
            number = life * 100 + step % 7
            if step % 20 == 19 and number in expected:
                deleted.add(number)
                await manager.delete(partition(number), TOPIC_ID)
                continue
            if number in deleted:
                continue
            plog = await host.create(number)
            value = b"%d-%d" % (life, step)
            offset = append(plog, value)
            assert offset is not None
            await plog.flush()
            expected.setdefault(number, []).append((offset, value))
    except ProcessDied:
        return
