"""Produce requests by the wire into real logs: order, parts, lack of memory, deletion meanwhile."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dlog.batch.records import Record, encode
from dlog.compression import Codec
from dlog.errors import (
    CorruptMessageError,
    InvalidRequiredAcksError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
)
from dlog.types import LeaderEpoch, NodeId
from dlog.wire import produce_client
from dlogd.replication.partition.leader_state import Leadership
from tests.fakes.front import PRODUCE_VERSION, Client, Front, produce_frame, run_on, until
from tests.fakes.logs import batch_of, values_of


def check(scenario: Callable[[], Awaitable[None]]) -> None:
    run_on(asyncio.new_event_loop, scenario())


def many_frame(parts: list[tuple[str, bytes]], *, acks: int = -1, version: int = 7) -> bytes:
    topics = [(topic, [(0, data)]) for topic, data in parts]
    return produce_client.encode_request(version, 1, "test", acks, 5000, topics)


async def codes(client: Client) -> list[tuple[str, int, int]]:
    """Return topic, error code and base offset of each part of the next answer."""
    return [(topic, part[1], part[2]) for topic, (part,) in await client.produced()]


def test_answers_come_in_the_order_of_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            await front.partition("a").log._flusher.freeze()
            client = await front.connect()
            await client.send(
                produce_frame("a", batch_of(b"1"), correlation_id=1),
                produce_frame("b", batch_of(b"2"), correlation_id=2),
                produce_frame("missing", batch_of(b"3"), correlation_id=3),
            )
            await until(lambda: front.partition("b").high_watermark == 1)
            front.partition("a").log._flusher.thaw()
            for number in (1, 2, 3):
                assert (await client.receive())[:4] == number.to_bytes(4, "big")

    check(scenario)


def test_one_bad_part_does_not_hinder_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            broken = batch_of(b"x")
            broken[-1] ^= 1
            client = await front.connect()
            parts = [("a", bytes(batch_of(b"1"))), ("missing", bytes(batch_of(b"x")))]
            parts += [
                ("b", bytes(broken)),
                ("b", bytes(batch_of(b"2"))),
                ("a", bytes(batch_of(b"3"))),
            ]
            await client.send(many_frame(parts))
            assert await codes(client) == [
                ("a", 0, 0),
                ("missing", UnknownTopicOrPartitionError.code, -1),
                ("b", CorruptMessageError.code, -1),
                ("b", 0, 0),
                ("a", 0, 1),
            ]
            assert front.router._produce.api.errors == {
                "UNKNOWN_TOPIC_OR_PARTITION": 1,
                "CORRUPT_MESSAGE": 1,
            }

    check(scenario)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_refused_request_is_timed_too(tmp_path: Path, acks: int) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            broken = batch_of(b"x")
            broken[-1] ^= 1
            client = await front.connect()
            await client.send(
                produce_frame("t", batch_of(b"1")), produce_frame("t", broken, acks=acks)
            )
            api = front.router._produce.api
            await until(lambda: api.errors == {"CORRUPT_MESSAGE": 1} and api.seconds.count == 2)
            assert api.requests == 2
            assert api.seconds.sum > 0

    check(scenario)


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_impossible_acks_are_refused_before_the_append(tmp_path: Path, acks: int) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(produce_frame("t", batch_of(b"x"), acks=acks))
            assert await codes(client) == [("t", InvalidRequiredAcksError.code, -1)]
            assert front.partition("t").log.log_end_offset == 0

    check(scenario)


def test_zstd_needs_a_version_that_knows_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            data = bytes(encode([Record(value=bytes(100), timestamp_ms=1)], codec=Codec.ZSTD))
            await client.send(many_frame([("t", data)], version=6), many_frame([("t", data)]))
            frame = await client.receive()
            ((_, (part,)),) = produce_client.parse_response(frame, 4, len(frame), 6).topics
            assert part[1] == UnsupportedCompressionTypeError.code
            assert await codes(client) == [("t", 0, 0)]

    check(scenario)


def test_lack_of_memory_stops_reading_and_loses_nothing(tmp_path: Path) -> None:
    """Requests of many parts go on in their middle, and those behind them in their order."""

    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"], pool_bytes=1 << 20) as front:
            clients = [await front.connect() for _ in range(4)]
            rounds = 8

            async def feed(number: int) -> None:
                for turn in range(rounds):
                    value = bytes([number, turn]) * 50_000
                    parts = [(topic, bytes(batch_of(value))) for topic in ("a", "b", "a")]
                    await clients[number].send(many_frame(parts))

            feeding = asyncio.gather(*(feed(number) for number in range(4)))
            for client in clients:
                for _ in range(rounds):
                    assert [code for _, code, _ in await codes(client)] == [0, 0, 0]
            await feeding
            assert front.services.metrics.append_waits_total > 0
            for topic, times in (("a", 2), ("b", 1)):
                values = [value[:2] for _, value in await values_of(front.partition(topic).log)]
                for number in range(4):
                    mine = [value[1] for value in values if value[0] == number]
                    assert mine == sorted([*range(rounds)] * times)
            assert front.telemetry.server.paused_connections == 0

    check(scenario)


def test_who_waits_for_a_flush_holds_no_frame(tmp_path: Path) -> None:
    """The records are in append memory by then; frames are bounded until they have been read."""

    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"], pool_bytes=32 << 20) as front:
            await front.partition("a").log._flusher.freeze()
            client = await front.connect()
            frame = many_frame([("a", bytes(batch_of(bytes(400_000)))), ("b", b"")] * 6)
            tracemalloc.start()
            await client.send(*[frame] * 5)
            await until(lambda: front.partition("a").waiting_count == 30)
            await until(lambda: not front.listener.limits.frames.used_bytes)
            held_bytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert held_bytes < 2 * len(frame)
            front.partition("a").log._flusher.thaw()
            for _ in range(5):
                assert len(await codes(client)) == 12

    check(scenario)


@pytest.mark.parametrize("end", ["deleted", "client", "stop"])
def test_the_end_of_something_while_a_request_waits_for_memory(tmp_path: Path, end: str) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"], pool_bytes=1 << 20) as front:
            held = front.partition("a")
            await held.log._flusher.freeze()
            filler, client = await front.connect(), await front.connect()
            await filler.send(*[produce_frame("a", batch_of(bytes(100_000)))] * 12)
            await until(lambda: front.telemetry.server.paused_connections == 1)
            await client.send(
                produce_frame("b", batch_of(bytes(100_000))), produce_frame("b", batch_of(b"x"))
            )
            await until(lambda: front.telemetry.server.paused_connections == 2)
            if end == "deleted":
                partition = front.replicas.by_name.pop(("b", 0))
                partition.close(UnknownTopicOrPartitionError("The topic was deleted"))
                held.log._flusher.thaw()
                for _ in range(2):
                    assert await codes(client) == [("b", UnknownTopicOrPartitionError.code, -1)]
                await partition.log.close(clean=False)
            elif end == "client":
                client.close()
                await asyncio.sleep(0.02)
                held.log._flusher.thaw()
                # Its end is noticed when it is read again; what had come before may be appended.
                await until(lambda: front.listener.connection_count == 1)
                await until(lambda: held.high_watermark == 12)
                await until(lambda: not front.services.memory.pool.usage().waiting)
            else:
                asyncio.get_running_loop().call_later(0.1, held.log._flusher.thaw)
                await front.listener.stop(5.0)
                assert await codes(client) == [("b", 0, 0)]
                assert await client.is_closed_by_peer()
                assert front.partition("b").log.log_end_offset == 1

    check(scenario)


def test_a_partition_that_closes_answers_who_waits_for_its_flush(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            await front.partition("a").log._flusher.freeze()
            client = await front.connect()
            await client.send(
                many_frame([("a", bytes(batch_of(b"1"))), ("b", bytes(batch_of(b"2")))])
            )
            await until(lambda: front.partition("b").high_watermark == 1)
            front.partition("a").close()
            assert await codes(client) == [("a", NotLeaderOrFollowerError.code, -1), ("b", 0, 0)]
            front.partition("a").log._flusher.thaw()

    check(scenario)


def test_an_answer_that_does_not_come_in_time_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            partition = front.partition("t")
            partition.lead(LeaderEpoch(1), Leadership(followers=(NodeId(2),), isr=(NodeId(2),)))
            client = await front.connect()
            await client.send(
                produce_frame("t", batch_of(b"1"), timeout_ms=60_000),
                produce_frame("t", batch_of(b"2"), timeout_ms=50),
                produce_frame("t", batch_of(b"3"), acks=1, timeout_ms=0),
            )
            await until(lambda: partition.waiting_count == 1)
            partition.lead(LeaderEpoch(1), Leadership(followers=(NodeId(2),)))
            assert await codes(client) == [("t", 0, 0)]
            assert await codes(client) == [("t", RequestTimedOutError.code, -1)]
            assert await codes(client) == [("t", 0, 2)]

    check(scenario)


def test_a_request_without_parts_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(
                produce_client.encode_request(PRODUCE_VERSION, 1, None, -1, 0, []),
                produce_client.encode_request(PRODUCE_VERSION, 1, None, 0, 0, []),
                produce_client.encode_request(PRODUCE_VERSION, 1, None, -1, 0, [("t", [])]),
            )
            assert await client.produced() == []
            assert await client.produced() == [("t", [])]

    check(scenario)
