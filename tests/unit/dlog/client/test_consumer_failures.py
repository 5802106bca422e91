"""The consumer when things go wrong: leaders move, nodes vanish, bits flip, errors last."""

import asyncio
import dataclasses
from typing import Any

import pytest

from dlog.batch.records import Record, encode
from dlog.client.bad_batches import UndecodableBatchError
from dlog.client.consumer import Consumer
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
from tests.fakes.batches import batch, sealed
from tests.fakes.log_consumers import FIRST, SECOND, consumer, offsets, read, run
from tests.fakes.log_nodes import LogNodes

BRIEF = RetryPolicy(base_s=0.001, cap_s=0.01, deadline_s=2.0)


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
        made = bytearray(sealed(made[:61] + b"\x7f" + made[62:]))
        log.append(bytes(made))
        async with consumer(servers) as reader:
            assert len(await read(reader, 9, max_records=3)) == 9
            while True:
                try:
                    assert await reader.poll(max_records=3) == []
                except UndecodableBatchError as error:
                    assert isinstance(error.__cause__, CorruptMessageError)
                    assert "t-0: cannot decode the batch at offset 9" in str(error)
                    break
            assert reader.position(FIRST) == 9

    run(work)


# What a poll that waits ends with


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


def test_nonsense_said_of_a_new_partition_does_not_end_the_consumer() -> None:
    async def work(servers: LogNodes) -> None:
        policy = RetryPolicy(base_s=0.001, cap_s=0.01, deadline_s=5.0, metadata_age_s_max=0.05)
        hidden, tell = servers.logs.pop(), servers._list_offsets

        def say_nothing(request: Any, module: Any, node: int) -> Any:
            servers._list_offsets = tell  # type: ignore[method-assign]
            answer = tell(request, module, node)
            return dataclasses.replace(answer, topics=())

        async with consumer(servers, start="latest", policy=policy) as reader:
            servers._list_offsets = say_nothing  # type: ignore[method-assign]
            servers.logs.append(hidden)
            assert offsets(await read(reader, 9), 1) == list(range(9))
            assert reader.assignment == (FIRST, SECOND)

    run(work, partitions=2)
