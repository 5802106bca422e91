"""What every engine promises, on real files, direct and buffered."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dlogd.storage.io.aio_engine import AioEngine
from dlogd.storage.io.engine_choice import open_engine
from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import ReadBuffer
from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.io.thread_engine import ThreadEngine
from dlogd.storage.io.zero_fill import zero_ahead
from tests.fakes.engine_calls import BLOCK, AnyEngine, blocks, read, read_bytes, write

Scenario = Callable[[AnyEngine, File], Awaitable[None]]


@pytest.fixture(params=["aio", "threads"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def run(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Callable[..., None]:
    """Run a scenario with an engine and an open file."""

    def runner(scenario: Scenario, read_memory_bytes: int = 4 << 20) -> None:
        async def body() -> None:
            loop = asyncio.get_running_loop()
            engine = open_engine(kind, loop, read_memory_bytes=read_memory_bytes)
            assert isinstance(engine, AioEngine | ThreadEngine) and engine.name == kind
            file = PosixDirectory(str(tmp_path)).open("file", create=True, direct=request.param)
            try:
                await asyncio.wait_for(scenario(engine, file), 60)
                assert engine.unfinished == 0
            finally:
                file.close()
                engine.close()

        asyncio.run(body())

    return runner


def test_what_was_written_is_read(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        file.preallocate(0, 64 * BLOCK)
        assert await write(engine, file, BLOCK, blocks(1, 1)) is None
        assert await write(engine, file, 2 * BLOCK, blocks(1, 2), blocks(3, 3)) is None
        assert await write(engine, file, 0, blocks(1, 9), durable=False) is None
        assert file.pread(7 * BLOCK, 0) == b"".join(
            bytes([fill]) * BLOCK for fill in (9, 1, 2, 3, 3, 3, 0)
        )
        for position, length in ((0, BLOCK), (1, 5), (BLOCK - 3, 7), (100, 5 * BLOCK)):
            data = await read_bytes(engine, file, position, length)
            assert data == file.pread(length, position)

    run(scenario)


def test_many_buffers_in_one_write(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        buffers = [blocks(1, i % 251) for i in range(1030)]
        for count in (127, 128, 129, 1030):
            assert await write(engine, file, 0, *buffers[:count]) is None
            assert file.pread(count * BLOCK, 0) == b"".join(map(bytes, buffers[:count]))

    run(scenario)


def test_reads_are_short_only_at_the_end(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        file.pwrite(b"x" * 10_000, 0)
        assert await read_bytes(engine, file, 9_000, 5_000) == b"x" * 1_000
        assert await read_bytes(engine, file, 10_000, 10) == b""
        assert await read_bytes(engine, file, 50_000, 10) == b""
        assert await read_bytes(engine, file, 0, engine.read_length_max) == b"x" * 10_000
        for position, length in ((0, 0), (-1, 5), (0, engine.read_length_max + 1)):
            with pytest.raises(ValueError, match="Cannot read"):
                engine.read(file, position, length, lambda _: None)

    run(scenario)


def test_the_largest_read_fits_at_any_position(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        content = bytes(range(256)) * (2 << 12)
        file.pwrite(content, 0)
        for position in (0, 1, BLOCK - 1, BLOCK):
            data = await read_bytes(engine, file, position, engine.read_length_max)
            assert data == content[position : position + engine.read_length_max]

    run(scenario)


def test_reads_wait_for_memory_in_order(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        file.pwrite(b"y" * (1 << 20), 0)
        order: list[int] = []
        held: list[ReadBuffer] = []
        ended = asyncio.Event()

        def reader(number: int) -> Callable[[ReadBuffer | OSError], None]:
            def done(result: ReadBuffer | OSError) -> None:
                assert not isinstance(result, OSError)
                assert len(result.view) == engine.read_length_max
                order.append(number)
                held.append(result)
                ended.set()

            return done

        for number in range(5):
            engine.read(file, 0, engine.read_length_max, reader(number))
        for released in range(5):
            while len(order) == released:
                ended.clear()
                await asyncio.wait_for(ended.wait(), 10)
            await asyncio.sleep(0.005)
            assert len(order) == released + 1  # one large buffer in the pool, one read at a time
            held[-1].release()
        assert order == [0, 1, 2, 3, 4]
        with pytest.raises(RuntimeError, match="twice"):
            held[0].release()

    run(scenario, read_memory_bytes=512 * 1024)


def test_a_thousand_writes_at_once(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        file.preallocate(0, 1200 * BLOCK)
        results = await asyncio.gather(
            *(
                write(engine, file, i * BLOCK, blocks(1, i % 251), durable=False)
                for i in range(1200)
            )
        )
        assert set(results) == {None}
        data = file.pread(1200 * BLOCK, 0)
        assert all(data[i * BLOCK] == i % 251 for i in range(1200))

    run(scenario)


def test_errors_name_the_file(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        direct = file.direct
        other = PosixDirectory(str(tmp_path)).open("file", read_only=True, direct=direct)
        error = await write(engine, other, 0, blocks(1, 1))
        assert error is not None and error.errno == errno.EBADF
        assert error.filename == other.path
        other.close()
        failed = await read(engine, other, 0, 10)
        assert isinstance(failed, OSError) and failed.filename == other.path
        assert await write(engine, file, 0, blocks(1, 1)) is None

    run(scenario)


def test_a_raising_callback_does_not_hold_up_the_others(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        good: list[OSError | None] = []
        finished = asyncio.Event()

        def bad(error: OSError | None) -> None:
            raise ValueError("broken owner")

        def fine(error: OSError | None) -> None:
            good.append(error)
            if len(good) == 5:
                finished.set()

        for i in range(10):
            engine.write(
                file, i * BLOCK, [blocks(1, 1)], durable=False, done=bad if i % 2 else fine
            )
        await asyncio.wait_for(finished.wait(), 10)
        while len(reported) < 5:
            await asyncio.sleep(0.001)
        assert good == [None] * 5

    run(scenario)


def test_zeroing_ahead(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        file.preallocate(0, 4 << 20)
        result: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        zero_ahead(engine, file, BLOCK, (3 << 20) + BLOCK, result.set_result)
        assert await result is None
        assert file.size() == 4 << 20 and not any(file.pread(4 << 20, 0))

    run(scenario)


def test_zeroing_stops_at_the_first_error(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        other = PosixDirectory(str(tmp_path)).open("file", read_only=True, direct=file.direct)
        result: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        zero_ahead(engine, other, 0, 3 << 20, result.set_result)
        error = await result
        assert error is not None and error.errno == errno.EBADF
        other.close()

    run(scenario)


def test_run_returns_and_raises(run: Callable[..., None]) -> None:
    async def scenario(engine: AnyEngine, file: File) -> None:
        assert await engine.run(lambda: 42) == 42

        def fail() -> int:
            raise PermissionError("no")

        with pytest.raises(PermissionError):
            await engine.run(fail)

    run(scenario)


@pytest.mark.parametrize("position,offset,length", [(1, 0, BLOCK), (0, 1, BLOCK), (0, 0, 100)])
def test_unaligned_direct_writes_are_refused_here(
    kind: str, tmp_path: Path, position: int, offset: int, length: int
) -> None:
    async def body() -> None:
        engine = open_engine(kind, asyncio.get_running_loop())
        file = PosixDirectory(str(tmp_path)).open("file", create=True, direct=True)
        buffer = blocks(2, 1)[offset : offset + length]
        if file.direct and (kind == "aio" or not offset):
            with pytest.raises(ValueError, match="Unaligned"):
                engine.write(file, position, [buffer], durable=True, done=lambda _: None)
        file.close()
        engine.close()

    asyncio.run(body())


def test_unknown_kind() -> None:
    async def body() -> None:
        with pytest.raises(ValueError, match=r"io\.engine"):
            open_engine("uring", asyncio.get_running_loop())

    asyncio.run(body())


def test_auto_falls_back_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoAio:
        def __init__(self, *arguments: object, **options: object) -> None:
            raise OSError(errno.EAGAIN, "io_setup(512): no more contexts")

    monkeypatch.setattr("dlogd.storage.io.aio_engine.AioContext", NoAio)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        engine = open_engine("auto", loop)
        assert engine.name == "threads"
        engine.close()
        with pytest.raises(OSError, match="io_setup"):
            open_engine("aio", loop)

    asyncio.run(body())
