"""A producer whose batches are refused again and again: it ends them, and does not ask for ever."""

import asyncio

import pyarrow as pa
import pytest

from dlog.client.futures import DeliveryError, RefusedError
from dlog.client.producer import Producer
from dlog.client.retry import RetryPolicy
from dlog.errors import NotLeaderOrFollowerError, RecordTooLargeError, WireError
from dlog.wire import produce
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from tests.fakes.harmed_cluster import POLICY, World, check


def refuse_with(world: World, error: type[WireError]) -> None:
    """Let every node refuse every batch of partition 0."""

    def answer(header: RequestHeader, _frame: memoryview) -> bytes:
        row = (0, error.code, -1, -1, -1, None)
        return produce.encode_response(header.api_version, header.correlation_id, [("t", [row])])

    for peer in world.nodes.peers.values():
        peer.raw[ApiKey.PRODUCE] = answer
        peer.versions[ApiKey.PRODUCE] = (3, 9)


def test_a_batch_that_can_be_neither_written_nor_split_is_refused() -> None:
    """The name of its header is no text, which only the log takes as it is."""
    header = [{"key": b"\xff", "value": b"v"}]
    headers = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    records = pa.record_batch(
        [pa.array([b"a", b"b"], pa.binary()), pa.array([header, header], headers)],
        names=["value", "headers"],
    )

    async def work(world: World) -> None:
        refuse_with(world, RecordTooLargeError)
        async with Producer(
            [world.proxies[1].address], acks="leader", idempotent=False, policy=POLICY
        ) as producer:
            sent = await producer.send_many("t", records, partition=0)
            with pytest.raises(RefusedError, match="cannot be split"):
                await asyncio.wait_for(sent, 10)
            await asyncio.wait_for(producer.flush(), 10)

    check(work)


def test_a_partition_without_gaps_takes_nothing_behind_what_was_refused() -> None:
    async def work(world: World) -> None:
        refuse_with(world, RecordTooLargeError)
        async with Producer(
            [world.proxies[1].address], acks="leader", idempotent=False, gapless=True, policy=POLICY
        ) as producer:
            sent = [await producer.send("t", value, partition=0) for value in (b"a", b"b")]
            for each in sent:
                with pytest.raises(RefusedError):
                    await asyncio.wait_for(each, 10)
            before = world.seen(ApiKey.PRODUCE)
            later = await producer.send_many("t", [b"c", b"d"], partition=0)
            with pytest.raises(RefusedError, match="records sent before it were not written"):
                await asyncio.wait_for(later, 10)
            await asyncio.wait_for(producer.flush(), 10)
            assert world.seen(ApiKey.PRODUCE) == before

    check(work)


def test_nodes_that_lag_are_asked_with_pauses() -> None:
    """Their answers settle nothing: the leader stays in doubt."""
    policy = RetryPolicy(base_s=0.05, cap_s=0.1, deadline_s=30.0, lookup_timeout_s=10.0)

    async def work(world: World) -> None:
        world.nodes.leader_epoch = 9
        refuse_with(world, NotLeaderOrFollowerError)
        async with Producer(
            [world.proxies[1].address],
            acks="leader",
            idempotent=False,
            policy=policy,
            delivery_timeout_ms=500,
        ) as producer:
            await producer.send_many("t", [])  # knows the topic now
            world.nodes.leader_epoch = 8
            before = world.seen(ApiKey.METADATA)
            with pytest.raises(DeliveryError):
                await producer.write("t", b"v", partition=0)
            assert 1 <= world.seen(ApiKey.METADATA) - before < 30

    check(work)
