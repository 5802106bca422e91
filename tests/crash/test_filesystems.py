"""The engines on ext4 and xfs on loop devices: what is durable, a power cut, a full disk.

Needs root, loop devices, mkfs.ext4, mkfs.xfs and xfs_io; skipped where they are missing.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlog.errors import KafkaStorageError
from dlogd.storage.io import checkpoint_files, engine_choice
from dlogd.storage.io.aio_engine import AioEngine
from dlogd.storage.io.posix import PosixDirectory, direct_alignment, open_directory
from dlogd.storage.io.thread_engine import ThreadEngine
from dlogd.storage.io.zero_fill import zero_ahead
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log_manager import LogManager
from tests.crash.disks import IMAGE_BYTES, Mounted, mounted_disk, run
from tests.fakes.engine_calls import BLOCK, AnyEngine, blocks, read_bytes, write
from tests.fakes.logs import append, services_for, values_of
from tests.fakes.manager import NODE, SETTINGS, TOPIC_ID, partition, wanted
from tests.fakes.randomness import SeededRandomness

pytestmark = pytest.mark.root

CONFIG = LogConfig(segment_bytes=1 << 16, preallocate_bytes=1 << 20, retention_ms=-1)


@pytest.fixture(params=["ext4", "xfs"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    with mounted_disk(tmp_path, str(request.param)) as found:
        yield found


@pytest.fixture(params=["aio", "threads"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_engine(kind: str) -> AnyEngine:
    engine = engine_choice.open_engine(kind, asyncio.get_running_loop())
    assert engine.name == kind
    assert isinstance(engine, AioEngine | ThreadEngine)
    return engine


def test_durable_writes_flush_the_device(mounted: Mounted, engine_kind: str) -> None:
    async def body() -> None:
        engine = open_engine(engine_kind)
        file = PosixDirectory(str(mounted.path)).open("file", create=True, direct=True)
        assert file.direct and direct_alignment(file.fileno())
        file.preallocate(0, 64 * BLOCK)
        zeroed: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        zero_ahead(engine, file, 0, 64 * BLOCK, zeroed.set_result)
        assert await zeroed is None
        file.sync()
        counts = {}
        for durable in (False, True):
            before = mounted.flushes()
            for i in range(20):
                assert await write(engine, file, i * BLOCK, blocks(1, 7), durable=durable) is None
            counts[durable] = mounted.flushes() - before
        # The file system may flush for itself now and then.
        assert counts[True] >= 20 and counts[False] <= 5, counts
        assert await read_bytes(engine, file, 5, 3 * BLOCK) == b"\7" * (3 * BLOCK)
        file.close()
        engine.close()

    asyncio.run(body())


def test_durable_writes_survive_a_power_cut(mounted: Mounted, engine_kind: str) -> None:
    async def body() -> None:
        engine = open_engine(engine_kind)
        directory = PosixDirectory(str(mounted.path))
        checkpoint_files.replace_file(directory, "small", b"old")
        for direct in (True, False):
            file = directory.open(f"file-{direct}", create=True, direct=direct)
            directory.sync()
            file.preallocate(0, 256 * BLOCK)
            for i in range(100):
                error = await write(engine, file, i * BLOCK, blocks(1, i + 1), blocks(1, i + 2))
                assert error is None
            file.close()
        checkpoint_files.replace_file(directory, "small", b"new")
        engine.close()

    asyncio.run(body())
    mounted.power_cut()
    for direct in (True, False):
        data = (mounted.path / f"file-{direct}").read_bytes()
        assert [data[i * BLOCK] for i in range(101)] == list(range(1, 102))
    assert (mounted.path / "small").read_bytes() == b"new"


def test_after_a_disk_failure_every_write_fails(mounted: Mounted, engine_kind: str) -> None:
    async def body() -> None:
        engine = open_engine(engine_kind)
        directory = PosixDirectory(str(mounted.path))
        file = directory.open("file", create=True, direct=True)
        file.preallocate(0, 64 * BLOCK)
        assert await write(engine, file, 0, blocks(1, 1)) is None
        run("xfs_io", "-x", "-c", "shutdown", str(mounted.path))
        for _ in range(2):
            error = await write(engine, file, BLOCK, blocks(1, 2))
            assert error is not None and error.errno == errno.EIO
        with pytest.raises(OSError):
            file.sync()
        with pytest.raises(OSError):
            checkpoint_files.replace_file(directory, "small", b"new")
        file.close()
        engine.close()

    asyncio.run(body())


def test_a_full_disk_is_an_error_and_nothing_else(mounted: Mounted, engine_kind: str) -> None:
    async def body() -> None:
        engine = open_engine(engine_kind)
        directory = PosixDirectory(str(mounted.path))
        filler = directory.open("filler", create=True)
        with pytest.raises(OSError) as raised:
            filler.preallocate(0, 1 << 30)
        assert raised.value.errno == errno.ENOSPC
        filler.truncate(0)
        filler.preallocate(0, directory.usage().free_bytes - (1 << 20))
        file = directory.open("file", create=True, direct=True)
        results = [
            await write(engine, file, i << 20, blocks(256, 1))
            for i in range(IMAGE_BYTES["xfs"] >> 20)
        ]
        errors = [error for error in results if error is not None]
        assert errors and {error.errno for error in errors} == {errno.ENOSPC}
        filler.truncate(0)
        filler.close()
        assert await write(engine, file, 0, blocks(256, 2)) is None
        assert await read_bytes(engine, file, 0, BLOCK) == b"\2" * BLOCK
        file.close()
        engine.close()

    asyncio.run(body())


Values = dict[int, list[tuple[int, bytes]]]


async def start_manager(engine: AnyEngine, paths: list[str], numbers: list[int]) -> LogManager:
    """Start a node's logs on data directories, which are made when missing."""
    roots = [open_directory(path) for path in paths]
    manager = LogManager(
        roots, services=services_for(engine), entropy=SeededRandomness(1).entropy, settings=SETTINGS
    )
    await manager.claim(NODE, None)
    await manager.open(wanted(*numbers, config=CONFIG))
    await manager.begin()
    return manager


async def append_until_it_fails(plog: PartitionLog, values: list[tuple[int, bytes]]) -> None:
    """Append and note what was acknowledged."""
    while True:
        value = b"%s-%d" % (str(plog).encode(), len(values)) * 20
        try:
            offset = append(plog, value)
            await plog.flush()
        except KafkaStorageError:
            return
        assert offset is not None
        values.append((offset, value))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


def test_logs_survive_when_their_disk_fails_under_them(
    mounted: Mounted, engine_kind: str, tmp_path: Path
) -> None:
    """Two data directories: one loses its disk in the middle of appends, the other goes on."""
    paths = [str(mounted.path), str(tmp_path / "healthy")]
    acknowledged: Values = {number: [] for number in range(12)}

    async def first_life() -> None:
        engine = open_engine(engine_kind)
        manager = await start_manager(engine, paths, [])
        failed: list[str] = []
        manager.on_directory_failed = lambda home, error: failed.append(home.path)
        logs = []
        for number in acknowledged:
            # The two disks are of very different size; each shall have half of the logs.
            manager.homes[number % 2].space.free_bytes = 1 << 60
            manager.homes[1 - number % 2].space.free_bytes = 0
            logs.append(await manager.create(partition(number), TOPIC_ID, CONFIG))
        work = [
            asyncio.ensure_future(append_until_it_fails(plog, acknowledged[number]))
            for number, plog in enumerate(logs)
        ]
        await until(lambda: min(map(len, acknowledged.values())) >= 20)
        await engine.run(lambda: run("xfs_io", "-x", "-c", "shutdown", paths[0]))
        await until(lambda: all(plog.failed for plog in logs[::2]))
        counts = [len(acknowledged[number]) for number in range(1, 12, 2)]
        await until(lambda: all(len(acknowledged[i]) > counts[i // 2] for i in range(1, 12, 2)))
        assert failed == paths[:1] and not any(plog.failed for plog in logs[1::2])
        await manager.close()
        await asyncio.gather(*work)
        engine.close()

    async def second_life() -> None:
        engine = open_engine(engine_kind)
        manager = await start_manager(engine, paths, list(acknowledged))
        assert not manager.failures and [len(home.logs) for home in manager.homes] == [6, 6]
        for number, values in acknowledged.items():
            found = await values_of(await manager.create(partition(number), TOPIC_ID, CONFIG))
            assert found[: len(values)] == values
        await manager.close()
        engine.close()

    asyncio.run(asyncio.wait_for(first_life(), 60))
    mounted.remount()
    asyncio.run(asyncio.wait_for(second_life(), 60))
