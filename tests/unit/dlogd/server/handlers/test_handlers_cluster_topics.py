"""Topics made in a cluster of several nodes: all or each, too many, in time, on which nodes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dlog.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    NotControllerError,
    PolicyViolationError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)
from dlog.types import NodeId
from dlog.wire.apis import ApiKey
from dlogd.metadata.commands.codec import CreateTopics
from dlogd.metadata.state.image import Refused, Unknown
from dlogd.server.handlers import topic_creation
from tests.fakes.cluster_requests import cluster, create
from tests.fakes.config_requests import configure
from tests.fakes.server import new_topic


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_many_topics_are_one_command() -> None:
    async def test() -> None:
        node, _ = cluster()
        results = await create(
            node, *(new_topic(f"t{n}", 4, 3) for n in range(100)), new_topic("bad name")
        )
        assert [code for each in results.values() if (code := each.error_code)] == [17]
        (command,) = node.commands
        assert isinstance(command, CreateTopics)
        assert len(command.topics) == len(node.image.topics) == 100
        leaders = [p.leader for t in node.image.topics.values() for p in t.partitions]
        counts = [leaders.count(NodeId(node_id)) for node_id in (1, 2, 3)]
        assert max(counts) - min(counts) <= 1

    run(test())


def test_topics_that_are_too_many_for_one_command_are_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_creation, "COMMAND_REPLICAS_MAX", 500)

    async def test() -> None:
        node, _ = cluster()
        await create(node, *(new_topic(f"t{n}", 100, 3) for n in range(3)))
        assert len(node.commands) == 3
        assert len(node.image.topics) == 3

    run(test())


def test_topics_that_collide_within_a_request() -> None:
    async def test() -> None:
        node, _ = cluster()
        results = await create(node, new_topic("a.b"), new_topic("a_b"), new_topic("ab"))
        assert [int(each.error_code) for each in results.values()] == [0, InvalidTopicError.code, 0]
        assert len(node.commands) == 1

    run(test())


def test_where_somebody_else_was_faster_the_others_are_created_all_the_same() -> None:
    async def test() -> None:
        node, _ = cluster()
        node.outcomes = [Refused(code=36, message="Topic 'b' already exists")]
        results = await create(node, new_topic("a"), new_topic("b"))
        assert [int(each.error_code) for each in results.values()] == [0, 0]
        assert len(node.commands) == 3

        node.outcomes = [Unknown(message="The deadline passed")]
        results = await create(node, new_topic("c"), new_topic("d"))
        assert {int(each.error_code) for each in results.values()} == {RequestTimedOutError.code}
        assert len(node.commands) == 4, "an unknown outcome is not tried again"

    run(test())


def test_a_lost_quorum_is_a_time_out_that_says_what_to_do() -> None:
    async def test() -> None:
        node, _ = cluster()
        node.outcomes = [Refused(code=NotControllerError.code, message="The quorum has no leader")]
        (result,) = (await create(node, new_topic("a"))).values()
        assert int(result.error_code) == RequestTimedOutError.code
        assert "nothing was changed; bring back controllers" in result.error_message

    run(test())


def test_an_answer_waits_only_a_moment_for_logs_to_be_open() -> None:
    async def test() -> None:
        node, _ = cluster()
        node.open_partitions = False
        (result,) = (await create(node, new_topic("a", 1, 3))).values()
        assert result.error_code == 0

    run(test())


def test_a_time_out_of_zero_changes_nothing() -> None:
    async def test() -> None:
        node, _ = cluster()
        (result,) = (await create(node, new_topic("a"), timeout=0)).values()
        assert int(result.error_code) == RequestTimedOutError.code
        assert not node.commands

    run(test())


def test_drained_and_fenced_nodes_get_replicas_only_when_there_are_too_few_others() -> None:
    async def test() -> None:
        node, _ = cluster(5)
        assert await configure(node, "2", "node.drain", "leaders") == (0, "")
        assert await configure(node, "5", "node.drain", "replicas") == (0, "")
        node.fence(4)
        await create(node, new_topic("a", 2, 2))
        assert {n for p in node.image.topics["a"].partitions for n in p.replicas} == {1, 3}
        # Who is drained of leaders helps out, then who is down: not in sync, and never first.
        await create(node, new_topic("b", 4, 3), new_topic("c", 4, 4))
        for name, isr in (("b", {1, 2, 3}), ("c", {1, 2, 3})):
            for each in node.image.topics[name].partitions:
                assert set(each.isr) == isr
                assert each.leader == each.replicas[0]
                assert each.leader in (1, 3)
        assert {p.replicas[3] for p in node.image.topics["c"].partitions} == {4}
        # Who is to be removed gets nothing.
        (result,) = (await create(node, new_topic("d", 1, 5))).values()
        assert int(result.error_code) == InvalidReplicationFactorError.code
        assert "(fenced: 4; drained of replicas: 5)" in result.error_message
        by_hand = new_topic("d", assignments=[(0, [4])])
        (result,) = (await create(node, by_hand)).values()
        assert int(result.error_code) == InvalidReplicaAssignmentError.code

    run(test())


def test_topics_can_be_created_while_a_node_restarts_but_not_while_all_are_down() -> None:
    async def test() -> None:
        node, _ = cluster()
        node.fence(3)
        (result,) = (await create(node, new_topic("a", 3, 3))).values()
        assert result.error_code == 0
        assert {len(each.isr) for each in node.image.topics["a"].partitions} == {2}
        await configure(node, "1", "node.drain", "leaders")
        await configure(node, "2", "node.drain", "leaders")
        (result,) = (await create(node, new_topic("b", 1, 3))).values()
        assert result.error_code == 0, "rather a drained leader than none"
        assert node.image.topics["b"].partitions[0].replicas[2] == 3
        node.fence(1, 2)
        (result,) = (await create(node, new_topic("c", 1, 1))).values()
        assert int(result.error_code) == InvalidReplicationFactorError.code
        assert "No node is active (fenced: 1, 2, 3)" in result.error_message

    run(test())


def test_one_request_does_not_ask_for_millions_of_partitions() -> None:
    async def test() -> None:
        node, _ = cluster()
        wanted = [
            {"name": f"t{number}", "num_partitions": count, "replication_factor": 3}
            for number, count in enumerate((6_000, 6_000, 4_000, 1))
        ]
        made = await create(node, *wanted, validate_only=True)
        full = PolicyViolationError.code
        assert [int(each.error_code) for each in made.values()] == [0, full, 0, full]
        await create(node, *({**each, "num_partitions": 1} for each in wanted))
        response = await node.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": f"t{n}", "count": 6_000, "assignments": None} for n in range(3)],
            timeout=1000,
            validate_only=True,
        )
        assert [int(each.error_code) for each in response.results] == [0, full, full]

    run(test())


def test_nobody_creates_the_topic_that_stands_for_the_metadata() -> None:
    async def test() -> None:
        node, _ = cluster()
        name = "__cluster_metadata"
        wanted = {"name": name, "num_partitions": 1, "replication_factor": 3}
        made = await create(node, wanted)
        assert int(made[name].error_code) == TopicAuthorizationFailedError.code

    run(test())
