"""Fetch requests by the wire from real logs: how much, how long, from where, until when."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import (
    FetchSessionIdNotFoundError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from dlog.wire import fetch_client
from dlogd.storage.log.log_config import LogConfig
from tests.fakes.fetched_logs import ReaderStandIn, check, fill, forget_what_is_in_memory
from tests.fakes.front import FETCH_VERSION, Front, fetch_frame, produce_frame, until
from tests.fakes.logs import append, batch_of, values_in

SMALL_SEGMENTS = LogConfig(segment_bytes=4096, preallocate_bytes=0)


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    real = getattr(owner, name)

    def counting(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, counting)
    return calls


# -- how much (KIP-74)


def test_the_first_batch_comes_whole_whatever_the_limits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            for topic in ("a", "b"):
                await fill(front.partition(topic), 3)
            size = len(batch_of(bytes(1000)))
            client = await front.connect()
            for max_bytes, partition_bytes, expected in (
                (1, 1, [1, 0]),
                (0, 0, [1, 0]),
                (-5, -5, [1, 0]),
                (1 << 20, 1, [1, 0]),
                (1, 1 << 20, [1, 0]),
                (size * 2, 1 << 20, [2, 0]),
                (size * 4 + 5, 1 << 20, [3, 1]),
                (1 << 20, size * 2 + 5, [2, 2]),
                (1 << 20, 1 << 20, [3, 3]),
            ):
                await client.send(
                    fetch_frame(
                        [("a", 0), ("b", 0)], max_bytes=max_bytes, partition_bytes=partition_bytes
                    )
                )
                found = await client.fetched()
                assert [len(values_in(records)) for _, records in found.values()] == expected
            # A partition without anything new does not use up the right to one batch.
            await client.send(fetch_frame([("a", 3), ("b", 0)], max_bytes=1))
            found = await client.fetched()
            assert [len(values_in(records)) for _, records in found.values()] == [0, 1]

    check(scenario)


def test_offsets_outside_the_log_are_refused_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            await fill(front.partition("t"), 3)
            client = await front.connect()
            for offset in (-1, 4, 2**62):
                await client.send(fetch_frame([("t", offset)], max_wait_ms=60_000))
                assert await client.fetched() == {"t": (OffsetOutOfRangeError.code, b"")}

    check(scenario)


def test_what_is_not_acknowledged_yet_is_empty_and_no_error(tmp_path: Path) -> None:
    """A consumer there must wait; by an error it would start anew from its reset policy."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            partition = front.partition("t")
            await fill(partition, 1)
            await partition.log._flusher.freeze()
            for _ in range(3):
                append(partition.log, b"x")
            client = await front.connect()
            for offset in (1, 2, 3, 4):
                await client.send(fetch_frame([("t", offset)]))
                assert await client.fetched() == {"t": (0, b"")}
            await client.send(fetch_frame([("t", 2)], max_wait_ms=60_000))
            await until(lambda: front.fetch.parked)
            partition.log._flusher.thaw()
            assert [offset for offset, _ in values_in((await client.fetched())["t"][1])] == [2, 3]

    check(scenario)


# -- how long


def test_a_poll_waits_for_enough_or_for_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            loop = asyncio.get_running_loop()
            client, producer = await front.connect(), await front.connect()
            wanted = [("a", 0), ("b", 0)]
            started = loop.time()
            await client.send(fetch_frame(wanted, max_wait_ms=100))
            assert await client.fetched() == {"a": (0, b""), "b": (0, b"")}
            assert 0.09 < loop.time() - started < 20  # the next one waits for a minute
            await client.send(fetch_frame(wanted, max_wait_ms=60_000, min_bytes=2500))
            for topic in ("a", "b", "a"):
                assert len(front.fetch.parked) == 1 or topic == "a"
                await producer.send(produce_frame(topic, batch_of(bytes(1000))))
                await producer.produced()
            found = await client.fetched()
            assert [len(values_in(records)) for _, records in found.values()] == [2, 1]
            assert not front.fetch.parked and not front.partition("a").fetches

    check(scenario)


def test_a_poll_over_many_partitions_looks_only_at_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        topics = [f"t{number}" for number in range(50)]
        async with Front.open(tmp_path, topics) as front:
            client, producer = await front.connect(), await front.connect()
            wanted = [(topic, 0) for topic in topics]
            await client.send(fetch_frame(wanted, max_wait_ms=60_000, min_bytes=20_000))
            await until(lambda: front.fetch.parked)
            (work,) = front.fetch.parked
            reads = count_calls(monkeypatch, type(work), "_read")
            for _ in range(18):
                await producer.send(produce_frame("t7", batch_of(bytes(1000))))
                await producer.produced()
            assert front.fetch.parked and not reads
            for _ in range(2):
                await producer.send(produce_frame("t9", batch_of(bytes(1000))))
                await producer.produced()
            found = await client.fetched()
            assert len(values_in(found["t7"][1])) == 18 and found["t9"][1]

    check(scenario)


def test_the_end_of_a_segment_is_not_waited_at(tmp_path: Path) -> None:
    """One answer ends with a segment; there is more behind it, so the next poll gets that."""

    async def scenario() -> None:
        async with Front.open(tmp_path, config=SMALL_SEGMENTS) as front:
            partition = front.partition("t")
            await fill(partition, 10)
            assert len(partition.log.segments) > 2
            client = await front.connect()
            offset = 0
            while offset < 9:
                await client.send(
                    fetch_frame([("t", offset)], max_wait_ms=20_000, min_bytes=100_000)
                )
                if offset >= partition.log.active.base_offset:
                    break
                found = values_in((await asyncio.wait_for(client.fetched(), 15))["t"][1])
                offset = found[-1][0] + 1

    check(scenario)


# -- from where


def test_places_on_disk_are_found_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        topics = [f"t{number}" for number in range(30)]
        async with Front.open(tmp_path, topics) as front:
            for topic in topics:
                await fill(front.partition(topic), 5, 300)
                forget_what_is_in_memory(front.partition(topic))
            looks = count_calls(monkeypatch, type_of_work(), "_look")
            client = await front.connect()
            await client.send(fetch_frame([(topic, 3) for topic in topics]))
            found = await client.fetched()
            for topic in topics:
                assert found[topic][0] == 0
                assert [offset for offset, _ in values_in(found[topic][1])] == [3, 4]
            assert len(looks) == 2

    check(scenario)


def type_of_work() -> Any:
    from dlogd.server.handlers import fetch

    return fetch.FetchWork


def test_a_place_that_is_never_found_is_an_error_of_its_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            for topic in ("a", "b"):
                await fill(front.partition(topic), 2)
            ReaderStandIn(front.partition("a"), read=lambda *_, **__: None)
            client = await front.connect()
            await client.send(fetch_frame([("a", 1), ("b", 1)]))
            found = await client.fetched()
            assert found["a"] == (KafkaStorageError.code, b"")
            assert len(values_in(found["b"][1])) == 1

    check(scenario)


# -- the end of things


@pytest.mark.parametrize("end", ["deleted", "failed", "trimmed"])
def test_a_poll_hears_of_the_end_of_its_partition(tmp_path: Path, end: str) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            client = await front.connect()
            await client.send(fetch_frame([("a", 0), ("b", 0)], max_wait_ms=60_000))
            await until(lambda: front.fetch.parked)
            partition = front.partition("a")
            if end == "deleted":
                del front.replicas.by_name[("a", 0)]
                partition.close(UnknownTopicOrPartitionError("The topic was deleted"))
                expected = UnknownTopicOrPartitionError.code
            elif end == "failed":
                partition.log.fail(OSError(5, "I/O error"))
                expected = KafkaStorageError.code
            else:
                await partition.log._flusher.freeze()
                append(partition.log, b"x")
                partition.log._flusher.thaw()
                await partition.log.trim_to(0)
                expected = 0
            found = await client.fetched()
            assert found["a"][0] == expected and found["b"] == (0, b"")
            assert not front.partition("b").fetches
            if end == "deleted":
                await partition.log.close(clean=False)

    check(scenario)


def test_stopping_answers_every_poll_and_parks_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a"]) as front:
            await fill(front.partition("a"), 5)
            polling, searching = await front.connect(), await front.connect()
            await polling.send(fetch_frame([("a", 5)], max_wait_ms=60_000))
            await until(lambda: front.fetch.parked)
            forget_what_is_in_memory(front.partition("a"))
            gate = asyncio.Event()

            async def late(offset: int) -> None:
                await gate.wait()
                await reader.real.locate(offset)

            reader = ReaderStandIn(front.partition("a"), locate=late)
            await searching.send(fetch_frame([("a", 3)], max_wait_ms=60_000, min_bytes=1 << 20))
            await until(lambda: len(front.tasks) == 1)
            front.fetch.stop()
            assert await polling.fetched() == {"a": (0, b"")}
            gate.set()
            assert len(values_in((await searching.fetched())["a"][1])) == 2
            assert not front.fetch.parked

    check(scenario)


def test_the_client_goes_away_while_the_disk_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            await fill(front.partition("t"), 5)
            forget_what_is_in_memory(front.partition("t"))
            gate = asyncio.Event()

            async def late(offset: int) -> None:
                await gate.wait()

            ReaderStandIn(front.partition("t"), locate=late)
            client = await front.connect()
            await client.send(fetch_frame([("t", 3)], max_wait_ms=60_000))
            await until(lambda: len(front.tasks) == 1)
            client.close()
            await until(lambda: not front.listener.connection_count)
            gate.set()
            await until(lambda: not len(front.tasks))
            assert not front.fetch.parked and not front.partition("t").fetches
            assert not any(segment.is_acquired for segment in front.partition("t").log.segments)

    check(scenario)


def test_an_unexpected_failure_of_a_search_closes_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            await fill(front.partition("t"), 5)
            forget_what_is_in_memory(front.partition("t"))

            async def broken(offset: int) -> None:
                raise ZeroDivisionError

            ReaderStandIn(front.partition("t"), locate=broken)
            client = await front.connect()
            await client.send(fetch_frame([("t", 3)], max_wait_ms=60_000))
            assert await client.is_closed_by_peer()

    check(scenario)


# -- sessions


def test_sessions_are_declined_and_unknown_ones_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            for session, code in (
                ((0, 0), 0),
                ((0, -1), 0),
                ((77, -1), 0),
                ((77, 0), 0),
                ((77, 5), FetchSessionIdNotFoundError.code),
            ):
                await client.send(fetch_frame([("t", 0)], session=session))
                frame = await client.receive()
                response = fetch_client.parse_response(frame, 4, len(frame), FETCH_VERSION)
                assert (response.error_code, response.session_id) == (code, 0)
                assert bool(response.topics) == (code == 0)

    check(scenario)


def test_a_request_without_partitions_is_answered_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(fetch_frame([], max_wait_ms=60_000))
            assert await client.fetched() == {}

    check(scenario)
