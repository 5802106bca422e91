"""The power is cut at each operation of the disk while a log is rolled, cut, trimmed or closed.

Whatever survives must be a whole log with everything promised, before or after the operation.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from dlogd.config.choices import FlushPolicy
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.faults import ProcessDied
from tests.fakes.logs import TICK_S, LogHost, append_waiting, run_virtual, settle, values_of

RECORDS = 40
POINTS_MAX = 400


@dataclass(frozen=True)
class Operation:
    """What is done, and the offsets that the log may then have."""

    work: Callable[[PartitionLog], Awaitable[object]]
    ends: frozenset[int]
    starts: frozenset[int] = frozenset({0})


async def _roll_and_append(plog: PartitionLog) -> None:
    for epoch in (1, 2):
        plog.roll()
        await append_waiting(plog, b"later", epoch=epoch)
        await plog.flush()


FULL = frozenset({RECORDS})
OPERATIONS = {
    "roll": Operation(_roll_and_append, frozenset({RECORDS, RECORDS + 1, RECORDS + 2})),
    "truncate far": Operation(lambda log: log.truncate_to(5), frozenset(range(5, RECORDS + 1))),
    "truncate one": Operation(lambda log: log.truncate_to(RECORDS - 1), FULL | {RECORDS - 1}),
    "truncate all": Operation(lambda log: log.truncate_to(0), frozenset(range(RECORDS + 1))),
    "trim": Operation(lambda log: log.trim_to(20), FULL, frozenset({0, 20})),
    "trim all": Operation(lambda log: log.trim_to(RECORDS), FULL, frozenset({0, RECORDS})),
    "start ahead": Operation(
        lambda log: log.start_at(100),
        frozenset(range(RECORDS + 1)) | {100},
        frozenset({0, 100}),
    ),
    "start within": Operation(
        lambda log: log.start_at(20), frozenset(range(20, RECORDS + 1)), frozenset({0, 20})
    ),
    "close": Operation(lambda log: log.close(), FULL),
}


async def crash_at(operation: Operation, point: int, seed: int, policy: FlushPolicy) -> bool:
    """Run the operation, cut the power at its n-th disk operation; False: it had ended before."""
    config = LogConfig(
        segment_bytes=1000,
        preallocate_bytes=8192,
        index_interval_bytes=256,
        flush_policy=policy,
        flush_interval_ms=10**6,
    )
    host = LogHost(seed, config)
    plog = await host.open()
    for number in range(RECORDS):
        await append_waiting(plog, b"%03d" % number + b"x" * 97)
        if number % 8 == 0:
            await settle()
    await plog.flush()
    await settle()
    promised = [plog.flushed_offset]
    plog.on_promised = lambda log: promised.append(log.flushed_offset)
    died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    host.machine.die_at(point, lambda: died.set_result(None))
    task: asyncio.Future[object] = asyncio.ensure_future(operation.work(plog))
    while not task.done() and not died.done():
        await asyncio.sleep(TICK_S)
    for _ in range(3):
        await asyncio.sleep(TICK_S)
    ended = not died.done()
    if task.done() and not ended:
        assert task.exception() is None or isinstance(task.exception(), ProcessDied)
    keep = (0.0, 1.0, None)[seed % 3]
    plog = await host.power_cut(keep)
    if not ended:
        task.cancel()
    assert plog.log_start_offset in operation.starts
    assert plog.log_end_offset in operation.ends
    if min(operation.ends) == RECORDS:
        assert plog.log_end_offset >= promised[-1]
    values = await values_of(plog)
    assert [offset for offset, _ in values] == list(
        range(plog.log_start_offset, plog.log_end_offset)
    )
    for offset, value in values[:RECORDS]:
        assert value[:3] == b"%03d" % offset or value == b"later"
    await append_waiting(plog, b"after")
    await plog.flush()
    return not ended


@pytest.mark.parametrize("policy", [FlushPolicy.ALWAYS, FlushPolicy.NEVER])
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_power_cut_at_every_disk_operation(name: str, policy: FlushPolicy) -> None:
    async def scenario() -> None:
        for point in range(1, POINTS_MAX):
            for seed in range(3):
                if not await crash_at(OPERATIONS[name], point, 3 * point + seed, policy):
                    return
        raise AssertionError("the operation has no end")

    run_virtual(scenario)
