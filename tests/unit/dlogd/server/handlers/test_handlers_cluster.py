"""Requests about the nodes of a cluster: described, drained, throttled, forgotten."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import BrokerIdNotRegisteredError, InvalidConfigError, InvalidRequestError
from dlog.types import NodeId
from dlog.wire.apis import ApiKey
from dlogd.metadata.commands.codec import ClaimController
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.state.config_values import INT64_MAX
from dlogd.metadata.state.effective_configs import ThrottledRates, throttled_rates
from dlogd.metadata.state.image import Drain, Refused
from tests.fakes.cluster_requests import cluster, create
from tests.fakes.config_requests import BROKER, configure
from tests.fakes.server import FakeNode, new_topic, replica_state


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


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
        unknown = await configure(node, "2", "default.replication.factor", None, operation=1)
        assert unknown[0] == InvalidConfigError.code and "Unknown node config name" in unknown[1]
        for kept in ("node.drain", "flush.policy"):
            mixed = await configure(node, "2", key, None, operation=1, and_=[(kept, None)])
            assert mixed[0] == InvalidRequestError.code
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
        key = "replica.alter.log.dirs.io.max.bytes.per.second"
        all_three = [(follower, None), (key, None)]
        await configure(node, "1", follower, "8")
        assert await configure(node, "1", leader, None, operation=1, and_=all_three) == (0, "")
        assert throttled_rates(node.image.configs, NodeId(1)) == rates(9, INT64_MAX)
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
        node.fence(3)
        code, message = await configure(node, "", "controller.node", "3", validate_only=True)
        assert (code, message) == (
            *(wrong, "Node 3 is fenced or shuts down: as the controller it could not act"),
        )
        quorum.state = replace(quorum.state, voters=(*quorum.state.voters, replica_state(9)))
        code, message = await configure(node, "", "controller.node", "9")
        assert (code, "Node 9 has not registered" in message) == (wrong, True)
        assert len(quorum.changes) == 2, "neither was asked for"
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
