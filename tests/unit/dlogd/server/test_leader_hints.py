"""Refusals of Produce and Fetch name who leads instead (KIP-951)."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import FencedLeaderEpochError, NotLeaderOrFollowerError, RequestTimedOutError
from dlog.types import NO_NODE, LeaderEpoch, NodeId, PartitionEpoch
from dlog.wire import fetch_client, produce_client
from dlogd.metadata.state.image import (
    ClusterImage,
    NodeAddress,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)
from dlogd.server.leader_hints import LeaderHints
from tests.fakes.front import Client, Front, fetch_request, run_on, until
from tests.fakes.logs import batch_of

ME, OTHER, AWAY = NodeId(1), NodeId(2), NodeId(3)
NOT_LEADER, FENCED = NotLeaderOrFollowerError.code, FencedLeaderEpochError.code
TOPIC_ID = UUID("00112233-4455-4677-8899-aabbccddeeff")
ENDPOINT = (OTHER, "two.example", 9092, "cellar")


def node(node_id: NodeId, *, fenced: bool = False) -> NodeRegistration:
    return NodeRegistration(
        node_id=node_id,
        node_epoch=4,
        directory_ids=(),
        addresses=(NodeAddress(listener="", host="two.example", port=9092),),
        rack="cellar",
        version="1",
        fenced=fenced,
    )


def image(leader: NodeId, *names: str, topic_id: UUID = TOPIC_ID) -> ClusterImage:
    """Return an image in which `leader` leads partition 0 of each topic in epoch 5."""
    partition = PartitionImage(
        replicas=(ME, OTHER, AWAY),
        isr=(ME, OTHER),
        leader=leader,
        leader_epoch=LeaderEpoch(5),
        partition_epoch=PartitionEpoch(9),
    )
    topics = [TopicImage(name=name, topic_id=topic_id, partitions=(partition,)) for name in names]
    return ClusterImage(
        nodes={ME: node(ME), OTHER: node(OTHER), AWAY: node(AWAY, fenced=True)},
        topics={each.name: each for each in topics},
        topics_by_id={each.topic_id: each for each in topics},
    )


@pytest.mark.parametrize(
    ("code", "leader", "topic", "index", "expected"),
    [
        (NOT_LEADER, OTHER, "t", 0, (OTHER, 5)),
        (FENCED, OTHER, "t", 0, (OTHER, 5)),
        (NOT_LEADER, OTHER, TOPIC_ID, 0, (OTHER, 5)),
        (RequestTimedOutError.code, OTHER, "t", 0, None),
        (0, OTHER, "t", 0, None),
        (NOT_LEADER, OTHER, "t", 1, None),
        (NOT_LEADER, OTHER, "gone", 0, None),
        (NOT_LEADER, OTHER, UUID(int=7), 0, None),
        (NOT_LEADER, NO_NODE, "t", 0, None),
        (NOT_LEADER, ME, "t", 0, None),  # fenced, or not in charge yet: it is no news
        (FENCED, ME, "t", 0, (ME, 5)),  # led here anew
        (NOT_LEADER, AWAY, "t", 0, None),  # cannot be reached
    ],
)
def test_only_a_leader_that_is_news_is_told(
    code: int, leader: NodeId, topic: Any, index: int, expected: Any
) -> None:
    hints = LeaderHints(ME, lambda: image(leader, "t"))
    assert hints.after(code, topic, index) == expected
    told = [] if expected is None else [expected, expected]
    there = [] if expected is None else [(leader, *ENDPOINT[1:])]
    assert hints.endpoints(told) == there


async def produced(client: Client, version: int, topics: list[str]) -> Any:
    """Send one batch to partition 0 of each topic; return the parsed response."""
    data = [(topic, [(0, batch_of(b"v"))]) for topic in topics]
    await client.send(produce_client.encode_request(version, 1, "test", -1, 5000, data))
    return await response(client, version)


async def response(client: Client, version: int) -> Any:
    frame = await client.receive()
    return produce_client.parse_response(frame, 4 + (version >= 9), len(frame), version)


@pytest.mark.parametrize("version", [9, 10, 12])
def test_a_refused_batch_says_who_leads(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            front.image = image(OTHER, "a")
            client = await front.connect()
            front.partition("a").follow(LeaderEpoch(5), NotLeaderOrFollowerError("moved"))
            for topics in (["a"], ["a", "b"]):
                answer = await produced(client, version, topics)
                codes = [rows[0][1] for _, rows in answer.topics]
                assert codes == [NOT_LEADER, 0][: len(topics)]
                assert answer.leaders == ({("a", 0): (OTHER, 5)} if version >= 10 else {})
                assert answer.endpoints == ([ENDPOINT] if version >= 10 else [])

    run_on(asyncio.new_event_loop, scenario())


@pytest.mark.parametrize("topics", [["a"], ["a", "b"]])
def test_a_batch_that_waits_hears_who_leads_now(tmp_path: Path, topics: list[str]) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            partition = front.partition("a")
            front.image = image(ME, "a")
            await partition.log._flusher.freeze()
            client = await front.connect()
            data = [(topic, [(0, batch_of(b"v"))]) for topic in topics]
            await client.send(produce_client.encode_request(10, 1, "test", -1, 5000, data))
            await until(lambda: partition.log.log_end_offset == 1)
            front.image = image(OTHER, "a")
            partition.follow(LeaderEpoch(5), NotLeaderOrFollowerError("moved"))
            answer = await response(client, 10)
            assert answer.topics[0][1][0][1] == NOT_LEADER
            assert answer.leaders == {("a", 0): (OTHER, 5)}
            assert answer.endpoints == [ENDPOINT]
            partition.log._flusher.thaw()

    run_on(asyncio.new_event_loop, scenario())


@pytest.mark.parametrize("version", [15, 16, 17])
@pytest.mark.parametrize("waits", [False, True])
def test_a_refused_fetch_says_who_leads(tmp_path: Path, version: int, waits: bool) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a"]) as front:
            partition = front.partition("a")
            front.replicas.by_id[TOPIC_ID, 0] = partition
            topics: Any = [(TOPIC_ID, [(0, -1, 0, -1, -1, 1 << 20)])]
            request = fetch_request(topics, max_wait_ms=20_000)
            client = await front.connect()
            front.image = image(OTHER, "a")
            if not waits:
                partition.follow(LeaderEpoch(5), NotLeaderOrFollowerError("moved"))
            await client.send(fetch_client.encode_request(version, 1, "test", request))
            if waits:
                await until(lambda: front.fetch.parked)
                partition.follow(LeaderEpoch(5), NotLeaderOrFollowerError("moved"))
            frame = await client.receive()
            answer = fetch_client.parse_response(frame, 5, len(frame), version)
            ((_, ((row, _),)),) = answer.topics
            expected = ((OTHER, 5), [ENDPOINT]) if version >= 16 else (None, [])
            assert row.error_code == NOT_LEADER
            assert (row.current_leader, answer.endpoints) == expected

    run_on(asyncio.new_event_loop, scenario())
