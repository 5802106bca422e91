"""Requests about where partitions are: elections and reassignments."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import pytest

from dlog.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from dlog.wire.apis import ApiKey
from dlogd.metadata.commands.codec import AlterAssignments
from dlogd.metadata.state.image import Applied, Unknown
from dlogd.server.handlers import reassignments
from tests.fakes.cluster_requests import cluster, create, reassign, under_way
from tests.fakes.config_requests import configure
from tests.fakes.server import FakeNode, new_topic
from tests.fakes.turns import turns_beside

PREFERRED, UNCLEAN = 0, 1


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def elect(
    node: FakeNode, kind: int, asked: Mapping[str, Sequence[int]] | None, version: int = 2
) -> dict[tuple[str, int], int]:
    named = asked and [{"topic": name, "partitions": ids} for name, ids in asked.items()]
    response = await node.ask(
        ApiKey.ELECT_LEADERS, version, election_type=kind, topic_partitions=named, timeout=1000
    )
    return {
        (topic.topic, each.partition_id): int(each.error_code)
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


# Elections


def test_preferred_leaders_are_elected_where_that_is_needed() -> None:
    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(0, [2, 1]), (1, [1, 2]), (2, [2, 3])]))
        node.fence(2)
        assert await elect(node, PREFERRED, {"t": [0]}) == {
            ("t", 0): PreferredLeaderNotAvailableError.code
        }
        node.unfence(2)
        partitions = {"t": [0, 1, 9], "absent": [0]}
        assert await elect(node, PREFERRED, partitions) == {
            ("t", 0): PreferredLeaderNotAvailableError.code,  # it is not in sync yet
            ("t", 1): ElectionNotNeededError.code,
            ("t", 9): UnknownTopicOrPartitionError.code,
            ("absent", 0): UnknownTopicOrPartitionError.code,
        }
        assert await elect(node, 7, partitions, version=2) == dict.fromkeys(
            (("t", 0), ("t", 1), ("t", 9), ("absent", 0)), InvalidRequestError.code
        )

    run(test())


def test_a_preferred_leader_comes_back() -> None:
    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(0, [2, 1])]), new_topic("u", 1, 1))
        await configure(node, "2", "node.drain", "leaders")
        assert await elect(node, PREFERRED, {"t": [0]}) == {("t", 0): 0}
        assert node.image.topics["t"].partitions[0].leader == 1
        await configure(node, "2", "node.drain", "none")
        assert await elect(node, PREFERRED, None) == {("t", 0): 0}, "of all, only what changes"
        assert node.image.topics["t"].partitions[0].leader == 2
        assert await elect(node, PREFERRED, None) == {}

    run(test())


def test_an_unclean_leader_is_elected_only_where_there_is_none() -> None:
    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(0, [2, 3])]))
        assert await elect(node, UNCLEAN, {"t": [0]}) == {("t", 0): ElectionNotNeededError.code}
        node.fence(2)
        node.fence(3)
        code = EligibleLeadersNotAvailableError.code
        assert await elect(node, UNCLEAN, {"t": [0]}) == {("t", 0): code}
        assert await elect(node, UNCLEAN, None) == {("t", 0): code}
        node.unfence(2)  # was not in sync when the last one went
        assert not node.image.topics["t"].partitions[0].has_leader
        assert await elect(node, UNCLEAN, {"t": [0]}) == {("t", 0): 0}
        assert node.image.topics["t"].partitions[0].leader == 2

    run(test())


# Reassignments


def test_a_reassignment_begins_is_listed_and_is_cancelled() -> None:
    async def test() -> None:
        node, _ = cluster(4)
        await create(node, new_topic("t", assignments=[(0, [1, 2]), (1, [1, 2])]))
        node.fence(4)
        assert await reassign(node, "t", {0: [4, 1]}) == {0: 0}
        listed = await under_way(node)
        assert list(listed) == [("t", 0)]
        found = listed["t", 0]
        assert sorted(found.replicas) == [1, 2, 4]
        assert (found.adding_replicas, found.removing_replicas) == ((4,), (2,))
        asked = [
            {"name": "t", "partition_indexes": [1, 7]},
            {"name": "absent", "partition_indexes": [0]},
        ]
        assert await under_way(node, asked) == {}
        assert await reassign(node, "t", {0: None, 1: None}) == {
            0: 0,
            1: NoReassignmentInProgressError.code,
        }
        assert await under_way(node) == {}
        assert node.image.topics["t"].partitions[0].replicas == (1, 2)

    run(test())


@pytest.mark.parametrize(
    ("name", "number", "replicas", "code"),
    [
        ("absent", 0, [1], UnknownTopicOrPartitionError.code),
        ("t", 5, [1], UnknownTopicOrPartitionError.code),
        ("t", -1, [1], UnknownTopicOrPartitionError.code),
        ("t", 0, [], InvalidReplicaAssignmentError.code),
        ("t", 0, [1, 9], InvalidReplicaAssignmentError.code),
        ("t", 0, [1, 1], InvalidReplicaAssignmentError.code),
        ("t", 0, [-1], InvalidReplicaAssignmentError.code),
        ("absent", 0, None, UnknownTopicOrPartitionError.code),
        ("t", 0, None, NoReassignmentInProgressError.code),
    ],
)
def test_reassignments_that_cannot_be(
    name: str, number: int, replicas: list[int] | None, code: int
) -> None:
    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(0, [1, 2])]))
        assert await reassign(node, name, {number: replicas}) == {number: code}
        assert len(node.commands) == 1

    run(test())


def test_a_partition_that_is_named_twice_is_moved_by_neither() -> None:
    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(0, [1, 2]), (1, [1, 2])]))
        named = [(0, [1, 3]), (1, [2, 3]), (0, [2, 3])]
        partitions = [{"partition_index": n, "replicas": nodes} for n, nodes in named]
        response = await node.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            1,
            topics=[{"name": "t", "partitions": partitions}],
            timeout=1000,
        )
        (topic,) = response.responses
        found = [(each.partition_index, int(each.error_code)) for each in topic.partitions]
        code = InvalidRequestError.code
        assert found == [(0, code), (1, 0), (0, code)]
        assert list(await under_way(node)) == [("t", 1)]

    run(test())


def test_the_number_of_replicas_can_be_held() -> None:
    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(0, [1, 2])]))
        wanted: dict[int, Sequence[int] | None] = {0: [1, 2, 3]}
        held = await reassign(node, "t", wanted, allow_replication_factor_change=False)
        assert held == {0: InvalidReplicationFactorError.code}
        assert await reassign(node, "t", wanted) == {0: 0}

    run(test())


def test_many_reassignments_do_not_hold_up_what_else_there_is_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither this node, while they are tried out, nor all of them while they are applied."""
    monkeypatch.setattr(reassignments, "COMMAND_PARTITIONS_MAX", 100)

    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", 250, 2))
        node.commands.clear()
        moves = reassign(node, "t", {number: [3, 1] for number in range(250)})
        found, turns = await turns_beside(moves)
        assert set(found.values()) == {0}
        assert turns >= 250 // reassignments.BURST_COUNT
        commands = [each for each in node.commands if isinstance(each, AlterAssignments)]
        assert [len(each.reassignments) for each in commands] == [100, 100, 50]

    run(test())


def test_of_many_reassignments_only_those_are_unknown_whose_command_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reassignments, "COMMAND_PARTITIONS_MAX", 2)

    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(number, [1, 2]) for number in range(5)]))
        node.outcomes = [Applied(version=9), Unknown(message="Nobody knows")]
        found = await reassign(node, "t", {number: [3, 1] for number in range(5)})
        assert found == {0: 0, 1: 0, 2: 7, 3: 7, 4: 0}

    run(test())
