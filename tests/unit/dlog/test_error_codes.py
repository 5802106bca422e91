"""Error codes that a client gets by real requests; more of them stand with their handlers.

`tests/tidy/test_documents.py` holds that every documented code is tested by name somewhere, and
`tests/unit/dlog/test_errors.py` that name, number and retry flag are those of Kafka's own table.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.batch.records import Record, encode
from dlog.checksum import Buffer
from dlog.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    LeaderNotAvailableError,
    ReplicaNotAvailableError,
    TransactionalIdAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownServerError,
    WireError,
)
from dlog.types import NodeId
from dlog.wire import fetch_client
from dlog.wire.apis import ApiKey
from dlogd.metadata.state.image import Refused, Unknown
from dlogd.replication.partition.partition import Partition
from tests.fakes.front import FETCH_VERSION, SETTINGS, Front, fetch_request, produce_frame, run_on
from tests.fakes.logs import batch_of
from tests.fakes.server import FakeNode, new_topic

Answer = Callable[[], Awaitable[int]]
LEADER_EPOCH = 3  # of the partitions of a Front


def run(scenario: Awaitable[None]) -> None:
    run_on(asyncio.new_event_loop, scenario)


# -- answers of the dispatcher


async def no_coordinator() -> int:
    response = await FakeNode().ask(
        ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["group"]
    )
    return int(response.coordinators[0].error_code)


async def no_transactions() -> int:
    response = await FakeNode().ask(
        ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["transaction"]
    )
    return int(response.coordinators[0].error_code)


async def init_producer_id(node: FakeNode, transactional_id: str | None = None) -> int:
    response = await node.ask(
        ApiKey.INIT_PRODUCER_ID,
        4,
        transactional_id=transactional_id,
        transaction_timeout=1000,
        producer_id=-1,
        producer_epoch=-1,
    )
    return int(response.error_code)


async def no_producer_ids_yet() -> int:
    node = FakeNode()
    node.outcomes = [Unknown(message="slow"), Refused(code=77, message="stale")]
    assert await init_producer_id(node) == CoordinatorLoadInProgressError.code
    return await init_producer_id(node)


async def metadata_of_a_replica_that_is_away(leader: int) -> int:
    node = FakeNode()
    node.register(2)
    topic = new_topic("t", assignments=[(0, [leader, 3 - leader])])
    await node.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=1000)
    nodes = dict(node.image.nodes)
    nodes[NodeId(2)] = replace(nodes[NodeId(2)], fenced=True)
    node.image = replace(node.image, nodes=nodes)
    response = await node.ask(ApiKey.METADATA, 0, topics=[{"name": "t"}])
    return int(response.topics[0].partitions[0].error_code)


async def a_fault_of_ours() -> int:
    node = FakeNode()

    def fault(topic: str, index: int) -> Partition:
        raise ZeroDivisionError

    node.context.partition = fault
    partition = {"partition_index": 0, "timestamp": -1}
    response = await node.ask(
        ApiKey.LIST_OFFSETS,
        3,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": "t", "partitions": [partition]}],
    )
    return int(response.topics[0].partitions[0].error_code)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (no_coordinator, CoordinatorNotAvailableError),
        (no_transactions, TransactionalIdAuthorizationFailedError),
        (
            lambda: init_producer_id(FakeNode(), "t"),
            TransactionalIdAuthorizationFailedError,
        ),
        (no_producer_ids_yet, CoordinatorLoadInProgressError),
        (lambda: metadata_of_a_replica_that_is_away(1), ReplicaNotAvailableError),
        (lambda: metadata_of_a_replica_that_is_away(2), LeaderNotAvailableError),
        (a_fault_of_ours, UnknownServerError),
    ],
)
def test_of_the_dispatcher(answer: Answer, expected: type[WireError]) -> None:
    async def scenario() -> None:
        assert await answer() == expected.code

    run(scenario())


# -- answers of Produce and Fetch, on real sockets and logs


def batch(*, timestamp_ms: int = 1_000, transactional: bool = False) -> bytearray:
    record = Record(key=None, value=b"v", headers=(), timestamp_ms=timestamp_ms, offset=0)
    if transactional:
        return encode(
            [record], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        )
    return encode([record])


@pytest.mark.parametrize(
    ("data", "acks", "expected"),
    [
        (batch(), 2, InvalidRequiredAcksError),
        (batch(timestamp_ms=0), -1, InvalidTimestampError),
        (batch(transactional=True), -1, TransactionalIdAuthorizationFailedError),
        (bytes(batch_of(b"1") + batch_of(b"2")), -1, InvalidRecordError),
    ],
)
def test_of_produce(tmp_path: Path, data: Buffer, acks: int, expected: type[WireError]) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["t"]) as front:
            now_ms = front.clock.timestamp_ms()
            bound_ms = now_ms - 500  # younger than 1970 and half a second
            front.partition("t").settings = replace(SETTINGS, timestamp_before_ms_max=bound_ms)
            client = await front.connect()
            await client.send(produce_frame("t", data, acks=acks))
            ((_, (part,)),) = await client.produced()
            assert part[1] == expected.code
            assert front.partition("t").log.log_end_offset == 0

    run(scenario())


@pytest.mark.parametrize(
    ("leader_epoch", "expected"),
    [
        (LEADER_EPOCH - 1, FencedLeaderEpochError),
        (LEADER_EPOCH + 1, UnknownLeaderEpochError),
    ],
)
def test_of_fetch(tmp_path: Path, leader_epoch: int, expected: type[WireError]) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["t"]) as front:
            client = await front.connect()
            request = fetch_request([("t", [(0, leader_epoch, 0, -1, -1, 1 << 20)])])
            await client.send(fetch_client.encode_request(FETCH_VERSION, 1, "test", request))
            assert (await client.fetched())["t"] == (expected.code, b"")

    run(scenario())
