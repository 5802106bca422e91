"""The log manager: damaged logs, failed directories, power cuts at any moment."""

import asyncio
import errno
import random

import pytest

from dlog.errors import ConfigError, KafkaStorageError
from dlogd.storage.io.checkpoint_files import LIFE
from dlogd.storage.io.errnos import is_disk_failure
from dlogd.storage.log_manager import LogManager
from tests.fakes.disk import Machine
from tests.fakes.faults import DiskFault, ProcessDied, read_only
from tests.fakes.logs import append, run, run_virtual, settle, values_of
from tests.fakes.manager import CONFIG, NODE, TOPIC_ID, ManagerHost, key, partition, until

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


@pytest.mark.parametrize("clean", [False, True])
def test_what_an_attempt_to_make_a_log_has_left_never_replaces_it(clean: bool) -> None:
    """Its records were all deleted: their offsets must not be given out again."""

    async def scenario() -> None:
        host = ManagerHost(2)
        await host.start()
        fault = DiskFault(("create",), errno.EMFILE, count=1, path_part=".log")
        for disk in host.machine.disks.values():
            disk.faults.append(fault)
        with pytest.raises(KafkaStorageError):
            await host.create(0)
        assert fault.count == 0
        plog = await host.create_with(0, b"a", b"b", b"c")
        assert host.home_of(0).path == "/disk1/dlog"
        await plog.trim_to(3)
        await host.stop()
        for _ in range(2):
            await host.start(0)
            assert host.manager.logs[key(0)].log_end_offset == 3
            await (host.stop() if clean else host.crash())

    run(scenario)


def test_a_log_whose_deletion_was_not_flushed_is_there_for_who_wants_it_again() -> None:
    """The disk works, and so does the log; later its deletion is tried again, and is for good."""

    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        await host.create_with(1, b"other")
        await settle()
        (disk,) = host.machine.disks.values()
        disk.faults.append(DiskFault(("sync_directory",), errno.EMFILE, 1, "topics"))
        with pytest.raises(OSError):
            await host.manager.delete(partition(0), TOPIC_ID)
        assert await values_of(await host.create(0)) == [(0, b"a")]
        assert not host.failed
        await host.manager.delete(partition(0), TOPIC_ID)
        await host.crash(power_cut=True)
        await host.start(0, 1)
        assert list(host.manager.logs) == [key(1)]
        assert (await host.create(0)).log_end_offset == 0
        await host.stop()

    run_virtual(scenario)


def test_setting_a_damaged_log_aside_is_tried_again_where_it_was_not_flushed() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a" * 100, b"b" * 100)
        await host.crash()
        path = f"/disk0/dlog/topics/t-0.{TOPIC_ID}"
        file = host.machine.boot().open_directory(path).open("00000000000000000000.log")
        file.pwrite(b"\xff" * 20, 70)
        file.sync()
        manager = await host.start(0)
        assert list(manager.failures) == [key(0)]
        (disk,) = host.machine.disks.values()
        disk.faults.append(DiskFault(("sync_directory",), errno.EMFILE, 1, "stray"))
        with pytest.raises(OSError):
            await manager.create(partition(0), TOPIC_ID, CONFIG, anew=True)
        plog = await manager.create(partition(0), TOPIC_ID, CONFIG, anew=True)
        assert plog.log_end_offset == 0 and not host.failed
        await host.stop()

    run_virtual(scenario)


def test_a_log_on_a_disk_too_full_to_note_its_life_is_not_replaced_by_a_leftover() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        await (await host.start()).begin(1)
        await host.stop()
        full = DiskFault(("create", "write"), errno.ENOSPC, path_part=f"/{LIFE}")
        host.machine.disks["/disk1"].faults.append(full)
        await (await host.start()).begin(2)
        assert not host.failed
        fault = DiskFault(("create",), errno.EMFILE, count=1, path_part=".log")
        for disk in host.machine.disks.values():
            disk.faults.append(fault)
        with pytest.raises(KafkaStorageError):
            await host.create(0)
        await host.create_with(0, b"a", b"b")
        assert host.home_of(0).path == "/disk1/dlog"
        await host.crash()
        manager = await host.start(0)
        assert [each.life.node_epoch for each in manager.homes] == [2, 1]
        assert await values_of(manager.logs[key(0)]) == [(0, b"a"), (1, b"b")]
        await host.stop()

    run_virtual(scenario)


def test_a_log_that_came_back_after_a_failed_deletion_survives_a_power_cut() -> None:
    """The system may have written that it was to be deleted, and must not have the last word."""

    async def scenario() -> None:
        for seed in range(40):
            host = ManagerHost(1, seed=seed)
            await host.start()
            await host.create_with(0, b"a")
            await settle()
            (disk,) = host.machine.disks.values()
            disk.faults.append(DiskFault(("sync_directory",), errno.EMFILE, 1, "topics"))
            with pytest.raises(OSError):
                await host.manager.delete(partition(0), TOPIC_ID)
            plog = await host.create(0)
            append(plog, b"b")
            await plog.flush()
            await host.crash(power_cut=True)
            manager = await host.start(0)
            assert await values_of(manager.logs[key(0)]) == [(0, b"a"), (1, b"b")]
            await host.stop()

    run_virtual(scenario)
