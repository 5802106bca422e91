"""Batches that no reader can decode: what is before them is given, and their place is told."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dlog.client.bad_batches import UndecodableBatchError
from dlog.client.consumer import Consumer
from dlog.compression import Codec
from dlog.errors import CorruptMessageError
from dlog.types import TopicPartition
from tests.fakes.bad_batches import astray, miscounted, no_gzip
from tests.fakes.batches import batch
from tests.fakes.log_consumers import FIRST, SECOND, THIRD, consumer, offsets, read, run
from tests.fakes.log_nodes import LogNodes
from tests.fakes.threaded_nodes import Nodes
from tests.fakes.threaded_nodes import consumer as blocking
from tests.fakes.threaded_nodes import nodes as nodes

Take = Callable[[Consumer, int], Awaitable[list[int]]]


async def as_records(reader: Consumer, count_max: int) -> list[int]:
    """Return the offsets of one poll."""
    return [each.offset for each in await reader.poll(count_max, timeout_ms=200)]


async def as_columns(reader: Consumer, count_max: int) -> list[int]:
    """Return the offsets of one poll of columns."""
    found = await reader.poll_arrow(count_max, timeout_ms=200)
    return list(found.column("offset").to_pylist())


TAKES = pytest.mark.parametrize("take", [as_records, as_columns])


def spoil(servers: LogNodes, partition: int = 0) -> None:
    """Write the log of the tests: 0 good, 1 to 2 and 3 to 5 bad, 6 to 8 good."""
    log = servers.logs[partition]
    log.batches.clear()
    for data in (batch(0, 1), no_gzip(1, 2), miscounted(3, 2, said=3), batch(6)):
        log.append(data)


async def all_before(reader: Consumer, take: Take, count_max: int = 100) -> tuple[list[int], Any]:
    """Take until the first error; return the offsets and that error."""
    found: list[int] = []
    while True:
        try:
            found += await take(reader, count_max)
        except UndecodableBatchError as error:
            return found, error


def check(error: UndecodableBatchError, key: TopicPartition, offset: int, resume: int) -> None:
    """See that an error names its place and its cause."""
    assert error.batch[:3] == (key, offset, resume)
    assert isinstance(error.__cause__, CorruptMessageError)
    for part in (str(key), f"batch at offset {offset}:", f"go on at offset {resume}"):
        assert part in str(error)


@TAKES
@pytest.mark.parametrize("count_max", [1, 2, 100])
def test_what_is_before_is_given_and_a_seek_goes_on(take: Take, count_max: int) -> None:
    async def work(servers: LogNodes) -> None:
        spoil(servers)
        async with consumer(servers) as reader:
            found, error = await all_before(reader, take, count_max)
            assert found == [0]
            check(error, FIRST, 1, 3)
            assert "gzip: Error -3" in str(error)
            assert reader.position(FIRST) == 1
            for _ in range(2):  # it does not pass
                with pytest.raises(UndecodableBatchError, match="offset 1"):
                    await take(reader, count_max)
            await reader.seek(FIRST, reader.position(FIRST) + 1)
            found, error = await all_before(reader, take, count_max)
            assert (found, reader.position(FIRST)) == ([], 2)
            check(error, FIRST, 1, 3)
            await reader.seek(FIRST, error.batch.resume_offset)
            found, error = await all_before(reader, take, count_max)
            # A poll of few columns does not look at what lies behind its bound.
            if take is as_records or count_max > 2:
                assert found == []
            assert found == list(range(3, reader.position(FIRST)))
            check(error, FIRST, 3, 6)
            await reader.seek(FIRST, error.batch.resume_offset)
            found = []
            while len(found) < 3:
                found += await take(reader, count_max)
            assert found == [6, 7, 8]
            assert reader.counters.bad_batches == 3
            assert reader.counters.records >= 4

    run(work)


def test_a_batch_with_more_records_than_it_says() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].append(miscounted(9, 2, said=1))
        async with consumer(servers) as reader:
            found, error = await all_before(reader, as_records)
            assert found == list(range(9))
            check(error, FIRST, 9, 10)
            assert reader.position(FIRST) == 9

    run(work)


@TAKES
@pytest.mark.parametrize("count_max", [1, 2, 100])
@pytest.mark.parametrize("deltas", [(0, 1_000_000, 2), (0, 1, 3), (-1, 1, 2), (0, 2**62, 2)])
def test_records_outside_of_their_batch_hide_no_others(
    take: Take, count_max: int, deltas: tuple[int, ...]
) -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        log.append(astray(9, deltas))
        for _ in range(3):
            log.append(batch(log.end))
        async with consumer(servers) as reader:
            found, error = await all_before(reader, take, count_max)
            check(error, FIRST, 9, 12)
            # A poll of few records may have given those before the one that is nowhere.
            assert found[:9] == list(range(9)) and found[9:] in ([], [9], [9, 10])
            await reader.seek(FIRST, error.batch.resume_offset)
            found = []
            while len(found) < 9:
                found += await take(reader, count_max)
            assert found == list(range(12, 21))

    run(work)


@TAKES
def test_other_partitions_go_on_and_lose_nothing(take: Take) -> None:
    async def work(servers: LogNodes) -> None:
        spoil(servers, 1)
        async with consumer(servers) as reader:
            while servers.open_fetches.is_set() and len(reader._reading.fetcher.ready) < 3:
                await reader._reading.fetcher.arrived.wait(1)
            found, error = await all_before(reader, take)
            check(error, SECOND, 1, 3)
            # All that was fetched of the others came before it, or comes now.
            while len(found) < 19:
                found += await take(reader, 100)
            assert sorted(found) == sorted([0, *range(9), *range(9)])
            for number in (0, 2):
                servers.logs[number].append(batch(9))
            servers.notify()
            found = []
            while len(found) < 6:
                found += await take(reader, 100)
            assert found.count(10) == 2
            with pytest.raises(UndecodableBatchError, match="t-1: cannot decode"):
                await take(reader, 100)
            assert [reader.position(key) for key in (FIRST, SECOND, THIRD)] == [12, 1, 12]

    run(work, partitions=3, nodes=2)


def test_an_iteration_gives_what_is_before() -> None:
    async def work(servers: LogNodes) -> None:
        spoil(servers)
        async with consumer(servers) as reader:
            found = []
            with pytest.raises(UndecodableBatchError):
                async for record in reader:
                    found += [record.offset]
            assert (found, reader.position(FIRST)) == ([0], 1)
            await reader.seek(FIRST, 6)
            async for record in reader:
                found.append(record.offset)
                if record.offset == 8:
                    break
            assert found == [0, 6, 7, 8]

    run(work)


def test_many_good_batches_before_a_bad_one_of_one_fetch() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        for _ in range(200):
            log.append(batch(log.end, codec=Codec.LZ4))
        log.append(no_gzip(log.end, 1, Codec.ZSTD))
        log.append(batch(log.end))
        async with consumer(servers) as reader:
            found, error = await all_before(reader, as_records, 10_000)
            assert found == list(range(609))
            check(error, FIRST, 609, 610)
            assert reader.counters.bad_batches == 1
            await reader.seek(FIRST, 610)
            assert offsets(await read(reader, 3)) == [610, 611, 612]

    run(work)


def test_a_pause_keeps_it_quiet_and_the_leader_may_move() -> None:
    async def work(servers: LogNodes) -> None:
        spoil(servers)
        async with consumer(servers) as reader:
            await all_before(reader, as_records)
            reader.pause(FIRST)
            servers.logs[0].leader, servers.logs[0].leader_epoch = 1, 3
            while len(await reader.poll(timeout_ms=50)):
                pass  # what else there is
            assert await reader.poll(timeout_ms=50) == []
            reader.resume(FIRST)
            with pytest.raises(UndecodableBatchError):
                await reader.poll(timeout_ms=50)
            await reader.seek(FIRST, 6)
            assert offsets(await read(reader, 3)) == [6, 7, 8]

    run(work, partitions=2, nodes=2)


def test_who_heeds_gaps_is_not_led_past_it() -> None:
    async def work(servers: LogNodes) -> None:
        spoil(servers)
        gaps: list[Any] = []
        async with consumer(servers, on_gap=gaps.append) as reader:
            found, error = await all_before(reader, as_records)
            assert (found, gaps) == ([0], [])
            check(error, FIRST, 1, 3)

    run(work)


def test_a_blocking_consumer_does_the_same(nodes: Nodes) -> None:
    nodes.spoil(0)
    with blocking(nodes) as reader:
        found: list[tuple[int, int]] = []
        with pytest.raises(UndecodableBatchError) as caught:
            for record in reader:
                found += [(record.partition, record.offset)]
        check(caught.value, FIRST, 1, 3)
        assert reader.position(FIRST) == 1
        while len(found) < 10:
            found += [(each.partition, each.offset) for each in reader.poll()]
        assert sorted(found) == [(0, 0), *((1, offset) for offset in range(9))]
        with pytest.raises(UndecodableBatchError):
            reader.poll_arrow(timeout_ms=100)
        reader.seek(FIRST, 6)
        assert [each.offset for each in reader.poll()] == [6, 7, 8]
