"""Requests about a cluster of several nodes: elections, reassignments, voters, drained nodes."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import (
    BrokerIdNotRegisteredError,
    DuplicateVoterError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InconsistentClusterIdError,
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    NoReassignmentInProgressError,
    NotControllerError,
    NotLeaderOrFollowerError,
    PolicyViolationError,
    PreferredLeaderNotAvailableError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    VoterNotFoundError,
)
from dlog.types import NodeId
from dlog.wire.apis import ApiKey
from dlogd.metadata.commands import ClaimController, CreateTopics
from dlogd.metadata.config_values import INT64_MAX
from dlogd.metadata.effective import ThrottledRates, throttled_rates
from dlogd.metadata.image import Drain, Refused, Unknown
from dlogd.metadata.raft.membership import Operation
from dlogd.server.handlers import topic_creation
from tests.fakes.server import CLUSTER_ID, FakeNode, FakeQuorum, new_topic

TOPIC, BROKER = 2, 4
PREFERRED, UNCLEAN = 0, 1
METADATA = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def cluster(nodes: int = 3, leader_id: int | None = 1) -> tuple[FakeNode, FakeQuorum]:
    quorum = FakeQuorum(leader_id)
    node = FakeNode(quorum=quorum)
    for node_id in range(2, nodes + 1):
        node.register(node_id)
    return node, quorum


async def create(node: FakeNode, *topics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await node.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, **{"timeout": 1000, **fields})
    return {each.name: each for each in response.topics}


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


async def reassign(
    node: FakeNode, name: str, wanted: dict[int, Sequence[int] | None], **fields: Any
) -> dict[int, int]:
    partitions = [{"partition_index": n, "replicas": ids} for n, ids in wanted.items()]
    response = await node.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        topics=[{"name": name, "partitions": partitions}],
        timeout=1000,
        **fields,
    )
    assert response.error_code == 0
    (topic,) = response.responses
    return {each.partition_index: int(each.error_code) for each in topic.partitions}


async def under_way(node: FakeNode, topics: Any = None) -> dict[tuple[str, int], Any]:
    response = await node.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics, timeout=1000)
    return {
        (topic.name, each.partition_index): each
        for topic in response.topics
        for each in topic.partitions
    }


async def configure(
    node: FakeNode, name: str, key: str, value: str | None, operation: int = 0, **fields: Any
) -> tuple[int, str]:
    configs = [{"name": key, "config_operation": operation, "value": value}]
    configs += [{"name": k, "config_operation": 0, "value": v} for k, v in fields.pop("and_", ())]
    response = await node.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": BROKER, "resource_name": name, "configs": configs}],
        **fields,
    )
    (result,) = response.responses
    return int(result.error_code), result.error_message or ""


async def settings(node: FakeNode, name: str) -> dict[str, str]:
    response = await node.ask(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[
            {"resource_type": BROKER, "resource_name": name, "configuration_keys": None},
        ],
    )
    (result,) = response.results
    assert result.error_code == 0, result
    return {each.name: each.value for each in result.configs}


# Topics


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


def test_the_number_of_replicas_can_be_held() -> None:
    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(0, [1, 2])]))
        wanted: dict[int, Sequence[int] | None] = {0: [1, 2, 3]}
        held = await reassign(node, "t", wanted, allow_replication_factor_change=False)
        assert held == {0: InvalidReplicationFactorError.code}
        assert await reassign(node, "t", wanted) == {0: 0}

    run(test())


# What nodes are described as


def test_fenced_nodes_are_only_in_describe_cluster() -> None:
    async def test() -> None:
        node, _ = cluster()
        await create(node, new_topic("t", assignments=[(0, [2, 1])]))
        node.fence(2)
        response = await node.ask(ApiKey.METADATA, 12, topics=[{"name": "t"}])
        assert [each.node_id for each in response.brokers] == [1, 3]
        (partition,) = response.topics[0].partitions
        assert (partition.leader_id, partition.isr_nodes) == (1, (1,))
        assert partition.offline_replicas == (2,)
        assert partition.leader_epoch == 1
        for wanted, known in ((False, [1, 3]), (True, [1, 2, 3])):
            response = await node.ask(ApiKey.DESCRIBE_CLUSTER, 2, include_fenced_brokers=wanted)
            assert [each.broker_id for each in response.brokers] == known

    run(test())


def test_eligible_leaders_are_told() -> None:
    async def test() -> None:
        node, _ = cluster()
        topic = new_topic("t", assignments=[(0, [1, 2])], configs={"min.insync.replicas": "2"})
        await create(node, topic)
        node.fence(2)
        response = await node.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": "t"}],
            response_partition_limit=10,
        )
        (partition,) = response.topics[0].partitions
        assert partition.eligible_leader_replicas == (2,)

    run(test())


# The quorum


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


@pytest.mark.parametrize("text", ["9" * 5000, "\u00b2", "-1", "9" * 20])
def test_numbers_that_no_node_has(text: str) -> None:
    async def test() -> None:
        node, quorum = cluster()
        drained = (await configure(node, text, "node.drain", "leaders"))[0]
        assert drained == BrokerIdNotRegisteredError.code
        handed = (await configure(node, "", "controller.node", text))[0]
        assert handed == InvalidConfigError.code
        resource = {"resource_type": BROKER, "resource_name": text, "configuration_keys": None}
        response = await node.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])
        assert [int(each.error_code) for each in response.results] == [InvalidRequestError.code]
        assert not quorum.changes

    run(test())


def test_one_request_does_not_ask_for_millions_of_partitions() -> None:
    async def test() -> None:
        node, _ = cluster()
        wanted = [
            {"name": f"t{number}", "num_partitions": count, "replication_factor": 3}
            for number, count in enumerate((60_000, 60_000, 40_000, 1))
        ]
        made = await create(node, *wanted, validate_only=True)
        full = PolicyViolationError.code
        assert [int(each.error_code) for each in made.values()] == [0, full, 0, full]
        await create(node, *({**each, "num_partitions": 1} for each in wanted))
        response = await node.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": f"t{n}", "count": 60_000, "assignments": None} for n in range(3)],
            timeout=1000,
            validate_only=True,
        )
        assert [int(each.error_code) for each in response.results] == [0, full, full]

    run(test())


def test_nodes_are_forgotten_when_they_are_down_and_hold_nothing() -> None:
    async def test() -> None:
        node, _ = cluster(5)

        async def unregister(node_id: int) -> tuple[int, str]:
            response = await node.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=node_id)
            return int(response.error_code), response.error_message or ""

        await create(node, new_topic("t", assignments=[(0, [1, 5])]))
        assert (await unregister(9))[0] == BrokerIdNotRegisteredError.code
        code, message = await unregister(2)
        assert (code, "voter" in message) == (InvalidRequestError.code, True)
        code, message = await unregister(5)
        assert (code, "running" in message) == (InvalidRequestError.code, True)
        node.fence(5)
        code, message = await unregister(5)
        assert (code, "t-0" in message) == (InvalidRequestError.code, True)
        node.fence(4)
        assert await unregister(4) == (0, "")
        assert NodeId(4) not in node.image.nodes

    run(test())


# Settings of nodes


def test_a_node_is_drained_by_a_config_of_it() -> None:
    async def test() -> None:
        node, _ = cluster()
        assert (await settings(node, "2")) == {"node.drain": "none"}
        assert await configure(node, "2", "node.drain", "replicas", validate_only=True) == (0, "")
        assert not node.commands
        assert await configure(node, "2", "node.drain", " Replicas ") == (0, "")
        assert node.image.nodes[NodeId(2)].drain == Drain.REPLICAS
        assert (await settings(node, "2")) == {"node.drain": "replicas"}
        await configure(node, "1", "node.drain", "leaders")
        own = await settings(node, "1")
        assert own["node.drain"] == "leaders"
        assert len(own) > 20
        assert await configure(node, "2", "node.drain", None, operation=1) == (0, "")
        assert node.image.nodes[NodeId(2)].drain == Drain.NONE

        wrong = InvalidConfigError.code
        assert (await configure(node, "2", "node.drain", "all"))[0] == wrong
        assert (await configure(node, "2", "node.drain", None))[0] == wrong
        assert (await configure(node, "2", "node.drain", "leaders", operation=2))[0] == wrong
        absent = BrokerIdNotRegisteredError.code
        assert (await configure(node, "9", "node.drain", "leaders"))[0] == absent
        assert (await configure(node, "x", "node.drain", "leaders"))[0] == absent
        mixed = [("log.retention.ms", "1")]
        code, message = await configure(node, "2", "node.drain", "leaders", and_=mixed)
        assert (code, "of its own" in message) == (InvalidRequestError.code, True)

    run(test())


def test_what_a_node_cannot_have_may_be_taken_back() -> None:
    async def test() -> None:
        node, _ = cluster()
        # As kafka-reassign-partitions.sh --verify does, of other throttles than ours.
        key = "replica.alter.log.dirs.io.max.bytes.per.second"
        assert await configure(node, "2", key, None, operation=1) == (0, "")
        assert (await configure(node, "2", key, "1"))[0] == InvalidRequestError.code
        assert (await configure(node, "9", key, None, operation=1))[0] == InvalidRequestError.code
        own = await configure(node, "1", "flush.policy", None, operation=1)
        assert own[0] == InvalidRequestError.code
        assert not node.commands

    run(test())


def test_replication_is_throttled_for_one_node_or_for_all() -> None:
    async def test() -> None:
        node, _ = cluster()
        leader, follower = (f"{each}.replication.throttled.rate" for each in ("leader", "follower"))
        both = [(follower, "7")]
        assert await configure(node, "2", leader, "5000", and_=both) == (0, "")
        assert await configure(node, "", leader, "9") == (0, "")
        assert throttled_rates(node.image.configs, NodeId(2)) == rates(5000, 7)
        assert throttled_rates(node.image.configs, NodeId(1)) == rates(9, INT64_MAX)
        told = await settings(node, "2")
        assert (told[leader], told[follower]) == ("5000", "7")
        assert (await settings(node, "1"))[leader] == "9"
        assert (await settings(node, ""))[leader] == "9"

        assert await configure(node, "2", follower, None, operation=1) == (0, "")
        count = len(node.commands)
        assert await configure(node, "2", follower, None, operation=1) == (0, ""), "as --verify"
        assert len(node.commands) == count, "what is not set need not be taken back"
        assert throttled_rates(node.image.configs, NodeId(2)) == rates(5000, INT64_MAX)

        for bad in ("-1", "fast", None):
            code, _ = await configure(node, "2", leader, bad)
            assert code in (InvalidConfigError.code, InvalidRequestError.code)
        assert (await configure(node, "9", leader, "1"))[0] == InvalidRequestError.code
        mixed = [("log.retention.ms", "1")]
        assert (await configure(node, "2", leader, "1", and_=mixed))[0] != 0
        assert (await configure(node, "", f"{leader}@1", "1"))[0] == InvalidConfigError.code

    run(test())


def rates(leader: int, follower: int) -> ThrottledRates:
    """Return rates as a node has them."""
    return ThrottledRates(leader=leader, follower=follower)


def test_the_controller_hands_its_office_over() -> None:
    async def test() -> None:
        node, quorum = cluster()

        def claim(node_id: int) -> None:
            epoch = node.image.controller.epoch
            node.apply(
                ClaimController(
                    command_id=node.context.new_id(),
                    node_id=NodeId(node_id),
                    node_epoch=node.image.nodes[NodeId(node_id)].node_epoch,
                    controller_epoch=epoch,
                )
            )

        assert "controller.node" not in await settings(node, "")
        claim(1)
        assert (await settings(node, ""))["controller.node"] == "1"
        quorum.on_change = lambda: claim(2)
        assert await configure(node, "", "controller.node", "2", validate_only=True) == (0, "")
        assert not quorum.changes
        assert await configure(node, "", "controller.node", "2") == (0, "")
        assert quorum.changes == [(Operation.TRANSFER, 2, "", 0)]
        assert (await settings(node, ""))["controller.node"] == "2"
        quorum.state = replace(quorum.state, leader_id=2)
        assert await configure(node, "", "controller.node", "2") == (0, "")
        assert len(quorum.changes) == 1, "it is the controller already"

        wrong = InvalidConfigError.code
        assert (await configure(node, "", "controller.node", "4"))[0] == wrong
        assert (await configure(node, "", "controller.node", "x"))[0] == wrong
        assert (await configure(node, "", "controller.node", None, operation=1))[0] == wrong
        quorum.outcome = Refused(code=InvalidRequestError.code, message="no connected voter")
        code, message = await configure(node, "", "controller.node", "3")
        assert (code, message) == (wrong, "no connected voter")
        alone = await configure(FakeNode(), "", "controller.node", "1")
        assert alone[0] == InvalidRequestError.code

    run(test())


def test_the_feature_level_is_raised_when_all_nodes_know_it() -> None:
    async def test() -> None:
        assert await settings(FakeNode(), "") == {}
        node, _ = cluster(nodes=1)
        level = node.image.feature_level
        assert await settings(node, "") == {"feature.level": str(level)}
        wrong = InvalidConfigError.code
        for text in ("0", "x", "", "9999", "99999"):
            code, message = await configure(node, "", "feature.level", text)
            assert code == wrong, text
            assert "feature.level" in message
        assert (await configure(node, "", "feature.level", None, operation=1))[0] == wrong
        assert await configure(node, "", "feature.level", str(level)) == (0, "")

        own = replace(node.image.nodes[NodeId(1)], level_max=level + 1)
        node.image = node.image.having(nodes={NodeId(1): own})
        raised = str(level + 1)
        assert await configure(node, "", "feature.level", raised, validate_only=True) == (0, "")
        assert node.image.feature_level == level
        assert await configure(node, "", "feature.level", raised) == (0, "")
        assert await settings(node, "") == {"feature.level": raised}
        code, message = await configure(node, "", "feature.level", str(level))
        assert (code, node.image.feature_level) == (wrong, level + 1)
        assert "no way back" in message

    run(test())
