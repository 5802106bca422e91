"""What is under way behind an idempotent batch that was refused for a moment does not overtake it.

A leader that does not know the producer takes any sequence: it would append the second batch, and
the first one, sent again, would be out of order. librdkafka takes that for "was written before".
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dlog.batch.records import Record, encode
from dlog.errors import (
    CorruptMessageError,
    KafkaStorageError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    UnknownTopicOrPartitionError,
)
from dlogd.replication.partition.producer_state import BATCHES_REMEMBERED
from tests.fakes.front import Client, Front, produce_frame, run_on

TOO_FEW = NotEnoughReplicasError.code
NO_ROOM = KafkaStorageError.code
OUT_OF_ORDER = OutOfOrderSequenceNumberError.code


def check(scenario: Callable[[], Awaitable[None]]) -> None:
    run_on(asyncio.new_event_loop, scenario())


def batch(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> bytearray:
    records = [Record(value=b"x", timestamp_ms=1000)]
    numbers = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return bytearray(encode(records, **numbers))


async def send(client: Client, data: bytearray, topics: tuple[str, ...] = ("t",)) -> list[int]:
    """Ask once for each topic; return error codes."""
    await client.send(*(produce_frame(topic, data) for topic in topics))
    return [(await client.produced())[0][1][0][1] for _ in topics]


async def codes(client: Client, *sequences: int) -> list[int]:
    """Send batches one after the other; return error codes."""
    return [code for each in sequences for code in await send(client, batch(each))]


def too_few(front: Front, topic: str = "t", *, wanted: int) -> None:
    leader = front.partition(topic).leader
    assert leader is not None
    leader.min_isr = wanted


async def refused_once(front: Front) -> Client:
    """Connect, and have batch 0 refused, as too few are in sync; then there are enough."""
    client = await front.connect()
    too_few(front, wanted=2)
    assert await codes(client, 0) == [TOO_FEW]
    too_few(front, wanted=1)
    return client


def test_a_new_producers_second_batch_does_not_overtake_its_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await refused_once(front)
            assert await codes(client, 1, 2) == [TOO_FEW, TOO_FEW]
            assert front.partition("t").log.log_end_offset == 0
            assert await codes(client, 0, 1, 2) == [0, 0, 0]

    check(scenario)


def test_a_topic_that_is_known_between_two_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            missing = UnknownTopicOrPartitionError.code
            partition = front.replicas.by_name.pop(("t", 0))
            assert await codes(client, 0) == [missing]
            front.replicas.by_name["t", 0] = partition
            assert await codes(client, 1, 0, 1) == [missing, 0, 0]

    check(scenario)


def test_what_comes_behind_a_batch_without_room_is_refused_like_it(tmp_path: Path) -> None:
    """Not as out of order: librdkafka then begins a new epoch, and sends again what other
    partitions have already. Also when there is room again before the second is looked at.
    """

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            log = front.partition("t").log
            assert await codes(client, 0) == [0]
            log.hold("space", KafkaStorageError("the disk is full"))
            assert await codes(client, 1, 2) == [NO_ROOM, NO_ROOM]
            assert await codes(client, 0) == [0], "what it has is not refused"
            log.resume("space")
            assert await codes(client, 3, 4) == [NO_ROOM, NO_ROOM]
            assert await codes(client, 1, 2, 3, 4) == [0, 0, 0, 0]

    check(scenario)


def test_nobody_is_refused_for_ever(tmp_path: Path) -> None:
    """The first may have been given up, and a client may have more under way than it should."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await refused_once(front)
            behind = BATCHES_REMEMBERED - 1
            assert await codes(client, *range(1, behind + 1)) == [TOO_FEW] * behind
            assert await codes(client, behind + 1) == [0]

    check(scenario)


def test_what_came_by_another_way_holds_nothing_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client, other = await front.connect(), await front.connect()
            too_few(front, wanted=2)
            assert await codes(client, 0) == [TOO_FEW]
            too_few(front, wanted=1)
            assert await codes(other, 0) == [0]
            assert await codes(client, 1, 2) == [0, 0]
            assert await codes(client, 4) == [OUT_OF_ORDER]

    check(scenario)


def test_others_and_a_new_epoch_are_not_concerned(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["t", "u"]) as front:
            client = await front.connect()
            too_few(front, wanted=2)
            assert await codes(client, 5) == [TOO_FEW]
            too_few(front, wanted=1)
            assert await send(client, batch(6), ("u",)) == [0]
            assert await send(client, batch(6, producer_id=8)) == [0]
            assert await send(client, batch(0, epoch=1)) == [0]

    check(scenario)


def test_what_is_refused_for_itself_holds_nothing_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            broken = batch(0)
            broken[-1] ^= 1
            assert await send(client, broken) == [CorruptMessageError.code]
            assert await codes(client, 1) == [0]

    check(scenario)
