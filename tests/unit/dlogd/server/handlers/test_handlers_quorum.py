"""Requests about the voters of the metadata: described, added, removed."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

from dlog.errors import (
    DuplicateVoterError,
    InconsistentClusterIdError,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    VoterNotFoundError,
)
from dlog.wire.apis import ApiKey
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.state.image import Refused, Unknown
from tests.fakes.cluster_requests import cluster
from tests.fakes.server import CLUSTER_ID, FakeNode

METADATA = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def quorum_of(node: FakeNode, version: int = 2, topics: Any = METADATA) -> Any:
    response = await node.ask(ApiKey.DESCRIBE_QUORUM, version, topics=topics)
    return response.topics[0].partitions[0], response


def test_the_leader_describes_the_quorum() -> None:
    async def test() -> None:
        node, _ = cluster()
        found, response = await quorum_of(node)
        assert (found.error_code, found.leader_id, found.leader_epoch) == (0, 1, 4)
        assert found.high_watermark == 10
        assert [(v.replica_id, v.log_end_offset) for v in found.current_voters] == [
            (1, 10),
            (2, 8),
            (3, 10),
        ]
        assert [o.replica_id for o in found.observers] == [4]
        wall_ms = node.context.clock.timestamp_ms()
        assert found.current_voters[0].last_fetch_timestamp == wall_ms - 100
        assert found.current_voters[1].replica_directory_id == UUID(int=102)
        assert [each.listeners[0].host for each in response.nodes] == ["host1", "host2", "host3"]
        wrong = [{"topic_name": "t", "partitions": [{"partition_index": 0}]}]
        found, _ = await quorum_of(node, topics=wrong)
        assert int(found.error_code) == UnknownTopicOrPartitionError.code

    run(test())


def test_another_node_asks_the_leader() -> None:
    async def test() -> None:
        node, _ = cluster(leader_id=2)
        leader, _ = cluster(leader_id=1)
        asked: list[int] = []

        async def ask(node_id: int, request: Any) -> Any:
            asked.append(node_id)
            return await leader.dispatcher.handle(ApiKey.DESCRIBE_QUORUM, 2, request)

        node.context.ask_node = ask
        for version in (0, 1, 2):
            found, _ = await quorum_of(node, version)
            assert found.error_code == 0
            assert len(found.current_voters) == 3
        assert asked == [2, 2, 2]

        async def fail(node_id: int, request: Any) -> Any:
            raise RequestTimedOutError("no answer")

        node.context.ask_node = fail
        found, _ = await quorum_of(node)
        assert int(found.error_code) == NotLeaderOrFollowerError.code
        assert "no answer" in found.error_message
        assert found.leader_id == 2

    run(test())


def test_a_quorum_without_a_leader_and_a_node_alone() -> None:
    async def test() -> None:
        found, _ = await quorum_of(cluster(leader_id=None)[0])
        assert int(found.error_code) == NotLeaderOrFollowerError.code
        assert found.leader_id == -1
        found, _ = await quorum_of(FakeNode())
        assert (found.error_code, found.leader_id) == (0, 1)
        assert [each.replica_id for each in found.current_voters] == [1]

    run(test())


async def add(node: FakeNode, voter_id: int, **fields: Any) -> int:
    known = {
        "cluster_id": CLUSTER_ID,
        "timeout": 1000,
        "voter_directory_id": UUID(int=100 + voter_id),
        "listeners": [{"name": "CONTROLLER", "host": "h4", "port": 9093}],
    }
    response = await node.ask(ApiKey.ADD_RAFT_VOTER, 1, voter_id=voter_id, **(known | fields))
    return int(response.error_code)


async def remove(node: FakeNode, voter_id: int, directory: int = 0) -> int:
    response = await node.ask(
        ApiKey.REMOVE_RAFT_VOTER,
        0,
        cluster_id=None,
        voter_id=voter_id,
        voter_directory_id=UUID(int=directory),
    )
    return int(response.error_code)


def test_voters_are_added_and_removed() -> None:
    async def test() -> None:
        node, quorum = cluster()
        assert await add(node, 4) == 0
        assert await add(node, 4, voter_directory_id=UUID(int=0)) == 0
        assert await remove(node, 3) == 0
        assert await remove(node, 3, directory=103) == 0
        assert quorum.changes[0] == (Operation.ADD, 4, "h4", 9093)
        assert quorum.changes[-1] == (Operation.REMOVE, 3, "", 0)
        before = len(quorum.changes)
        assert await add(node, 2) == DuplicateVoterError.code
        state = quorum.state
        quorum.state = replace(state, observers=(*state.observers, state.voters[1]))
        known = {"cluster_id": CLUSTER_ID, "timeout": 1000, "voter_directory_id": UUID(int=0)}
        listeners = [{"name": "CONTROLLER", "host": "h2", "port": 9093}]
        response = await node.ask(
            ApiKey.ADD_RAFT_VOTER, 1, voter_id=2, listeners=listeners, **known
        )
        assert "remove it first, then add it" in response.error_message
        quorum.state = state
        assert await add(node, 4, cluster_id="another") == InconsistentClusterIdError.code
        assert await add(node, 4, voter_directory_id=UUID(int=9)) == VoterNotFoundError.code
        assert await add(node, 4, listeners=[]) == InvalidRequestError.code
        assert await remove(node, 4) == VoterNotFoundError.code
        assert await remove(node, 3, directory=9) == VoterNotFoundError.code
        assert len(quorum.changes) == before
        quorum.outcome = Refused(code=InvalidRequestError.code, message="would be lost")
        assert await remove(node, 3) == InvalidRequestError.code
        quorum.outcome = Unknown(message="The deadline passed")
        assert await remove(node, 3) == RequestTimedOutError.code
        assert await add(FakeNode(), 4, cluster_id=None) == InvalidRequestError.code

    run(test())
