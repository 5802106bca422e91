"""A disk that hangs: it takes nothing from the others, and goes out of service in the end."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dlog.errors import KafkaStorageError
from dlogd.storage.directory.log_directory import LogDirectory, StorageSettings
from dlogd.storage.io.directory_engine import DirectoryEngine
from dlogd.storage.io.engine_choice import open_engine
from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import Engine
from dlogd.storage.io.posix import open_directory
from dlogd.storage.log.log_config import LogConfig
from tests.fakes.device import Disk
from tests.fakes.logs import append, append_waiting, run_virtual
from tests.fakes.manager import CONFIG, SETTINGS, TOPIC_ID, ManagerHost, partition, until

LARGE = 16384
TIMEOUT_MS = 800

# -- engines


class HangingFile:
    """A file whose disk answers nothing until `answers` is set."""

    direct = False

    def __init__(self, file: File) -> None:
        self.answers = threading.Event()
        self.path = file.path
        self._file = file

    def fileno(self) -> int:
        self.answers.wait(60)
        return self._file.fileno()

    def size(self) -> int:
        return self._file.size()


def with_engine(kind: str, body: Callable[[Engine], "asyncio._CoroutineLike[None]"]) -> None:
    async def work() -> None:
        engine = open_engine(kind, asyncio.get_running_loop())
        try:
            await asyncio.wait_for(body(engine), 60)
        finally:
            engine.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["threads", "auto"])
def test_a_directory_that_hangs_leaves_the_others_their_threads(kind: str, tmp_path: Path) -> None:
    async def body(engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        for name in "ab":
            (tmp_path / name).mkdir()
            (tmp_path / name / "f").write_bytes(b"x" * 8192)
        roots = [open_directory(str(tmp_path / name)) for name in "ab"]
        files = [root.open("f") for root in roots]
        first, second = [engine.for_directory(root.path) for root in roots]
        stuck, fine = HangingFile(files[0]), HangingFile(files[1])
        fine.answers.set()
        answers = 0

        def done(_: object) -> None:
            nonlocal answers
            answers += 1

        waiting = [
            asyncio.ensure_future(first.run(lambda: stuck.answers.wait(60))) for _ in range(20)
        ]
        for number in range(20):
            first.write(stuck, number * 4, [memoryview(b"dead")], durable=True, done=done)
        reads: list[object] = []
        for _ in range(8):
            engine.read(stuck, 0, 4096, reads.append)
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(second.run(lambda: 7), 30) == 7
        written = loop.create_future()
        second.write(fine, 0, [memoryview(b"good")], durable=True, done=written.set_result)
        assert await asyncio.wait_for(written, 30) is None
        read = loop.create_future()
        engine.read(fine, 0, 4, read.set_result)
        buffer = await asyncio.wait_for(read, 30)
        assert bytes(buffer.view) == b"good"
        buffer.release()
        assert {path for _, path in first.in_flight()} == {stuck.path} and not answers
        assert not second.in_flight()
        stuck.answers.set()
        await asyncio.gather(*waiting)
        await until(lambda: answers == 20 and len(reads) == 8)
        for each in reads:
            each.release()  # type: ignore[attr-defined]
        assert not first.in_flight()
        for file in files:
            file.close()

    with_engine(kind, body)


def test_work_on_a_disk_that_was_given_up_is_waited_for_by_nobody() -> None:
    async def body(engine: Engine) -> None:
        disk, answers = DirectoryEngine(engine, "/d"), threading.Event()
        asked = asyncio.ensure_future(disk.ask(lambda: answers.wait(60)))
        await until(disk.in_flight)
        disk.give_up()
        for waiting in (asked, disk.run(lambda: 1)):
            with pytest.raises(TimeoutError) as caught:
                await waiting
            assert caught.value.errno == errno.ETIMEDOUT
        answers.set()
        await until(lambda: not disk.in_flight())

    with_engine("threads", body)


def test_an_error_of_the_work_itself_is_told_as_it_is() -> None:
    def fail() -> None:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), "/d/f")

    async def body(engine: Engine) -> None:
        with pytest.raises(TimeoutError, match=os.strerror(errno.ETIMEDOUT)):
            await DirectoryEngine(engine, "/d").run(fail)

    with_engine("threads", body)


# -- directories


async def hanging_host(config: LogConfig = CONFIG) -> tuple[ManagerHost, LogDirectory, Disk, int]:
    """Return a host, a directory with log 0, its disk, and the number of a log elsewhere."""
    settings = StorageSettings(
        reserve=SETTINGS.reserve, retention_check_interval_ms=50, disk_timeout_ms=TIMEOUT_MS
    )
    host = ManagerHost(2, settings=settings)
    host.config = config
    await host.start()
    for number in range(4):
        await host.create_with(number, b"%d" % number)
    home = host.home_of(0)
    other = next(number for number in range(4) if host.home_of(number) is not home)
    return host, home, host.machine.disks[home.path.removesuffix("/dlog")], other


def test_a_disk_that_hangs_is_taken_out_of_service_and_the_others_go_on() -> None:
    async def scenario() -> None:
        host, home, disk, other = await hanging_host()
        logs = host.manager.logs
        hanging, healthy = (logs[TOPIC_ID, partition(each).partition] for each in (0, other))
        disk.stick()
        while append(hanging, b"x" * 5000) is not None:
            await asyncio.sleep(0)
        begin = asyncio.get_running_loop().time()
        for _ in range(30):
            await asyncio.wait_for(append_waiting(healthy, b"y" * 60_000), 2)
            await asyncio.wait_for(healthy.flush(), 2)
        assert not host.failed
        await until(lambda: host.failed)
        assert asyncio.get_running_loop().time() - begin >= TIMEOUT_MS / 1000 * 0.9
        assert [(path, error.errno) for path, error in host.failed] == [
            (home.path, errno.ETIMEDOUT)
        ]
        with pytest.raises(KafkaStorageError):
            append(hanging, b"z")
        append(healthy, b"z")
        await healthy.flush()
        assert healthy.failed is None and host.manager.failed_directory_ids == (home.directory_id,)
        disk.unstick()
        await host.stop()

    run_virtual(scenario)


def test_a_log_that_hangs_is_deleted_once_its_disk_is_given_up() -> None:
    async def scenario() -> None:
        host, home, disk, _ = await hanging_host()
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        disk.stick()
        append(hanging, b"x" * 5000)
        await asyncio.sleep(0.01)
        assert hanging._flusher.in_flight
        making = asyncio.ensure_future(home.creations.do("new"))
        with pytest.raises(OSError, match="The disk hangs"):
            await asyncio.wait_for(host.manager.delete(partition(0), TOPIC_ID), 3)
        assert host.failed
        await host.manager.delete(partition(0), TOPIC_ID)
        with pytest.raises(OSError, match="The disk hangs"):
            await asyncio.wait_for(making, 1)
        disk.unstick()
        await host.stop()

    run_virtual(scenario)


def test_who_waits_for_the_memory_of_a_disk_that_hangs_hears_of_its_failure() -> None:
    """Also where all of the share is in flight, and stays so."""

    async def scenario() -> None:
        config = LogConfig(segment_bytes=1 << 20, preallocate_bytes=0)
        host, home, disk, _ = await hanging_host(config)
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        disk.stick()
        while append(hanging, b"x" * 5000) is not None:
            pass
        waiting = [asyncio.ensure_future(append_waiting(hanging, b"x" * 5000)) for _ in range(3)]
        await until(lambda: home.disk.given_up)
        for each in waiting:
            with pytest.raises(KafkaStorageError):
                await asyncio.wait_for(each, 1)
        disk.unstick()
        await host.stop()

    run_virtual(scenario)


def test_a_directory_that_fails_and_then_hangs_is_given_up_too() -> None:
    async def scenario() -> None:
        host, home, disk, _ = await hanging_host()
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        disk.stick()
        append(hanging, b"x" * 5000)
        await asyncio.sleep(0.01)
        host.manager.on_home_error(home, OSError(errno.EIO, "another file"))
        with pytest.raises(OSError, match="The disk hangs"):
            await asyncio.wait_for(host.manager.delete(partition(0), TOPIC_ID), 3)
        assert len(host.failed) == 1
        disk.unstick()
        await host.stop()

    run_virtual(scenario)


def test_a_log_that_was_deleted_on_a_disk_that_hung_leaves_no_memory_behind() -> None:
    async def scenario() -> None:
        wrong: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: wrong.append(what))
        host, _, disk, _ = await hanging_host()
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        disk.stick()
        append(hanging, b"x" * 1000)
        await asyncio.sleep(0.01)
        append(hanging, b"x" * 1000)
        with pytest.raises(OSError, match="The disk hangs"):
            await asyncio.wait_for(host.manager.delete(partition(0), TOPIC_ID), 3)
        disk.unstick()
        await until(lambda: not hanging._flusher.in_flight)
        await asyncio.sleep(0.01)
        assert not hanging.active.tail.memory_bytes and not wrong, wrong
        await host.stop()

    run_virtual(scenario)


def test_a_cut_that_waits_for_a_disk_frees_nothing_that_is_in_flight() -> None:
    """Nor when the log was closed before its disk was given up, so that it has not failed."""

    async def scenario() -> None:
        host, _, disk, _ = await hanging_host()
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        disk.stick()
        append(hanging, b"x" * 1000)
        await asyncio.sleep(0.01)
        cut = asyncio.ensure_future(hanging.start_at(0))
        await asyncio.sleep(0.01)
        written = hanging._flusher.pending[0]
        deletion = asyncio.ensure_future(host.manager.delete(partition(0), TOPIC_ID))
        with pytest.raises(KafkaStorageError):
            await asyncio.wait_for(cut, 3)
        assert hanging._flusher.in_flight and written.tail.memory_bytes
        with pytest.raises(OSError, match="The disk hangs"):
            await deletion
        disk.unstick()
        await host.stop()

    run_virtual(scenario)


def test_a_log_whose_zeros_hang_is_deleted_once_its_disk_is_given_up() -> None:
    async def scenario() -> None:
        config = LogConfig(segment_bytes=1 << 20, preallocate_bytes=1 << 20)
        host, home, disk, _ = await hanging_host(config)
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        await until(lambda: hanging.active.space.zeroed_end and not hanging.lock.locked())
        disk.stick()
        hanging._maintenance._zero_soon(hanging.active)
        await until(home.disk.in_flight)
        assert hanging.lock.locked()
        with pytest.raises(OSError, match="The disk hangs"):
            await asyncio.wait_for(host.manager.delete(partition(0), TOPIC_ID), 3)
        disk.unstick()
        await host.stop()

    run_virtual(scenario)


def test_a_read_that_hangs_ends_when_its_disk_is_given_up() -> None:
    async def scenario() -> None:
        host, _, disk, _ = await hanging_host()
        await host.create_with(0, b"x" * 5000, b"x" * 5000)
        await host.stop()
        await host.start(0, 1, 2, 3)
        home = host.home_of(0)
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        append(hanging, b"x")
        await hanging.flush()
        await until(lambda: hanging.active.index.is_open and not hanging.lock.locked())
        disk.stick()
        append(hanging, b"x")
        located = asyncio.ensure_future(hanging.locate(1))
        await until(lambda: home.disk.given_up)
        for each in (located, hanging.locate(1)):
            with pytest.raises(KafkaStorageError):
                await asyncio.wait_for(each, 1)
        disk.unstick()
        await host.stop()

    run_virtual(scenario)


def test_a_file_that_is_in_flight_stays_open_when_its_last_reader_goes() -> None:
    """Its number must not become that of another file before the write looks at it."""

    async def scenario() -> None:
        host, _, disk, _ = await hanging_host()
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        segment = hanging.active
        segment.acquire()
        disk.stick()
        append(hanging, b"x" * 1000)
        await asyncio.sleep(0.01)
        file = segment.file
        with suppress(OSError):
            await asyncio.wait_for(host.manager.delete(partition(0), TOPIC_ID), 3)
        assert hanging.closed and hanging._flusher.in_flight
        segment.release()
        assert file in host.process.open_files
        disk.unstick()
        await host.stop()

    run_virtual(scenario)


def test_a_disk_that_pauses_for_less_stays() -> None:
    async def scenario() -> None:
        host, _, disk, _ = await hanging_host()
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        for _ in range(4):
            disk.stick()
            append(hanging, b"x" * 5000)
            await asyncio.sleep(TIMEOUT_MS / 2000)
            disk.unstick()
            await hanging.flush()
        assert not host.failed
        await host.stop()

    run_virtual(scenario)


def test_of_a_log_that_failed_only_what_is_in_flight_keeps_its_memory() -> None:
    async def scenario() -> None:
        host, home, disk, _ = await hanging_host()
        hanging = host.manager.logs[TOPIC_ID, partition(0).partition]
        memory = home.services.memory.pool
        disk.stick()
        append(hanging, b"x" * 1000)
        await asyncio.sleep(0.01)
        for _ in range(20):
            append(hanging, b"x" * 5000)
        before = memory.usage().taken_bytes
        hanging.fail(OSError(errno.EIO, "another log met it"))
        assert 0 < memory.usage().taken_bytes < before // 2
        disk.unstick()
        await until(lambda: memory.usage().taken_bytes < 3 * LARGE)
        await host.stop()

    run_virtual(scenario)
