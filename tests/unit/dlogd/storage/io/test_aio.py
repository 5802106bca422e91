"""Linux AIO itself: one submission per iteration, full queues, flags, short reads and writes."""

import asyncio
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from dlogd.storage.io import linux_aio
from dlogd.storage.io.aio_engine import SILENT_S, AioEngine
from dlogd.storage.io.linux_aio import PWRITE, AioContext, address_of
from dlogd.storage.io.posix import PosixDirectory, PosixFile
from tests.fakes.engine_calls import BLOCK, blocks, read_bytes, write


class ScriptedContext(AioContext):
    """A context whose submissions can be refused and whose results can be changed."""

    refusals: list[int]  # per submission: 0 = all, n > 0 = only n of them, < 0 = errno
    results: dict[int, int]  # completion number -> result to report instead
    ended: int
    sent: list[int]

    def submit(self, first: int, count: int) -> int:
        refusal = self.refusals.pop(0) if self.refusals else 0
        if refusal < 0:
            return refusal
        number = super().submit(first, min(count, refusal or count))
        self.sent.append(number)
        return number

    def completions(self) -> list[tuple[int, int]]:
        changed = []
        for slot, result in super().completions():
            changed.append((slot, self.results.get(self.ended, result)))
            self.ended += 1
        return changed


Body = Callable[[AioEngine, PosixFile, ScriptedContext], "asyncio.Future[None]"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a scenario on a direct file with a scripted context."""
    monkeypatch.setattr("dlogd.storage.io.aio_engine.AioContext", ScriptedContext)

    def runner(scenario: Body, events: int = 16) -> None:
        async def body() -> None:
            engine = AioEngine(asyncio.get_running_loop(), events=events)
            context = engine._context
            assert isinstance(context, ScriptedContext)
            context.refusals, context.results, context.ended, context.sent = [], {}, 0, []
            file = PosixDirectory(str(tmp_path)).open("file", create=True, direct=True)
            if not file.direct:
                pytest.skip("no direct I/O here")
            file.preallocate(0, 256 * BLOCK)
            try:
                await asyncio.wait_for(scenario(engine, file, context), 30)
                assert engine.unfinished == 0
            finally:
                file.close()
                engine.close()

        asyncio.run(body())

    return runner


async def write_many(engine: AioEngine, file: PosixFile, count: int) -> list[OSError | None]:
    return list(
        await asyncio.gather(
            *(write(engine, file, i * BLOCK, blocks(1, i + 1)) for i in range(count))
        )
    )


def first_bytes(file: PosixFile, count: int) -> list[int]:
    return [file.pread(1, i * BLOCK)[0] for i in range(count)]


def test_one_submission_for_one_iteration(run: Callable[..., None]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        assert await write_many(engine, file, 10) == [None] * 10
        assert context.sent == [10]
        assert first_bytes(file, 10) == list(range(1, 11))

    run(scenario)


def test_more_than_there_are_slots(run: Callable[..., None]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        assert await write_many(engine, file, 100) == [None] * 100
        assert context.sent[0] == 4 and sum(context.sent) == 100
        assert first_bytes(file, 100) == list(range(1, 101))

    run(scenario, events=4)


@pytest.mark.parametrize(
    "refusals",
    [[-errno.EAGAIN], [-errno.EAGAIN] * 3, [3], [3, -errno.EAGAIN], [1, 1, -errno.EINTR, 2]],
)
def test_a_full_queue_is_tried_again(run: Callable[..., None], refusals: list[int]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        context.refusals = list(refusals)
        assert await write_many(engine, file, 10) == [None] * 10
        assert sum(context.sent) == 10
        assert first_bytes(file, 10) == list(range(1, 11))

    run(scenario)


def test_what_goes_to_a_disk_that_is_silent_goes_by_threads(run: Callable[..., None]) -> None:
    """There io_submit would wait for the disk, and the loop with it."""

    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        loop = asyncio.get_running_loop()
        assert await write_many(engine, file, 2) == [None] * 2
        loop.remove_reader(engine._eventfd)
        hanging = asyncio.ensure_future(write(engine, file, 0, blocks(1, 7)))
        beside = asyncio.ensure_future(write(engine, file, BLOCK, blocks(1, 8)))
        await asyncio.sleep(1.5 * SILENT_S)
        assert context.sent == [2, 2] and not hanging.done()
        assert await write(engine, file, 2 * BLOCK, blocks(1, 9)) is None
        assert await read_bytes(engine, file, 2 * BLOCK, 1) == b"\x09"
        assert context.sent == [2, 2]
        loop.add_reader(engine._eventfd, engine._on_completions)
        assert await asyncio.gather(hanging, beside) == [None, None]
        assert await write(engine, file, 0, blocks(1, 3)) is None
        assert context.sent == [2, 2, 1]

    run(scenario)


def test_one_refused_operation_fails_alone(run: Callable[..., None]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        context.refusals = [4, -errno.EINVAL]
        results = await write_many(engine, file, 10)
        errors = [error for error in results if error is not None]
        assert [error.errno for error in errors] == [errno.EINVAL]
        assert errors[0].filename == file.path
        assert results.index(errors[0]) == 4
        assert sum(context.sent) == 9

    run(scenario)


def test_a_round_that_is_refused_whole_does_not_hold_up_the_rest(run: Callable[..., None]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        context.refusals = [-errno.EINVAL] * 2
        results = await write_many(engine, file, 10)
        assert [error and error.errno for error in results] == [errno.EINVAL] * 2 + [None] * 8

    run(scenario, events=2)


def test_short_and_failed_writes_are_errors(run: Callable[..., None]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        context.results = {0: 512, 1: -errno.EIO}
        short = await write(engine, file, 0, blocks(2, 1))
        assert short is not None and short.errno == errno.ENOSPC and "512 of 8192" in str(short)
        failed = await write(engine, file, 0, blocks(1, 1))
        assert failed is not None and failed.errno == errno.EIO

    run(scenario)


def test_a_write_that_extends_the_file_does_not_block_the_loop(run: Callable[..., None]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        file.truncate(BLOCK)
        for position, count, submissions in ((0, 1, 1), (0, 2, 1), (4, 1, 1), (4, 1, 2)):
            assert await write(engine, file, position * BLOCK, blocks(count, 7)) is None
            assert len(context.sent) == submissions
        assert file.size() == 5 * BLOCK

    run(scenario)


def test_a_short_read_before_the_end_is_repeated(run: Callable[..., None]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        assert await write(engine, file, 0, blocks(8, 7)) is None
        context.results = {1: 2 * BLOCK}
        assert await read_bytes(engine, file, 10, 8 * BLOCK - 10) == b"\7" * (8 * BLOCK - 10)
        assert context.ended == 2

    run(scenario)


def test_a_short_read_of_a_file_that_was_closed_meanwhile_ends(run: Callable[..., None]) -> None:
    """Whoever gives a read up lets its file be closed; its memory has to come back all the same."""

    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        assert await write(engine, file, 0, blocks(1, 7)) is None
        end = file.size()
        done = asyncio.get_running_loop().create_future()
        engine.read(file, end - BLOCK, 2 * BLOCK, done.set_result)
        engine._submit()
        file.close()
        found = await done
        assert isinstance(found, OSError) and found.errno == errno.EBADF

    run(scenario)


def test_durable_means_rwf_dsync(run: Callable[..., None]) -> None:
    async def scenario(engine: AioEngine, file: PosixFile, context: ScriptedContext) -> None:
        for durable, flags in ((True, os.RWF_DSYNC), (False, 0)):
            buffer = blocks(2, 1)
            for buffers in ((buffer,), (buffer, buffer)):
                slot = engine._free_slots[-1]
                assert await write(engine, file, 0, *buffers, durable=durable) is None
                block = struct.unpack_from("<QIIHhIQQqQII", context._blocks, slot * 64)
                assert block[0] == slot and block[2] == flags and block[5] == file.fileno()
                if len(buffers) == 1:
                    assert (block[3], block[6], block[7]) == (PWRITE, address_of(buffer), 2 * BLOCK)

    run(scenario)


def test_too_many_events_are_refused_with_the_limits() -> None:
    async def body() -> None:
        with pytest.raises(OSError, match=r"io_setup\(.*aio-max-nr=\d+"):
            AioEngine(asyncio.get_running_loop(), events=1 << 30)

    descriptors = len(os.listdir("/proc/self/fd"))
    asyncio.run(body())
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_an_unknown_machine_has_no_aio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_aio, "_CALL_NUMBERS", {})
    with pytest.raises(OSError, match="No Linux AIO"):
        AioContext(1, -1)
