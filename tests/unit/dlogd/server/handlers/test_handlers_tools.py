"""What Kafka's tools ask that has a short answer here: directories, resources, ACLs, moves."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from dlog.types import PartitionId, TopicPartition
from dlog.wire.apis import VERSIONS, ApiKey
from dlogd.server.context import LogDir
from tests.fakes.cluster_requests import cluster, reassign, under_way
from tests.fakes.server import FakeNode

NONE, UNKNOWN_TOPIC, REPLICA_NOT_AVAILABLE, UNSUPPORTED, STORAGE, NO_DIRECTORY = 0, 3, 9, 35, 56, 57
SECURITY_DISABLED = 54
BAD_ASSIGNMENT, NO_REASSIGNMENT = 39, 85
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def versions_of(api_key: ApiKey) -> range:
    low, high = VERSIONS[api_key]
    return range(low, high + 1)


async def node_with_directories() -> FakeNode:
    """Return a node with t-0 in /one, t-1 out of service, t-2 on another node."""
    node = FakeNode()
    node.register(2)
    topic = await node.create("t", 3)
    node.log_dirs = [
        LogDir(path="/one", online=True, partitions=[(TopicPartition("t", PartitionId(0)), 7)]),
        LogDir(path="/two/", online=True),
        LogDir(path="/broken", online=False),
    ]
    node.context.offline = lambda: frozenset({(topic.topic_id, 1)})
    return node


@pytest.mark.parametrize("version", versions_of(ApiKey.ALTER_REPLICA_LOG_DIRS))
@pytest.mark.parametrize(
    ("path", "name", "number", "code"),
    [
        ("/one", "t", 0, NONE),
        ("/one/", "t", 0, NONE),
        ("/two", "t", 0, UNSUPPORTED),
        ("/broken", "t", 0, STORAGE),
        ("/three", "t", 0, NO_DIRECTORY),
        ("/three", "absent", 0, NO_DIRECTORY),
        ("one", "t", 0, NO_DIRECTORY),
        ("", "t", 0, NO_DIRECTORY),
        ("/one", "t", 1, STORAGE),
        ("/one", "t", 2, REPLICA_NOT_AVAILABLE),
        ("/one", "t", 9, UNKNOWN_TOPIC),
        ("/one", "t", -1, UNKNOWN_TOPIC),
        ("/one", "absent", 0, UNKNOWN_TOPIC),
    ],
)
def test_a_replica_stays_in_its_directory(
    version: int, path: str, name: str, number: int, code: int
) -> None:
    async def test() -> None:
        node = await node_with_directories()
        dirs = [{"path": path, "topics": [{"name": name, "partitions": [number]}]}]
        response = await node.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
        (topic,) = response.results
        (partition,) = topic.partitions
        assert (topic.topic_name, partition.partition_index) == (name, number)
        assert int(partition.error_code) == code

    run(test())


def test_each_replica_is_answered_once_and_a_refused_move_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def test() -> None:
        node = await node_with_directories()
        asked = [{"name": "t", "partitions": [0, 9]}, {"name": "absent", "partitions": [0]}]
        dirs = [{"path": "/one", "topics": asked}, {"path": "/two", "topics": asked[:1]}]
        response = await node.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=dirs)
        found = {
            (topic.topic_name, each.partition_index): int(each.error_code)
            for topic in response.results
            for each in topic.partitions
        }
        assert found == {("t", 0): UNSUPPORTED, ("t", 9): UNKNOWN_TOPIC, ("absent", 0): 3}
        (line,) = [each.getMessage() for each in caplog.records]
        assert "reassign it to another node partition=t-0 count=1" in line

    run(test())


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((), {(TOPIC, "a"), (TOPIC, "b"), (BROKER, "1"), (BROKER, "2")}),
        ((TOPIC,), {(TOPIC, "a"), (TOPIC, "b")}),
        ((BROKER, BROKER), {(BROKER, "1"), (BROKER, "2")}),
        ((LOGGER, METRICS, GROUP), set()),
    ],
)
def test_resources_with_configs_are_listed(
    types: tuple[int, ...], expected: set[tuple[int, str]]
) -> None:
    async def test() -> None:
        node = FakeNode()
        node.register(2)
        await node.create("a")
        await node.create("b")
        response = await node.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)
        assert response.error_code == NONE
        found = [(each.resource_type, each.resource_name) for each in response.config_resources]
        assert set(found) == expected
        assert len(found) == len(expected)
        # The former ListClientMetricsResources, of which there are none.
        response = await node.ask(ApiKey.LIST_CONFIG_RESOURCES, 0)
        assert (response.error_code, response.config_resources) == (NONE, ())

    run(test())


def test_a_resource_of_an_unknown_type_is_refused() -> None:
    async def test() -> None:
        response = await FakeNode().ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=(2, 99))
        assert (response.error_code, response.config_resources) == (UNSUPPORTED, ())

    run(test())


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_ACLS))
def test_there_are_no_acls_and_no_authorizer(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        asked = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}
        described = await node.ask(ApiKey.DESCRIBE_ACLS, version, **asked)
        assert (described.error_code, described.resources) == (SECURITY_DISABLED, ())
        assert "authorizer" in described.error_message
        deleted = await node.ask(ApiKey.DELETE_ACLS, version, filters=[asked, asked])
        assert [int(each.error_code) for each in deleted.filter_results] == [SECURITY_DISABLED] * 2
        acl = {"resource_type": 2, "resource_name": "t", "principal": "User:x", "host": "*"}
        acl |= {"operation": 3, "permission_type": 3}
        created = await node.ask(ApiKey.CREATE_ACLS, version, creations=[acl] * 3)
        assert [int(each.error_code) for each in created.results] == [SECURITY_DISABLED] * 3

    run(test())


def test_a_node_alone_has_every_replica_where_it_should_be() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t", 2)
        before = node.image
        assert await reassign(node, "t", {0: [1], 1: [1]}) == {0: NONE, 1: NONE}
        assert await reassign(node, "t", {0: None}) == {0: NO_REASSIGNMENT}
        for wanted in ([7], [1, 7], [1, 1], []):
            assert await reassign(node, "t", {0: wanted}) == {0: BAD_ASSIGNMENT}
        assert await reassign(node, "t", {5: [1]}) == {5: UNKNOWN_TOPIC}
        assert await reassign(node, "absent", {0: [1]}) == {0: UNKNOWN_TOPIC}
        assert await under_way(node) == {}
        assert node.image is before

    run(test())


def test_the_nodes_of_a_cluster_decide_together() -> None:
    """Another node may have begun a move that this one has not heard of."""

    async def test() -> None:
        node, _ = cluster()
        await node.create("t")
        count = len(node.commands)
        replicas = node.image.topics["t"].partitions[0].replicas
        assert await reassign(node, "t", {0: replicas}) == {0: NONE}
        assert len(node.commands) == count + 1

    run(test())
