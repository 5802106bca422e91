"""A node dies at each operation of its disks while a log is deleted, set aside or moved, and made.

Also in the starts after that. What is found is the log from before or the one that was made, and
the latter once it was promised; another log beside it loses nothing.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from dlog.errors import WireError
from tests.fakes.faults import ProcessDied
from tests.fakes.logs import TICK_S, append, run_virtual, settle, values_of
from tests.fakes.manager import CONFIG, TOPIC_ID, ManagerHost, key, partition

POINTS_MAX = 300
OLD, NEW, NEIGHBOUR = [(0, b"a" * 100), (1, b"b" * 100)], [(0, b"new")], [(0, b"other")]
Work = Callable[[ManagerHost], Awaitable[None]]


async def _make(host: ManagerHost) -> None:
    plog = await host.manager.create(partition(0), TOPIC_ID, CONFIG, anew=True)
    append(plog, b"new")
    await plog.flush()


async def _delete_and_make(host: ManagerHost) -> None:
    await host.manager.delete(partition(0), TOPIC_ID)
    await _make(host)


async def _move(host: ManagerHost) -> None:
    """The replica is taken from the node after its disk has failed, and given to it again."""
    host.manager.on_home_error(host.home_of(0), OSError(errno.EIO, "Input/output error"))
    await _delete_and_make(host)


OPERATIONS: dict[str, Work] = {"delete": _delete_and_make, "set aside": _make, "move": _move}


async def _dies(host: ManagerHost, point: int, work: Callable[[], Awaitable[Any]]) -> bool:
    """Do `work`; return whether the process died at its operation number `point`."""
    died = asyncio.Event()
    host.machine.die_at(point, died.set)
    task = asyncio.ensure_future(work())
    while not task.done() and not died.is_set():
        await asyncio.sleep(TICK_S)
    if died.is_set():
        task.cancel()
        with suppress(asyncio.CancelledError, ProcessDied, WireError, OSError):
            await task
        return True
    host.machine.spare()
    task.result()
    return False


async def _prepared(name: str, seed: int) -> ManagerHost:
    """Return a node with log 0, ready for the operation, and its neighbour log 1."""
    host = ManagerHost(2, seed=seed)
    await host.start()
    await host.create_with(0, *(value for _, value in OLD))
    await host.create_with(1, b"other")
    assert host.home_of(0) is not host.home_of(1)
    await settle()
    if name == "set aside":
        path = f"{host.home_of(0).path}/topics/t-0.{TOPIC_ID}"
        await host.crash()
        file = host.machine.boot().open_directory(path).open("00000000000000000000.log")
        file.pwrite(b"\xff" * 20, 70)
        file.sync()
        assert list((await host.start(0, 1)).failures) == [key(0)]
    return host


async def _crash_at(name: str, point: int, seed: int) -> bool:
    """Crash at one operation, and in starts; return whether there is such an operation."""
    host = await _prepared(name, seed)
    died = await _dies(host, point, lambda: OPERATIONS[name](host))
    await host.crash(power_cut=seed % 3 != 0)
    for _ in range(seed % 4):
        await _dies(host, host.machine.rng.randrange(1, 60), lambda: host.start(0, 1))
        await host.crash(power_cut=host.machine.rng.random() < 0.5)
    manager = await host.start(0, 1)
    assert await values_of(manager.logs[key(1)]) == NEIGHBOUR
    found = await values_of(manager.logs[key(0)]) if key(0) in manager.logs else None
    if not died:
        assert found == NEW
    elif key(0) in manager.failures:
        assert name == "set aside"
    else:
        assert found in (None, [], NEW) or (name != "set aside" and found == OLD)
    if found != OLD and found != NEW:  # who wants it can have it
        await asyncio.wait_for(_make(host), 60)
    await host.stop()
    assert not any(home.failure for home in manager.homes)
    return died


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_a_crash_at_every_disk_operation_leaves_one_log_or_the_other(name: str) -> None:
    async def scenario() -> None:
        for point in range(1, POINTS_MAX):
            for seed in (2 * point, 2 * point + 1):
                try:
                    if not await _crash_at(name, point, seed):
                        return
                except BaseException as error:
                    raise AssertionError(f"point {point}, seed {seed}") from error
        raise AssertionError("the operation has no end")

    run_virtual(scenario)
