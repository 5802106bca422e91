"""What administrators ask and change, and which errors they are told."""

import asyncio
from collections.abc import Callable

import pytest

from dlog.client import blocking
from dlog.client.admin import Admin, Resource
from dlog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from dlog.types import ZERO_TOPIC_ID
from tests.behaviour.scene import Scene, Work, nothing_left, until_it_has
from tests.behaviour.servers import TestedServer
from tests.behaviour.shapes import numbers_of

Check = Callable[[Work], None]


async def config_of(admin: Admin, topic: str, name: str) -> tuple[str | None, bool]:
    """Return a config's value, and whether it was set on the topic."""
    entries = await admin.describe_configs(Resource.TOPIC, topic)
    (entry,) = [each for each in entries if each.name == name]
    return entry.value, entry.is_own


def test_the_life_of_a_topic(check: Check) -> None:
    async def work(scene: Scene) -> None:
        async with scene.admin() as admin:
            name = scene.topic
            checked = await admin.create_topic(name, partitions=3, validate_only=True)
            assert checked == ZERO_TOPIC_ID
            with pytest.raises(UnknownTopicOrPartitionError):
                await admin.describe_topic(name)

            topic_id = await admin.create_topic(
                name, partitions=3, configs={"retention.ms": "7200000"}
            )
            assert topic_id != ZERO_TOPIC_ID
            async with asyncio.timeout(20):
                view = await until_it_has(lambda: admin.describe_topic(name), 3)
            assert view.topic_id == topic_id
            assert view.replication_factor == 1
            assert name in (await admin.describe_topics()).topics
            with pytest.raises(TopicAlreadyExistsError):
                await admin.create_topic(name, partitions=3)

            await admin.create_partitions(name, 5, validate_only=True)
            assert len((await admin.describe_topic(name)).partitions) == 3
            await admin.create_partitions(name, 5)
            async with asyncio.timeout(20):
                await until_it_has(lambda: admin.describe_topic(name), 5)
            with pytest.raises(InvalidPartitionsError):
                await admin.create_partitions(name, 2)

            await admin.delete_topic(name)
            async with asyncio.timeout(20):
                while name in (await admin.describe_topics()).topics:
                    pass
            with pytest.raises(UnknownTopicOrPartitionError):
                await admin.delete_topic(name)
            with pytest.raises(UnknownTopicOrPartitionError):
                await admin.create_partitions(name, 9)

    check(work)


def test_configs_of_a_topic(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(configs={"retention.ms": "7200000"})
        async with scene.admin() as admin:
            name = scene.topic
            assert await config_of(admin, name, "retention.ms") == ("7200000", True)
            unset = await config_of(admin, name, "max.message.bytes")
            assert not unset[1]

            await admin.alter_configs(
                Resource.TOPIC,
                name,
                set_values={"max.message.bytes": "4321"},
                delete_names=["retention.ms"],
            )
            async with asyncio.timeout(20):  # a node of Kafka learns it a moment later
                while await config_of(admin, name, "max.message.bytes") != ("4321", True):
                    pass
            assert (await config_of(admin, name, "retention.ms"))[1] is False

            for wrong in ({"max.message.bytes": "many"}, {"no.such.config": "1"}):
                with pytest.raises(InvalidConfigError):
                    await admin.alter_configs(Resource.TOPIC, name, set_values=wrong)
                with pytest.raises(InvalidConfigError):
                    await admin.create_topic(f"{name}.wrong", partitions=1, configs=wrong)
            await admin.alter_configs(
                Resource.TOPIC, name, set_values={"max.message.bytes": "99"}, validate_only=True
            )
            assert await config_of(admin, name, "max.message.bytes") == ("4321", True)
            with pytest.raises(UnknownTopicOrPartitionError):
                await admin.describe_configs(Resource.TOPIC, "no-such-topic")

    check(work)


def test_what_cannot_be_created(check: Check) -> None:
    async def work(scene: Scene) -> None:
        async with scene.admin() as admin:
            for name in ("", ".", "with space", "x" * 250):
                with pytest.raises(InvalidTopicError):
                    await admin.create_topic(name, partitions=1)
            with pytest.raises(InvalidPartitionsError):
                await admin.create_topic(scene.topic, partitions=0)

    check(work)


def test_the_cluster_and_its_directories(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(partitions=2)
        async with scene.producer() as producer:
            await producer.write(scene.topic, b"x" * 10_000, partition=1)
        async with scene.admin() as admin:
            cluster = await admin.describe_cluster()
            assert cluster.cluster_id
            (node,) = cluster.nodes.values()
            assert cluster.controller_id == node.node_id
            assert node.address in scene.addresses
            (folder,) = await admin.describe_log_dirs(node.node_id)
            sizes = {
                number: size for name, number, size in folder.partitions if name == scene.topic
            }
            assert sizes[0] == 0
            assert sizes[1] >= 10_000
            entries = await admin.describe_configs(Resource.BROKER, str(node.node_id))
            assert len(entries) > 20

    check(work)


def test_the_blocking_twin_does_the_same(server: TestedServer, topic_name: str) -> None:
    with nothing_left():
        with blocking.Admin(server.bootstrap) as admin:
            admin.create_topic(topic_name, partitions=2)
            with pytest.raises(TopicAlreadyExistsError):
                admin.create_topic(topic_name, partitions=2)
            admin.alter_configs(Resource.TOPIC, topic_name, set_values={"segment.bytes": "1048576"})
            assert len(admin.describe_cluster().nodes) == 1
        with blocking.Producer(server.bootstrap) as producer:
            for number in range(10):
                producer.send(topic_name, b"%d" % number, partition=0)
        with blocking.Consumer(server.bootstrap, topic_name, max_wait_ms=50) as reader:
            found: list[int] = []
            while len(found) < 10:
                found += numbers_of(reader.poll(timeout_ms=None))
            assert found == list(range(10))
        with blocking.Admin(server.bootstrap) as admin:
            admin.create_partitions(topic_name, 3)
            admin.delete_topic(topic_name)
