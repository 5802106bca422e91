"""Reads that need a disk: searches are bounded, and what they meet is told at the second one."""

import asyncio
from typing import Any, cast

import pytest

from dlog.errors import KafkaStorageError, OffsetOutOfRangeError, WireError
from dlogd.storage.log.disk_search import ROUNDS_MAX, SEARCHES_MAX, DiskSearch
from dlogd.storage.log.partition_log import PartitionLog


class LogStandIn:
    """A log whose disk finds nothing, or refuses."""

    topic_partition = "t-0"

    def __init__(self, error: WireError | None = None) -> None:
        self.error = error
        self.running = self.running_max = self.searches = 0

    async def locate(self, offset: int) -> None:
        self.searches += 1
        shared.running += 1
        shared.running_max = max(shared.running_max, shared.running)
        await asyncio.sleep(0)
        shared.running -= 1
        if self.error is not None:
            raise self.error


shared = LogStandIn()


def as_log(stand_in: LogStandIn) -> PartitionLog:
    return cast(PartitionLog, cast(Any, stand_in))


def test_rounds_are_bounded_and_begin_again_after_a_success() -> None:
    search, plog = DiskSearch(), as_log(LogStandIn())
    for _ in range(ROUNDS_MAX):
        search.check(plog, 7)
        asyncio.run(search.locate([(plog, 7)]))
    search.check(plog, 7)
    asyncio.run(search.locate([(plog, 7)]))
    with pytest.raises(KafkaStorageError, match="Offset 7 of t-0 is not found by 21 reads"):
        search.check(plog, 7)
    search.end()
    search.check(plog, 7)


def test_a_refusal_is_raised_when_the_second_search_met_it_too() -> None:
    search, plog = DiskSearch(), as_log(LogStandIn(OffsetOutOfRangeError("trimmed")))
    asyncio.run(search.locate([(plog, 7)]))
    assert isinstance(search.refusal(plog), OffsetOutOfRangeError)
    search.check(plog, 7)  # the log may have changed under the first one
    asyncio.run(search.locate([(plog, 7)]))
    with pytest.raises(OffsetOutOfRangeError, match="trimmed"):
        search.check(plog, 7)
    assert search.refusal(as_log(LogStandIn())) is None


def test_few_searches_run_at_a_time_and_none_when_nobody_waits() -> None:
    shared.running_max = 0
    logs = [LogStandIn() for _ in range(2 * SEARCHES_MAX + 1)]
    wanted = [(as_log(each), 1) for each in logs]
    asyncio.run(DiskSearch().locate(wanted))
    assert [each.searches for each in logs] == [1] * len(logs)
    assert shared.running_max == SEARCHES_MAX
    is_wanted = iter([True, False])
    asyncio.run(DiskSearch().locate(wanted, lambda: next(is_wanted)))
    assert sum(each.searches for each in logs) == len(logs) + SEARCHES_MAX
