"""The consumer when things go wrong: leaders move, nodes vanish, logs lose records, bits flip."""

import asyncio
import logging
from typing import Any

import pytest

from dlog.batch.header import CRC_POSITION, CRC_START
from dlog.batch.records import Record, encode
from dlog.checksum import crc32c
from dlog.client.consumer import Consumer
from dlog.client.gaps import Gap, GapError, GapReason
from dlog.client.retry import RetryPolicy
from dlog.errors import (
    ConnectFailedError,
    CorruptMessageError,
    DlogError,
    FencedLeaderEpochError,
    KafkaStorageError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    ReplicaNotAvailableError,
    TopicAuthorizationFailedError,
    TransportError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.transport import ConnectionOptions
from dlog.wire.apis import ApiKey
from tests.fakes.batches import batch
from tests.fakes.log_nodes import LogNodes
from tests.unit.test_consumer import FIRST, SECOND, consumer, offsets, read, run

BRIEF = RetryPolicy(base_s=0.001, cap_s=0.01, deadline_s=0.2)


def gap(reason: GapReason, offset: int, resume_offset: int) -> Gap:
    """Return a gap of the first partition."""
    return Gap(topic_partition=FIRST, reason=reason, offset=offset, resume_offset=resume_offset)


# Leaders


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderOrFollowerError,
        FencedLeaderEpochError,
        UnknownLeaderEpochError,
        LeaderNotAvailableError,
        ReplicaNotAvailableError,
        UnknownTopicOrPartitionError,
        KafkaStorageError,
        OffsetNotAvailableError,
    ],
)
def test_errors_that_pass_are_not_heard_of(error: type[WireError]) -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].errors = [error] * 3
        async with consumer(servers) as reader:
            assert offsets(await read(reader, 9)) == list(range(9))
            assert reader.counters.partition_errors == 3

    run(work)


@pytest.mark.parametrize("leader_epoch", [0, 5])
def test_a_leader_that_moves_is_followed(leader_epoch: int) -> None:
    """With a hint where to (a newer epoch), or by asking when the old leader knows nothing."""

    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 18)
            log = servers.logs[0]
            log.leader, log.leader_epoch = 1, leader_epoch
            log.append(batch(9, leader_epoch=leader_epoch))
            servers.notify()
            assert offsets(await read(reader, 3)) == [9, 10, 11]
            assert reader.client_counters.leader_hints == (1 if leader_epoch else 0)
            (_, entries), *_ = servers.requests[-1].topics
            assert {entry[1] for entry in entries if entry[0] == 0} <= {leader_epoch}

    run(work, partitions=2, nodes=2)


def test_a_node_that_vanishes_and_returns_costs_nothing() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 18)
            servers.stop(1)
            servers.logs[0].append(batch(9))
            servers.logs[1].append(batch(9))
            servers.notify()
            assert offsets(await read(reader, 3)) == [9, 10, 11]
            await servers.start(1)
            assert offsets(await read(reader, 3), 1) == [9, 10, 11]
            assert reader.counters.fetch_failures >= 1

    run(work, partitions=2, nodes=2)


def test_a_connection_cut_within_an_answer_is_made_again() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            assert offsets(await reader.poll(1)) == [0]
            for end in range(9, 30, 3):
                servers.logs[0].append(batch(end))
                servers.stop(0)
                await servers.start(0)
            assert offsets(await read(reader, 29)) == list(range(1, 30))

    run(work)


def test_a_silent_node_is_given_up_after_its_time() -> None:
    async def work(servers: LogNodes) -> None:
        options = ConnectionOptions(request_timeout_s=0.1, connect_timeout_s=1)
        async with consumer(servers, connection=options) as reader:
            await read(reader, 9)
            servers.open_fetches.clear()
            servers.logs[0].append(batch(9))
            servers.notify()
            while not reader.counters.fetch_failures:
                assert await reader.poll(timeout_ms=20) == []
            servers.open_fetches.set()
            assert offsets(await read(reader, 3)) == [9, 10, 11]

    run(work)


# Errors that do not pass


def test_an_error_that_lasts_is_raised_and_trying_goes_on() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers, policy=BRIEF) as reader:
            await read(reader, 9)
            servers.stop(0)
            for _ in range(2):
                with pytest.raises(TransportError):
                    while True:
                        assert await reader.poll(timeout_ms=50) == []
            await servers.start(0)
            servers.logs[0].append(batch(9))
            assert offsets(await read(reader, 3)) == [9, 10, 11]

    run(work)


def test_a_final_error_is_raised_at_once_with_the_partition() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].errors = [TopicAuthorizationFailedError]
        async with consumer(servers) as reader:
            with pytest.raises(TopicAuthorizationFailedError, match="t-0"):
                while True:
                    assert offsets(await reader.poll()) == []
            assert offsets(await read(reader, 18)) == list(range(9))

    run(work, partitions=2)


def test_a_topic_that_is_deleted_is_told_of() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers, policy=BRIEF) as reader:
            await read(reader, 9)
            servers.exists = False
            servers.notify()
            with pytest.raises(UnknownTopicOrPartitionError):
                while True:
                    assert await reader.poll(timeout_ms=50) == []

    run(work)


def test_nobody_answers_at_the_start() -> None:
    async def work(servers: LogNodes) -> None:
        servers.stop(0)
        with pytest.raises(ConnectFailedError):
            async with consumer(servers, policy=BRIEF):
                pass
        await servers.start(0)

    run(work)


def test_a_partition_without_leader_is_waited_for() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].leader = -1
        with pytest.raises(LeaderNotAvailableError):
            async with consumer(servers, policy=BRIEF):
                pass
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, setattr, servers.logs[0], "leader", 0)
        async with consumer(servers) as reader:
            assert offsets(await read(reader, 9)) == list(range(9))

    run(work)


# Damage


def test_a_batch_damaged_on_the_way_is_fetched_again() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].damaged_reads = 2
        async with consumer(servers, max_partition_bytes=1) as reader:
            assert offsets(await read(reader, 9)) == list(range(9))
            assert reader.counters.corrupt_batches == 2

    run(work)


def test_a_batch_damaged_on_the_disk_is_told_of_and_can_be_passed_over() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        first, after, data = log.batches[1]
        log.batches[1] = (first, after, data[:-1] + b"?")
        async with consumer(servers) as reader:
            assert offsets(await read(reader, 3)) == [0, 1, 2]
            for _ in range(2):
                with pytest.raises(CorruptMessageError, match=r"t-0.*at 3 fails its CRC"):
                    while True:
                        assert await reader.poll() == []
            assert reader.position(FIRST) == 3
            await reader.seek(FIRST, 6)
            assert offsets(await read(reader, 3)) == [6, 7, 8]

    run(work)


def test_a_record_that_makes_no_sense_is_told_of_after_what_others_have() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        made = bytearray(encode([Record(b"k", b"v", (), 0)] * 3, base_offset=9))
        made = bytearray(_resealed(made[:61] + b"\x7f" + made[62:]))
        log.append(bytes(made))
        async with consumer(servers) as reader:
            assert len(await read(reader, 9, max_records=3)) == 9
            while True:
                try:
                    assert await reader.poll(max_records=3) == []
                except CorruptMessageError as error:
                    assert "t-0: batch at offset 9" in str(error)
                    break
            assert reader.position(FIRST) == 9

    run(work)


def _resealed(data: bytes) -> bytes:
    """Return a batch with the CRC that its bytes have now."""
    crc = crc32c(data[CRC_START:]).to_bytes(4, "big")
    return data[:CRC_POSITION] + crc + data[CRC_POSITION + 4 :]


# Gaps


class Case:
    """A reader that has read to 9, and something that happens to the log then."""

    def __init__(self, reason: GapReason, offset: int, resume_offset: int, expected: list[int]):
        self.gap = gap(reason, offset, resume_offset)
        self.expected = expected

    def happen(self, servers: LogNodes) -> None:
        """Do it."""
        log = servers.logs[0]
        if self.gap.reason is GapReason.RETENTION:
            log.append(batch(9))
            log.append(batch(12))
            log.trim(12)
        elif self.gap.reason is GapReason.TRUNCATED:
            log.cut(6)
            log.leader_epoch += 1
        elif self.gap.reason is GapReason.MISSING:
            log.append(batch(12))
        else:
            servers.recreate()
            log.append(batch(0))
        servers.notify()


CASES = [
    Case(GapReason.RETENTION, 9, 12, [12, 13, 14]),
    Case(GapReason.TRUNCATED, 9, 6, []),
    Case(GapReason.MISSING, 9, 12, [12, 13, 14]),
    Case(GapReason.RECREATED, 9, 0, [0, 1, 2]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.gap.reason.value)
def test_a_gap_is_told_to_who_asked_and_reading_goes_on(case: Case) -> None:
    async def work(servers: LogNodes) -> None:
        told: list[Gap] = []
        async with consumer(servers, on_gap=told.append) as reader:
            await read(reader, 9)
            case.happen(servers)
            records = []
            while not told or len(records) < len(case.expected):
                records += await reader.poll(timeout_ms=20)
            assert told == [case.gap]
            assert offsets(records) == case.expected
            assert reader.position(FIRST) == case.gap.resume_offset + len(records)
            assert reader.counters.gaps == 1
            servers.logs[0].append(batch(servers.logs[0].end))
            servers.notify()
            assert len(await read(reader, 3)) == 3

    run(work)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.gap.reason.value)
def test_a_gap_is_raised_until_the_reader_says_where_to_go_on(case: Case) -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 9)
            case.happen(servers)
            for _ in range(2):
                with pytest.raises(GapError, match="t-0") as raised:
                    while True:
                        assert await reader.poll(timeout_ms=20) == []
                assert raised.value.gap == case.gap
                assert reader.position(FIRST) == 9
            await reader.seek(FIRST, case.gap.resume_offset)
            assert offsets(await read(reader, len(case.expected))) == case.expected

    run(work)


def test_a_gap_does_not_keep_back_what_others_have() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 18)
            CASES[0].happen(servers)
            with pytest.raises(GapError):
                await reader.poll(timeout_ms=None)
            for end in range(9, 30, 3):
                servers.logs[1].append(batch(end))
                servers.notify()
                found = await read(reader, 3, timeout_ms=None)
                assert offsets(found, 1) == [end, end + 1, end + 2]
            assert reader.position(FIRST) == 9
            # A poll that finds nothing says why; the one partition that is left has nothing.
            with pytest.raises(GapError, match="t-0"):
                await reader.poll(timeout_ms=20)
            reader.pause(SECOND)
            with pytest.raises(GapError, match="t-0"):
                await reader.poll(timeout_ms=None)
            reader.resume(SECOND)
            reader.pause(FIRST)
            assert await reader.poll(timeout_ms=20) == []
            reader.resume(FIRST)
            await reader.seek(FIRST, CASES[0].gap.resume_offset)
            assert offsets(await read(reader, 3)) == CASES[0].expected

    run(work, partitions=2)


def test_the_next_gap_of_a_partition_is_news_again() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 18)
            for _ in range(2):
                servers.recreate()
                servers.logs[0].append(batch(0))
                told = {0, 1}
                while told:
                    with pytest.raises(GapError) as raised:
                        await reader.poll(timeout_ms=None)
                    told.remove(raised.value.gap.topic_partition.partition)
                    await reader.seek(raised.value.gap.topic_partition, 0)
                assert offsets(await read(reader, 3)) == [0, 1, 2]

    run(work, partitions=2)


def test_what_was_fetched_before_a_gap_is_given_before_it() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            assert offsets(await reader.poll(1)) == [0]
            CASES[0].happen(servers)
            assert offsets(await read(reader, 8)) == list(range(1, 9))
            with pytest.raises(GapError):
                await reader.poll(timeout_ms=None)

    run(work)


def test_an_explicit_start_before_the_log_is_a_gap() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].trim(6)
        async with consumer(servers, start=2) as reader:
            with pytest.raises(GapError) as raised:
                await reader.poll(timeout_ms=None)
            assert raised.value.gap == gap(GapReason.RETENTION, 2, 6)
            assert raised.value.gap.lost_count == 4
        async with consumer(servers, start=20) as reader:
            with pytest.raises(GapError) as raised:
                await reader.poll(timeout_ms=None)
            assert raised.value.gap == gap(GapReason.TRUNCATED, 20, 9)
            assert raised.value.gap.lost_count == 0

    run(work)


@pytest.mark.parametrize(("end", "is_told"), [(6, True), (9, False), (30, False)])
def test_another_history_is_found_by_the_epoch(end: int, is_told: bool) -> None:
    """What was read is in the log no more, though the log has gone beyond it again (KIP-320)."""

    async def work(servers: LogNodes) -> None:
        told: list[Gap] = []
        async with consumer(servers, on_gap=told.append) as reader:
            await read(reader, 9)
            log = servers.logs[0]
            log.diverging = (0, end)
            log.append(batch(9, leader_epoch=1))
            log.append(batch(12, leader_epoch=1))
            servers.notify()
            first = min(end, 9)
            assert offsets(await read(reader, 15 - first)) == list(range(first, 15))
            assert told == ([gap(GapReason.TRUNCATED, 9, end)] if is_told else [])

    run(work)


def test_holes_of_compacted_topics_are_nobodys_business() -> None:
    async def work(servers: LogNodes) -> None:
        servers.cleanup_policy = "compact,delete"
        servers.logs[0].append(batch(20))
        servers.logs[0].append(batch(30))
        async with consumer(servers) as reader:
            expected = [*range(9), 20, 21, 22, 30, 31, 32]
            assert offsets(await read(reader, 15)) == expected
            assert reader.counters.gaps == 0
            assert servers.seen.count(ApiKey.DESCRIBE_CONFIGS) == 1

    run(work)


def test_what_on_gap_raises_comes_out_of_poll() -> None:
    class StopError(Exception):
        pass

    def stop(_gap: Gap) -> None:
        raise StopError

    async def work(servers: LogNodes) -> None:
        servers.logs[0].trim(6)
        async with consumer(servers, start=0, on_gap=stop) as reader:
            for _ in range(2):
                with pytest.raises(StopError):
                    await reader.poll(timeout_ms=None)

    run(work)


def test_an_offset_that_is_refused_though_it_is_there_is_asked_for_again() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].errors = [OffsetOutOfRangeError] * 3
        async with consumer(servers) as reader:
            assert offsets(await read(reader, 9)) == list(range(9))
            assert reader.counters.gaps == 0
        servers.logs[0].errors = [OffsetOutOfRangeError] * 1000
        async with consumer(servers, policy=BRIEF) as reader:
            with pytest.raises(OffsetOutOfRangeError, match="goes from 0 to 9"):
                await reader.poll(timeout_ms=None)

    run(work)


def test_gaps_and_retries_leave_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].trim(6)
        async with consumer(servers, start=0, on_gap=lambda _gap: None) as reader:
            await read(reader, 3)

    with caplog.at_level(logging.INFO, "dlog.client"):
        run(work)
    lines = [line for line in caplog.messages if line.startswith("Met a gap")]
    assert lines == ["Met a gap partition=t-0 reason=retention offset=0 resume_offset=6"]


def test_a_bug_in_reading_ahead_comes_out_of_poll() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 9)

            async def fail() -> None:
                raise ZeroDivisionError("a bug")

            reader._reading.fetcher.spawn(fail(), "dlog-bug")
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await reader.poll(timeout_ms=None)

    run(work)


def test_close_ends_a_poll_that_waits() -> None:
    async def work(servers: LogNodes) -> None:
        reader: Consumer = consumer(servers, partitions=[SECOND])
        await reader.start()
        await read(reader, 9)
        waiting: asyncio.Task[Any] = asyncio.get_running_loop().create_task(
            reader.poll(timeout_ms=None)
        )
        await asyncio.sleep(0)
        await reader.close()
        with pytest.raises(DlogError, match="closed"):
            await waiting

    run(work, partitions=2)
