"""The engine of the simulated disk: writes and work under way when it fails, hangs or dies."""

import asyncio
import errno
import random
from collections.abc import Callable
from functools import partial

import pytest

from dlogd.storage.io.files import Directory, File
from dlogd.storage.io.io_engine import Engine, ReadBuffer
from tests.fakes.disk import Machine, Process
from tests.fakes.faults import DiskFault, Latency
from tests.fakes.manager import until
from tests.fakes.rebooted import durable_file, reopen


async def write(
    engine: Engine, file: File, position: int, *data: bytes, durable: bool = True
) -> OSError | None:
    """Write and wait until done."""
    future: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    views = [memoryview(piece) for piece in data]
    engine.write(file, position, views, durable=durable, done=future.set_result)
    return await asyncio.wait_for(future, 5)


async def read(engine: Engine, file: File, position: int, length: int) -> bytes:
    """Read, copy and release."""
    future: asyncio.Future[ReadBuffer | OSError] = asyncio.get_running_loop().create_future()
    engine.read(file, position, length, future.set_result)
    result = await asyncio.wait_for(future, 5)
    if isinstance(result, OSError):
        raise result
    data = bytes(result.view)
    result.release()
    return data


def with_engine(scenario: Callable[[Machine, Process, Directory], object], seed: int = 1) -> object:
    """Run a coroutine function on a plain loop with an engine."""

    async def main() -> object:
        machine = Machine(random.Random(seed))
        process = machine.boot(asyncio.get_running_loop())
        outcome = scenario(machine, process, process.open_directory("/data/a"))
        assert asyncio.iscoroutine(outcome)
        return await outcome

    return asyncio.run(main())


def test_engine_durable_writes_survive() -> None:
    async def scenario(machine: Machine, process: Process, directory: Directory) -> None:
        file = directory.open("f", create=True)
        directory.sync()
        assert await write(process.engine, file, 100, b"ab", b"cd") is None
        assert await read(process.engine, file, 99, 9) == b"\0abcd"
        assert await process.engine.run(lambda: file.pread(2, 100)) == b"ab"
        machine.power_cut()
        assert reopen(machine).open("f").pread(4, 100) == b"abcd"

    with_engine(scenario)


def test_engine_errors_and_partial_writes() -> None:
    async def scenario(machine: Machine, process: Process, directory: Directory) -> object:
        file = durable_file(directory, "f", b"o" * 2048)
        fault = DiskFault(operations=("write",), count=1, errno=errno.ENOSPC)
        machine.disks["/data"].faults.append(fault)
        error = await write(process.engine, file, 0, b"n" * 2048)
        assert error is not None and error.errno == errno.ENOSPC
        machine.disks["/data"].faults.append(DiskFault(operations=("read",), count=1))
        with pytest.raises(OSError, match="error"):
            await read(process.engine, file, 0, 10)
        with pytest.raises(FileNotFoundError):
            await process.engine.run(lambda: directory.open("none"))
        return len(set(await read(process.engine, file, 0, 2048)))

    assert {with_engine(scenario, seed) for seed in range(30)} == {1, 2}


def test_crash_in_flight_may_keep_any_part_and_completes_nothing() -> None:
    async def scenario(machine: Machine, process: Process, directory: Directory) -> object:
        machine.disks["/data"].latency = Latency(fixed=0.001)
        file = durable_file(directory, "f", b"o" * 1024)
        done: list[OSError | None] = []
        data = [memoryview(b"n" * 1024)]
        process.engine.write(file, 0, data, durable=True, done=done.append)
        late = asyncio.ensure_future(process.engine.run(lambda: file.pwrite(b"late", 0)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        machine.crash()
        await asyncio.sleep(0.005)
        assert not done and not late.done()
        late.cancel()
        content = reopen(machine).open("f").pread(2048, 0)
        return content[:1] + content[512:513]

    results = {with_engine(scenario, seed) for seed in range(60)}
    assert results == {b"oo", b"on", b"no", b"nn"}


def test_engine_refuses_misuse() -> None:
    async def scenario(machine: Machine, process: Process, directory: Directory) -> None:
        engine = process.engine
        file = directory.open("f", create=True, direct=True)
        with pytest.raises(AssertionError, match="unaligned"):
            await write(engine, file, 0, b"abc")
        plain = directory.open("g", create=True)
        first = asyncio.ensure_future(write(engine, plain, 0, b"abc"))
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="in flight"):
            await write(engine, plain, 3, b"def")
        with pytest.raises(AssertionError, match="in flight"):
            engine.close()
        await first
        future: asyncio.Future[ReadBuffer | OSError] = asyncio.get_running_loop().create_future()
        engine.read(plain, 0, 3, future.set_result)
        buffer = await future
        assert not isinstance(buffer, OSError)
        kept = buffer.view[:2]
        buffer.release()
        assert bytes(kept) == b"\xdb\xdb"
        with pytest.raises(AssertionError, match="twice"):
            buffer.release()

    with_engine(scenario)


def test_stuck_disk_goes_on_after_heal() -> None:
    async def scenario(machine: Machine, process: Process, directory: Directory) -> None:
        file = directory.open("f", create=True)
        machine.disks["/data"].stick()
        writing = asyncio.ensure_future(write(process.engine, file, 0, b"x"))
        working = asyncio.ensure_future(process.engine.run(lambda: file.pread(1, 0)))
        await asyncio.sleep(0.02)
        assert not writing.done() and not working.done()
        machine.heal()
        assert await writing is None
        await working

    with_engine(scenario)


def test_work_that_pauses_lets_the_loop_go_on() -> None:
    async def scenario(machine: Machine, process: Process, directory: Directory) -> object:
        process.engine.pause_share = 0.7
        file = directory.open("f", create=True)

        def work() -> bytes:
            for number in range(8):
                file.pwrite(bytes([number]), number)
            return file.pread(8, 0)

        seen = []
        task = asyncio.ensure_future(process.engine.run(work))
        while not task.done():
            await asyncio.sleep(0)
            seen.append(file.size())
        assert await task == bytes(range(8))
        return tuple(sorted(set(seen)))

    results = {with_engine(scenario, seed) for seed in range(10)}
    assert any(len(sizes) > 2 for sizes in results if isinstance(sizes, tuple))
    assert with_engine(scenario, 3) == with_engine(scenario, 3)


def test_death_in_the_middle_of_work() -> None:
    async def scenario(machine: Machine, process: Process, directory: Directory) -> None:
        for pause_share in (0.0, 0.5):
            process = machine.boot(asyncio.get_running_loop())
            process.engine.pause_share = pause_share
            file = process.open_directory("/data/a").open("f", create=True)
            file.truncate(0)
            deaths: list[int] = []
            machine.die_at(5, partial(deaths.append, 1))

            def work(file: File = file) -> None:
                for number in range(9):
                    file.pwrite(b"x", number)

            task = asyncio.ensure_future(process.engine.run(work))
            await until(lambda: deaths)  # noqa: B023
            assert not task.done()
            machine.crash()
            task.cancel()
            assert reopen(machine).open("f").size() == 4

    with_engine(scenario)
