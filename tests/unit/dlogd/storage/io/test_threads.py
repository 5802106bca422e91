"""The engine of threads: completions in batches, flags of durable writes, short writes."""

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.io.thread_engine import ThreadEngine, Workers
from tests.fakes.engine_calls import blocks, write


class SlowJob:
    """A job that waits for its permission."""

    def __init__(self, permission: threading.Event, ended: list["SlowJob"]) -> None:
        self.permission = permission
        self.ended = ended

    def work(self) -> None:
        self.permission.wait(10)

    def finish(self) -> None:
        self.ended.append(self)


def test_completions_are_handed_over_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        wakeups: list[object] = []
        real = loop.call_soon_threadsafe

        def count(callback: object, *arguments: object) -> object:
            wakeups.append(callback)
            return real(callback, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        workers = Workers(loop, "test", 2)
        permission = threading.Event()
        ended: list[SlowJob] = []
        jobs = [SlowJob(permission, ended) for _ in range(50)]
        for job in jobs:
            workers.submit(job)
        assert workers.unfinished == 50 and len(workers._threads) == 2
        permission.set()
        while workers._queue.qsize():
            pass  # keep the loop busy, as a loaded one is
        while workers.unfinished:
            await asyncio.sleep(0.001)
        assert sorted(map(id, ended)) == sorted(map(id, jobs))
        assert len(wakeups) <= 10
        workers.close()

    asyncio.run(body())


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_durable_means_flushed(
    durable: bool, direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    is_direct: list[bool] = []  # not on every file system
    real = os.pwritev

    def spy(fd: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
        seen.append(flags)
        return real(fd, buffers, position, flags)

    monkeypatch.setattr(os, "pwritev", spy)
    monkeypatch.setattr(os, "fdatasync", lambda fd: seen.append(-1))

    async def body() -> None:
        engine = ThreadEngine(asyncio.get_running_loop())
        file = PosixDirectory(str(tmp_path)).open("file", create=True, direct=direct)
        is_direct.append(file.direct)
        assert await write(engine, file, 0, blocks(1, 1), durable=durable) is None
        file.close()
        engine.close()

    asyncio.run(body())
    if is_direct[0]:
        assert seen == [os.RWF_DSYNC if durable else 0]
    else:
        assert seen == ([0, -1] if durable else [0])


def test_a_flush_that_found_no_space_is_not_mistaken_for_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", fail)

    async def body() -> OSError | None:
        engine = ThreadEngine(asyncio.get_running_loop())
        file = PosixDirectory(str(tmp_path)).open("file", create=True)
        result = await write(engine, file, 0, blocks(1, 1))
        file.close()
        engine.close()
        return result

    error = asyncio.run(body())
    assert error is not None and error.errno == errno.EIO and "flush" in str(error)


def test_a_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, position, flags: 100)

    async def body() -> OSError | None:
        engine = ThreadEngine(asyncio.get_running_loop())
        file = PosixDirectory(str(tmp_path)).open("file", create=True)
        result = await write(engine, file, 0, blocks(1, 1))
        file.close()
        engine.close()
        return result

    error = asyncio.run(body())
    assert error is not None and error.errno == errno.ENOSPC and "100 of 4096" in str(error)


def test_where_there_are_no_more_threads_those_that_are_there_do_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def body() -> None:
        engine = ThreadEngine(asyncio.get_running_loop())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        file = PosixDirectory(str(tmp_path)).open("file", create=True)
        writes = [write(engine, file, 4096 * number, blocks(1, 1)) for number in range(20)]
        runs = [engine.run(lambda: 7) for _ in range(20)]
        found = await asyncio.wait_for(asyncio.gather(*writes, *runs), 20)
        assert found == [*[None] * 20, *[7] * 20]
        monkeypatch.undo()
        file.close()
        engine.close()

    asyncio.run(body())
    assert (
        len([each for each in caplog.messages if "Could not start more I/O threads" in each]) == 1
    )


def test_an_engine_without_threads_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it is needed, when a log would wait for it for ever."""
    real, started = threading.Thread.start, 0

    def start(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started > 4:
            raise RuntimeError("can't start new thread")
        real(thread)

    async def body() -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(OSError, match="raise the limit of tasks"):
            ThreadEngine(asyncio.get_running_loop())
        monkeypatch.undo()

    asyncio.run(body())
