"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: what is asked of a partition's log."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.errors import KafkaStorageError, OffsetNotAvailableError, UnknownTopicOrPartitionError
from dlog.types import PartitionId, TopicPartition
from dlog.wire.apis import ApiKey
from tests.fakes.server import FakeNode, FakePartition

T0 = TopicPartition("t", PartitionId(0))
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, TIERED, PENDING = range(-1, -7, -1)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def filled() -> tuple[FakeNode, FakePartition]:
    """A partition with records 10 to 19 below its high watermark and three above."""
    node = FakeNode()
    await node.create("t", 1)
    partition = node.partitions[T0]
    log = partition.log
    log.log_start_offset, log.log_end_offset = 10, 23
    log.records = [(1000 + offset, offset) for offset in range(10, 23)]
    log.epochs = [(2, 5), (4, 15)]
    partition.leader_epoch = 4
    partition.high_watermark = 20
    return node, partition


async def offset(node: FakeNode, timestamp: int, version: int = 11, **fields: Any) -> Any:
    epoch = fields.pop("epoch", -1)
    index = fields.pop("index", 0)
    asked = {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp}
    response = await node.ask(
        ApiKey.LIST_OFFSETS,
        version,
        **{
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": 0,
            "topics": [{"name": "t", "partitions": [asked]}],
            **fields,
        },
    )
    return response.topics[0].partitions[0]


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (LATEST, (-1, 20, 4)),
        (EARLIEST, (-1, 10, 2)),
        (EARLIEST_LOCAL, (-1, 10, 2)),
        (TIERED, (-1, -1, -1)),
        (PENDING, (-1, -1, -1)),
        (0, (1010, 10, 2)),
        (1015, (1015, 15, 4)),
        (1019, (1019, 19, 4)),
        (1020, (-1, -1, -1)),  # above the high watermark
        (5000, (-1, -1, -1)),
    ],
)
def test_offsets(timestamp: int, expected: tuple[int, int, int]) -> None:
    async def test() -> None:
        node, _ = await filled()
        for isolation_level in (0, 1):
            found = await offset(node, timestamp, isolation_level=isolation_level)
            assert found.error_code == 0
            assert (found.timestamp, found.offset, found.leader_epoch) == expected

    run(test())


def test_a_new_leader_does_not_say_that_there_is_nothing_so_late() -> None:
    """Its watermark may be behind what the last leader has shown (KIP-207)."""

    async def test() -> None:
        node, partition = await filled()
        leader: Any = SimpleNamespace(epoch_start_offset=23)
        partition.leader = leader
        assert (await offset(node, 1015)).offset == 15
        assert (await offset(node, 1020)).error_code == OffsetNotAvailableError.code
        assert (await offset(node, 5000)).error_code == 0
        leader.epoch_start_offset = 20
        assert (await offset(node, 1020)).error_code == 0

    run(test())


def test_the_offset_of_the_newest_record_by_time() -> None:
    async def test() -> None:
        node, partition = await filled()
        assert (await offset(node, MAX_TIMESTAMP)).offset == -1
        partition.log.records.append((9999, 12))
        found = await offset(node, MAX_TIMESTAMP)
        assert (found.timestamp, found.offset, found.leader_epoch) == (9999, 12, 2)
        partition.log.records.clear()
        assert (await offset(node, MAX_TIMESTAMP)).offset == -1

    run(test())


def test_whoever_is_no_consumer_sees_the_end() -> None:
    async def test() -> None:
        node, _ = await filled()
        assert (await offset(node, LATEST, replica_id=-2)).offset == 23
        assert (await offset(node, 1021, replica_id=-2)).offset == 21

    run(test())


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (TIERED, 8), (PENDING, 10), (-7, 11), (-(2**63), 11)],
)
def test_kinds_of_offsets_that_a_version_does_not_know(timestamp: int, version: int) -> None:
    async def test() -> None:
        node, _ = await filled()
        assert (await offset(node, timestamp, version)).error_code == 35

    run(test())


def test_refusals_of_a_partition() -> None:
    async def test() -> None:
        node, partition = await filled()
        assert (await offset(node, LATEST, index=1)).error_code == 3
        assert (await offset(node, LATEST, epoch=3)).error_code == 74
        assert (await offset(node, LATEST, epoch=5)).error_code == 75
        assert (await offset(node, LATEST, epoch=4)).error_code == 0
        partition.closed = OffsetNotAvailableError()
        assert (await offset(node, LATEST, 5)).error_code == 78
        assert (await offset(node, LATEST, 4)).error_code == 5
        partition.closed, partition.log.failed = None, KafkaStorageError()
        found = await offset(node, LATEST)
        assert (found.error_code, found.timestamp, found.offset) == (56, -1, -1)

    run(test())


@pytest.mark.parametrize(
    ("index", "timestamp", "expected"),
    [(0, LATEST, (0, (20,))), (0, EARLIEST, (0, (10,))), (0, 5000, (0, ())), (1, LATEST, (3, ()))],
)
def test_the_oldest_version_has_a_list(
    index: int, timestamp: int, expected: tuple[int, tuple[int, ...]]
) -> None:
    async def test() -> None:
        node, _ = await filled()
        asked = {"partition_index": index, "timestamp": timestamp, "max_num_offsets": 1}
        response = await node.ask(
            ApiKey.LIST_OFFSETS, 0, replica_id=-1, topics=[{"name": "t", "partitions": [asked]}]
        )
        (found,) = response.topics[0].partitions
        assert (found.error_code, found.old_style_offsets) == expected

    run(test())


def test_a_partition_asked_for_twice() -> None:
    async def test() -> None:
        node, _ = await filled()
        asked = {"partition_index": 0, "timestamp": LATEST}
        response = await node.ask(
            ApiKey.LIST_OFFSETS,
            1,
            replica_id=-1,
            topics=[{"name": "t", "partitions": [asked, asked]}],
        )
        assert [p.error_code for p in response.topics[0].partitions] == [42, 42]

    run(test())


async def end_of_epoch(node: FakeNode, index: int, current: int, asked: int) -> Any:
    """Ask where an epoch ends."""
    fields = {"partition": index, "current_leader_epoch": current, "leader_epoch": asked}
    topics = [{"topic": "t", "partitions": [fields]}]
    response = await node.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)
    (found,) = response.topics[0].partitions
    return found


@pytest.mark.parametrize(
    ("index", "current", "asked", "expected"),
    [
        (0, -1, 2, (0, 2, 15)),
        (0, 6, 3, (0, 2, 15)),
        (0, -1, 4, (0, 4, 23)),
        (0, -1, 6, (0, 6, 23)),  # nobody has written since this node leads
        (0, -1, 5, (0, 4, 23)),  # and nobody did in the epoch before
        (0, -1, 7, (0, -1, -1)),
        (0, 5, 2, (74, -1, -1)),
        (0, 7, 2, (75, -1, -1)),
        (1, -1, 2, (3, -1, -1)),
    ],
)
def test_the_end_of_an_epoch(
    index: int, current: int, asked: int, expected: tuple[int, int, int]
) -> None:
    async def test() -> None:
        node, partition = await filled()
        partition.leader_epoch = 6
        found = await end_of_epoch(node, index, current, asked)
        assert found.partition == index
        assert (found.error_code, found.leader_epoch, found.end_offset) == expected

    run(test())


@pytest.mark.parametrize(("asked", "expected"), [(0, (0, 23)), (2, (2, 23)), (3, (-1, -1))])
def test_the_end_of_an_epoch_in_a_log_without_records(
    asked: int, expected: tuple[int, int]
) -> None:
    async def test() -> None:
        node, partition = await filled()
        partition.leader_epoch, partition.log.epochs = 2, []
        found = await end_of_epoch(node, 0, -1, asked)
        assert (found.leader_epoch, found.end_offset) == expected

    run(test())


@pytest.mark.parametrize(
    ("index", "until", "expected"),
    [
        (0, 15, (0, 15)),
        (0, 20, (0, 20)),
        (0, -1, (0, 20)),
        (0, 3, (0, 10)),
        (0, 21, (1, -1)),
        (0, -2, (1, -1)),
        (7, 1, (3, -1)),
    ],
)
def test_records_are_deleted_up_to_the_high_watermark(
    index: int, until: int, expected: tuple[int, int]
) -> None:
    async def test() -> None:
        node, partition = await filled()
        asked = {"partition_index": index, "offset": until}
        response = await node.ask(
            ApiKey.DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": [asked]}], timeout=1000
        )
        (found,) = response.topics[0].partitions
        assert (found.error_code, found.low_watermark) == expected
        assert partition.log.log_start_offset == max(10, expected[1])

    run(test())


def test_a_partition_that_is_named_often_is_trimmed_and_waited_for_once() -> None:
    """Else each of those who wait for replicas would be looked at for each of the others."""

    async def test() -> None:
        node, partition = await filled()
        settled: list[int] = []
        partition.settle_trims = lambda: settled.append(len(partition.trims))  # type: ignore[method-assign]
        asked = [{"partition_index": 0, "offset": offset % 3} for offset in range(300)]
        topics = [{"name": "t", "partitions": asked}] * 2
        response = await node.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=10)
        assert settled == [1]
        answered = [each for topic in response.topics for each in topic.partitions]
        assert [each.error_code for each in answered] == [7] * 600  # nobody has trimmed in time

    run(test())


def test_who_lost_the_partition_while_its_log_was_read_does_not_answer() -> None:
    """A node that stood still meanwhile may lead no longer: whoever is asked for finds that out."""

    async def test() -> None:
        for api in (ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS):
            node, partition = await filled()
            log = partition.log

            def lose(*_: object, node: FakeNode = node) -> None:
                node.partitions.clear()

            async def search(*_: object, lose: Any = lose) -> None:
                lose()

            log.offset_for_timestamp = log.trim_to = search  # type: ignore[method-assign]
            if api == ApiKey.LIST_OFFSETS:
                found = await offset(node, 1015)
            else:
                asked = {"partition_index": 0, "offset": 15}
                topics = [{"name": "t", "partitions": [asked]}]
                answer = await node.ask(api, 2, topics=topics, timeout=1000)
                found = answer.topics[0].partitions[0]
            assert found.error_code == UnknownTopicOrPartitionError.code

    run(test())
