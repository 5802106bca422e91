"""The client's administration against fake nodes: topics, configs, directories."""

from typing import Any
from uuid import UUID

import pytest

from dlog.client.admin import Admin, Resource
from dlog.client.cluster.cluster import Cluster
from dlog.client.retry import RetryPolicy
from dlog.errors import InvalidConfigError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from dlog.types import PartitionId, TopicPartition
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from tests.fakes.peer import TOPIC_ID, PeerCluster, error, no_error, zero_time
from tests.fakes.peer_client import check


def test_topics_are_created_deleted_and_grown() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)
        controller = nodes.peers[1]

        def create(request: Any, module: Any, _header: RequestHeader) -> Any:
            topic = request.topics[0]
            assert (topic.num_partitions, topic.replication_factor) == (3, -1)
            assert [(each.name, each.value) for each in topic.configs] == [("a.b", "c")]
            code = 36 if topic.name == "t" else 0
            result = module.CreatableTopicResult(
                name=topic.name,
                topic_id=TOPIC_ID,  # Kafka makes one up when it only validates
                error_code=error(code),
                error_message="it exists" if code else None,
                configs=None,
            )
            return module.CreateTopicsResponse(throttle_time=zero_time(), topics=(result,))

        controller.answers[ApiKey.CREATE_TOPICS] = create
        arguments: dict[str, Any] = {"partitions": 3, "configs": {"a.b": "c"}}
        assert await admin.create_topic("new", **arguments) == TOPIC_ID
        assert await admin.create_topic("new", validate_only=True, **arguments) == UUID(int=0)
        with pytest.raises(TopicAlreadyExistsError, match="it exists"):
            await admin.create_topic("t", **arguments)

        def delete(request: Any, module: Any, _header: RequestHeader) -> Any:
            name = request.topics[0].name
            result = module.DeletableTopicResult(
                name=name, topic_id=None, error_code=error(0 if name == "t" else 3)
            )
            return module.DeleteTopicsResponse(throttle_time=zero_time(), responses=(result,))

        controller.answers[ApiKey.DELETE_TOPICS] = delete
        await admin.delete_topic("t")
        cluster.policy = RetryPolicy(base_s=0.001, cap_s=0.002, deadline_s=2.0)
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.delete_topic("missing")

        def grow(request: Any, module: Any, _header: RequestHeader) -> Any:
            assert request.topics[0].count == 9
            result = module.CreatePartitionsTopicResult(name="t", error_code=no_error())
            return module.CreatePartitionsResponse(throttle_time=zero_time(), results=(result,))

        controller.answers[ApiKey.CREATE_PARTITIONS] = grow
        await admin.create_partitions("t", 9)

    check(work)


def test_configs_are_described() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)

        def describe(request: Any, module: Any, _header: RequestHeader) -> Any:
            wanted = request.resources[0]
            entry = module.DescribeConfigsResourceResult(
                name="retention.ms",
                value="5",
                read_only=False,
                config_source=5,
                is_sensitive=False,
                synonyms=(),
                documentation="How long.",
            )
            code = 3 if wanted.resource_name == "missing" else 0
            result = module.DescribeConfigsResult(
                error_code=error(code),
                error_message=None,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
                configs=(entry,),
            )
            return module.DescribeConfigsResponse(throttle_time=zero_time(), results=(result,))

        for peer in nodes.peers.values():
            peer.answers[ApiKey.DESCRIBE_CONFIGS] = describe
        (entry,) = await admin.describe_configs(Resource.TOPIC, "t")
        assert (entry.name, entry.value, entry.is_default) == ("retention.ms", "5", True)
        await admin.describe_configs(Resource.BROKER, "1")
        assert nodes.peers[1].seen.count(ApiKey.DESCRIBE_CONFIGS) == 1
        # Told at once, not when the policy's deadline is over.
        asked = sum(peer.seen.count(ApiKey.DESCRIBE_CONFIGS) for peer in nodes.peers.values())
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.describe_configs(Resource.TOPIC, "missing")
        told = sum(peer.seen.count(ApiKey.DESCRIBE_CONFIGS) for peer in nodes.peers.values())
        assert told == asked + 1

    check(work)


@pytest.mark.parametrize(
    ("told", "error_code", "expected"),
    [
        ("leader", 0, "leader"),
        ("none", 0, "none"),
        (None, 0, "all"),
        ("x", 0, "all"),
        ("leader", 29, "all"),
        ("leader", 35, "all"),
    ],
)
def test_the_acknowledgement_that_a_cluster_wants(
    told: str | None, error_code: int, expected: str
) -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        asked = []

        def describe(request: Any, module: Any, _header: RequestHeader) -> Any:
            wanted = request.resources[0]
            asked.append((int(wanted.resource_type), wanted.resource_name))
            assert wanted.configuration_keys == ("ack.default",)
            entry = module.DescribeConfigsResourceResult(
                name="ack.default" if told is not None else "other",
                value=told,
                read_only=False,
                config_source=5,
                is_sensitive=False,
                synonyms=(),
                documentation=None,
            )
            result = module.DescribeConfigsResult(
                error_code=error(error_code),
                error_message=None,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
                configs=() if error_code else (entry,),
            )
            return module.DescribeConfigsResponse(throttle_time=zero_time(), results=(result,))

        for peer in nodes.peers.values():
            peer.answers[ApiKey.DESCRIBE_CONFIGS] = describe
        assert await cluster.ack_default() == expected
        assert await cluster.ack_default() == expected
        assert await cluster.ack_default("t") == expected
        assert asked == [(4, ""), (2, "t")]

    check(work)


def test_the_acknowledgement_where_configs_are_not_served() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        for peer in nodes.peers.values():
            del peer.versions[ApiKey.DESCRIBE_CONFIGS]
        assert await cluster.ack_default() == "all"

    check(work)


def test_configs_are_altered() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)

        def alter(request: Any, module: Any, _header: RequestHeader) -> Any:
            changes = request.resources[0].configs
            assert [(each.name, int(each.config_operation), each.value) for each in changes] == [
                ("a", 0, "1"),
                ("b", 1, None),
            ]
            result = module.AlterConfigsResourceResponse(
                error_code=error(40), error_message="no", resource_type=2, resource_name="t"
            )
            return module.IncrementalAlterConfigsResponse(
                throttle_time=zero_time(), responses=(result,)
            )

        nodes.peers[1].answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = alter
        with pytest.raises(InvalidConfigError, match="no"):
            await admin.alter_configs(
                Resource.TOPIC, "t", set_values={"a": "1"}, delete_names=["b"]
            )

    check(work)


def test_directories_are_described() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)

        asked: list[Any] = []

        def directories(request: Any, module: Any, _header: RequestHeader) -> Any:
            asked.append(request.topics)
            partition = module.DescribeLogDirsPartition(
                partition_index=0, partition_size=7, offset_lag=0, is_future_key=False
            )
            result = module.DescribeLogDirsResult(
                error_code=no_error(),
                log_dir="/d",
                topics=(module.DescribeLogDirsTopic(name="t", partitions=(partition,)),),
                total_bytes=10,
                usable_bytes=3,
            )
            return module.DescribeLogDirsResponse(
                throttle_time=zero_time(), error_code=no_error(), results=(result,)
            )

        nodes.peers[2].answers[ApiKey.DESCRIBE_LOG_DIRS] = directories
        (directory,) = await admin.describe_log_dirs(2)
        assert (directory.path, directory.partitions) == ("/d", (("t", 0, 7),))
        wanted = [TopicPartition("t", PartitionId(0)), TopicPartition("u", PartitionId(3))]
        await admin.describe_log_dirs(2, [*wanted, TopicPartition("t", PartitionId(2))])
        everything, some = asked
        assert everything is None
        assert [(each.topic, tuple(each.partitions)) for each in some] == [
            ("t", (0, 2)),
            ("u", (3,)),
        ]

    check(work)
