"""CreateTopics, DeleteTopics, CreatePartitions: what is made, what is refused, with which code."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from dlog.types import ZERO_TOPIC_ID
from dlog.wire.apis import ApiKey
from dlogd.config.schema import build
from dlogd.metadata.state.image import Refused, Unknown
from dlogd.server.handlers import topic_creation
from tests.fakes.server import FakeNode, new_topic
from tests.fakes.turns import turns_beside

TIMED_OUT = 7


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def create(node: FakeNode, *topics: dict[str, Any], version: int = 7, **fields: Any) -> Any:
    response = await node.ask(ApiKey.CREATE_TOPICS, version, topics=topics, timeout=1000, **fields)
    return response.topics


async def refusal(node: FakeNode, topic: dict[str, Any]) -> tuple[int, str]:
    before = node.image.topics
    (result,) = await create(node, topic)
    assert result.error_code != 0
    assert (result.num_partitions, result.replication_factor) == (-1, -1)
    assert node.image.topics is before
    (rehearsed,) = await create(node, topic, validate_only=True)
    assert rehearsed == result
    return int(result.error_code), result.error_message


def three() -> FakeNode:
    node = FakeNode(build({"topic.partitions.default": 4, "topic.replication.default": 2}))
    node.register(2)
    node.register(3)
    return node


def test_created_topics_are_described_in_the_answer() -> None:
    async def test() -> None:
        node = three()
        (result,) = await create(node, new_topic("t", 5, 3, configs={"retention.ms": " 1000 "}))
        topic = node.image.topics["t"]
        assert result.error_code == 0
        assert result.error_message is None
        assert result.topic_id == topic.topic_id
        assert (result.num_partitions, result.replication_factor) == (5, 3)
        assert topic.configs == {"retention.ms": "1000"}
        configs = {config.name: config for config in result.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
        assert configs["cleanup.policy"].config_source == 5
        assert list(configs) == sorted(configs)

    run(test())


@pytest.mark.parametrize("version", [5, 7])
def test_topics_created_together_show_their_own_configs(version: int) -> None:
    async def test() -> None:
        topics = [
            new_topic("a", configs={"retention.ms": "1"}),
            new_topic("bad name"),
            new_topic("b", configs={"retention.ms": "2"}),
            new_topic("c", configs={"retention.ms": "1"}),
        ]
        results = await create(three(), *topics, version=version)
        found = [{c.name: c.value for c in r.configs}.get("retention.ms") for r in results]
        assert found == ["1", None, "2", "1"]

    run(test())


def test_defaults_come_from_the_node() -> None:
    async def test() -> None:
        node = three()
        (result,) = await create(node, new_topic("t"))
        assert (result.num_partitions, result.replication_factor) == (4, 2)

    run(test())


def test_validate_only_creates_nothing() -> None:
    async def test() -> None:
        node = three()
        (result,) = await create(node, new_topic("t"), validate_only=True)
        assert (result.error_code, result.num_partitions) == (0, 4)
        assert result.topic_id in (None, ZERO_TOPIC_ID)
        assert node.commands == []
        assert node.image.topics == {}

    run(test())


def test_clients_may_place_replicas() -> None:
    async def test() -> None:
        node = three()
        placed = new_topic("t", assignments=[(1, [3, 1]), (0, [2, 3])])
        (result,) = await create(node, placed)
        assert (result.num_partitions, result.replication_factor) == (2, 2)
        replicas = [p.replicas for p in node.image.topics["t"].partitions]
        assert replicas == [(2, 3), (3, 1)]

    run(test())


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (new_topic(""), 17, "Topic name is invalid"),
        (new_topic(".."), 17, "Topic name is invalid"),
        (new_topic("a b"), 17, "Topic name is invalid"),
        (new_topic("x" * 250), 17, "Topic name is invalid"),
        (new_topic("there"), 36, "Topic 'there' already exists."),
        (new_topic("a_b"), 17, "collides with existing topic: a.b"),
        (new_topic("t", 0), 37, "Number of partitions"),
        (new_topic("t", -2), 37, "Number of partitions"),
        (new_topic("t", 100_001), 44, "at most 100000 partitions"),
        (new_topic("t", 1, 0), 38, "Replication factor must be larger than 0"),
        (new_topic("t", 1, -3), 38, "Replication factor must be larger than 0"),
        (new_topic("t", 1, 4), 38, "Unable to replicate the partition 4 time(s)"),
        (new_topic("t", configs={"no.such.key": "1"}), 40, "Unknown topic config name"),
        (new_topic("t", configs={"retention.ms": "soon"}), 40, "Invalid value soon"),
        (new_topic("t", configs={"a": None, "b": None}), 40, "Null value not supported"),
        (new_topic("t", configs={"cleanup.policy": "compact"}), 40, "not available"),
        (new_topic("t", 1, assignments=[(0, [1])]), 42, "numPartitions was not set to -1"),
        (new_topic("t", -1, 1, assignments=[(0, [1])]), 42, "factor was not set to -1"),
        (new_topic("t", assignments=[(0, [])]), 39, "an empty replica list"),
        (new_topic("t", assignments=[(0, [9])]), 39, "no such broker is registered"),
        (new_topic("t", assignments=[(0, [1, 1])]), 39, "more than once"),
        (new_topic("t", assignments=[(0, [1]), (1, [1, 2])]), 39, "not consistent"),
        (new_topic("t", assignments=[(0, [1]), (0, [2])]), 39, "multiple manual"),
        (new_topic("t", assignments=[(0, [1]), (2, [2])]), 39, "consecutive 0-based"),
    ],
    ids=str,
)
def test_refusals(topic: dict[str, Any], code: int, message: str) -> None:
    async def test() -> None:
        node = three()
        await node.create("there")
        await node.create("a.b")
        found, text = await refusal(node, topic)
        assert found == code
        assert message in text

    run(test())


def test_each_topic_stands_for_itself_and_duplicates_for_none() -> None:
    async def test() -> None:
        node = three()
        topics = [new_topic("a"), new_topic("bad name"), new_topic("b"), new_topic("a")]
        results = await create(node, *topics)
        assert [(r.name, r.error_code) for r in results] == [("a", 42), ("bad name", 17), ("b", 0)]
        assert results[0].error_message == "Duplicate topic name."
        assert list(node.image.topics) == ["b"]

    run(test())


def test_what_the_metadata_says_is_passed_on() -> None:
    async def test() -> None:
        node = three()
        node.outcomes = [Refused(code=44, message="no"), Unknown(message="the disk is slow")]
        results = await create(node, new_topic("a"), new_topic("b"))
        assert [r.error_code for r in results] == [44, TIMED_OUT]
        assert results[0].error_message == "no"
        assert results[1].error_message.startswith("the disk is slow: the outcome is unknown")

    run(test())


def test_partitions_that_do_not_open_in_time_are_told() -> None:
    async def test() -> None:
        node = three()
        node.open_partitions = False
        results = await create(node, new_topic("a"), new_topic("bad name"))
        assert [r.error_code for r in results] == [TIMED_OUT, 17]
        node.open_partitions = True
        await create(node, new_topic("c", 1))
        node.open_partitions = False
        assert await grow(node, "c", 2) == TIMED_OUT

    run(test())


@pytest.mark.parametrize("version", range(2, 8))
def test_each_version_creates(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        (result,) = await create(node, new_topic("t", 2, 1), version=version)
        assert result.error_code == 0
        assert len(node.image.topics["t"].partitions) == 2

    run(test())


class TestDelete:
    """DeleteTopics."""

    async def delete(self, node: FakeNode, *topics: dict[str, Any]) -> list[tuple[Any, ...]]:
        response = await node.ask(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=100)
        return [(r.name, r.topic_id, int(r.error_code)) for r in response.responses]

    @pytest.mark.parametrize("version", range(1, 6))
    def test_by_name(self, version: int) -> None:
        async def test() -> None:
            node = FakeNode()
            await node.create("a")
            await node.create("b")
            names = ["a", "absent"]
            response = await node.ask(ApiKey.DELETE_TOPICS, version, topic_names=names, timeout=100)
            assert [(r.name, r.error_code) for r in response.responses] == [
                ("a", 0),
                ("absent", 3),
            ]
            assert list(node.image.topics) == ["b"]

        run(test())

    def test_by_name_and_by_id(self) -> None:
        async def test() -> None:
            node = FakeNode()
            a, b = await node.create("a"), await node.create("b")
            results = await self.delete(
                node,
                {"name": "a"},
                {"name": None, "topic_id": b.topic_id},
                {"name": None, "topic_id": UUID(int=77)},
                {"name": None},
                {"name": "x", "topic_id": UUID(int=78)},
            )
            assert results == [
                ("a", a.topic_id, 0),
                ("b", b.topic_id, 0),
                (None, UUID(int=77), 100),
                (None, None, 42),
                ("x", UUID(int=78), 42),
            ]
            assert node.image.topics == {}

        run(test())

    def test_what_is_named_twice_stays(self) -> None:
        async def test() -> None:
            node = FakeNode()
            a, b = await node.create("a"), await node.create("b")
            results = await self.delete(
                node,
                {"name": "a"},
                {"name": "a"},
                {"name": None, "topic_id": b.topic_id},
                {"name": "b"},
            )
            assert [code for _, _, code in results] == [42, 42, 42]
            results = await self.delete(
                node, *[{"name": None, "topic_id": a.topic_id} for _ in range(3)]
            )
            assert results == [(None, a.topic_id, 42)]
            assert list(node.image.topics) == ["a", "b"]

        run(test())

    def test_a_topic_created_again_is_another_one(self) -> None:
        async def test() -> None:
            node = FakeNode()
            first = await node.create("a")
            await self.delete(node, {"name": "a"})
            second = await node.create("a")
            assert first.topic_id != second.topic_id
            results = await self.delete(node, {"name": None, "topic_id": first.topic_id})
            assert results == [(None, first.topic_id, 100)]
            assert node.image.topics["a"] is second

        run(test())


async def grow(node: FakeNode, name: str, count: int, **fields: Any) -> int:
    topic = {"name": name, "count": count, "assignments": None, **fields}
    response = await node.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[topic], timeout=100)
    return int(response.results[0].error_code)


class TestCreatePartitions:
    """CreatePartitions."""

    def test_topics_grow(self) -> None:
        async def test() -> None:
            node = three()
            await node.create("t", 2)
            assert await grow(node, "t", 5) == 0
            assert await grow(node, "t", 6, assignments=[{"broker_ids": [3, 2]}]) == 0
            partitions = node.image.topics["t"].partitions
            assert len(partitions) == 6
            assert partitions[5].replicas == (3, 2)

        run(test())

    @pytest.mark.parametrize(
        ("name", "count", "assignments", "code"),
        [
            ("absent", 3, None, 3),
            ("t", 2, None, 37),
            ("t", 1, None, 37),
            ("t", -1, None, 37),
            ("t", 200_000, None, 44),
            ("t", 4, [{"broker_ids": [1, 2]}], 39),
            ("t", 3, [{"broker_ids": [1]}], 39),
            ("t", 3, [{"broker_ids": [1, 9]}], 39),
        ],
    )
    def test_refusals(self, name: str, count: int, assignments: Any, code: int) -> None:
        async def test() -> None:
            node = three()
            await node.create("t", 2)
            assert await grow(node, name, count, assignments=assignments) == code
            assert len(node.image.topics["t"].partitions) == 2

        run(test())

    def test_validate_only_and_duplicates(self) -> None:
        async def test() -> None:
            node = three()
            await node.create("t", 2)
            fields = {"name": "t", "count": 3, "assignments": None}
            response = await node.ask(
                ApiKey.CREATE_PARTITIONS, 3, topics=[fields], timeout=100, validate_only=True
            )
            assert response.results[0].error_code == 0
            response = await node.ask(
                ApiKey.CREATE_PARTITIONS, 3, topics=[fields, fields], timeout=100
            )
            assert [(r.name, r.error_code) for r in response.results] == [("t", 42)]
            assert len(node.image.topics["t"].partitions) == 2

        run(test())


@pytest.mark.parametrize("validate_only", [True, False])
def test_many_topics_do_not_hold_up_what_else_there_is_to_do(validate_only: bool) -> None:
    async def test() -> None:
        topics = [new_topic(f"t{number}") for number in range(300)]
        _, turns = await turns_beside(create(FakeNode(), *topics, validate_only=validate_only))
        assert turns >= 300 // topic_creation.BURST_COUNT

    run(test())
