"""Administration: topics, configs, the cluster, data directories.

What changes something and may have happened although the answer was lost is not repeated: the
error says so, and the caller looks. Everything else is retried by `dlog.client.cluster.cluster`.

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topic("payments", partitions=3, configs={"retention.ms": "86400000"})
        for name in (await admin.describe_topics()).topics:
            print(name)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from dlog.client.admin_cluster import ClusterAdmin
from dlog.client.admin_records import RecordsAdmin
from dlog.client.admin_views import DEFAULT, NewTopic, Resource
from dlog.client.cluster.admin_session import TIMEOUT_MS, only
from dlog.client.cluster.node import NodeClient, raise_for
from dlog.client.views import ClusterView, ConfigEntry, LogDirView, TopicView
from dlog.errors import NONE, ProtocolError, WireError, error_for
from dlog.types import ZERO_TOPIC_ID, TopicPartition
from dlog.wire.apis import ApiKey

__all__ = ["DEFAULT", "TIMEOUT_MS", "Admin", "NewTopic", "Resource", "describe_error"]

_SET, _DELETE = 0, 1


def _config_entry(each: Any) -> ConfigEntry:
    return ConfigEntry(
        name=str(each.name),
        value=each.value,
        source=int(each.config_source),
        read_only=bool(each.read_only),
        is_sensitive=bool(each.is_sensitive),
        config_type=int(each.config_type),
        doc=each.documentation,
    )


def _log_dir(result: Any) -> LogDirView:
    return LogDirView(
        path=str(result.log_dir),
        error_code=int(result.error_code),
        total_bytes=int(result.total_bytes),
        usable_bytes=int(result.usable_bytes),
        partitions=tuple(
            (str(topic.name), int(each.partition_index), int(each.partition_size))
            for topic in result.topics
            for each in topic.partitions
        ),
    )


def _creatable(module: Any, topic: NewTopic) -> Any:
    return module.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            module.CreatableReplicaAssignment(partition_index=number, broker_ids=tuple(nodes))
            for number, nodes in enumerate(topic.assignments or ())
        ),
        configs=tuple(
            module.CreatableTopicConfig(name=key, value=value)
            for key, value in topic.configs.items()
        ),
    )


class Admin(ClusterAdmin, RecordsAdmin):
    """Administrative calls on a cluster. Owner: one event loop. Life: an `async with` block.

    With a `Cluster`, which stays its owner's, it may be used at once and needs no end.
    """

    # Calls

    async def describe_cluster(self) -> ClusterView:
        """Return the nodes and the controller."""
        return await self._cluster.run(
            self._cluster.any_node, lambda _node: self._cluster.refresh()
        )

    async def describe_topics(self, names: Sequence[str] | None = None) -> ClusterView:
        """Return the cluster with these topics, or all; a topic's error stands in its view."""
        return await self._cluster.run(
            self._cluster.any_node, lambda _node: self._cluster.refresh(names)
        )

    async def describe_topic(self, name: str) -> TopicView:
        """Return one topic; raise its error."""
        view = await self.describe_topics([name])
        topic = view.topics.get(name)
        if topic is None:
            raise ProtocolError(f"the response lacks topic {name}")
        raise_for(topic.error_code, name)
        return topic

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = DEFAULT,
        replication_factor: int = DEFAULT,
        assignments: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> UUID:
        """Create a topic and return its id (zero when only validated); raise its error.

        With `assignments`, the nodes of each partition, preferred leader first, the numbers of
        partitions and replicas follow from them.
        """
        topic = NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignments=assignments,
            configs=configs or {},
        )
        results = await self.create_topics(
            [topic], validate_only=validate_only, timeout_ms=timeout_ms
        )
        result = only(results.values(), f"topic {name}")
        if isinstance(result, WireError):
            raise result
        return UUID(int=result.int)

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> dict[str, UUID | WireError]:
        """Create many topics at once; return of each its id (zero when only validated) or error."""

        patience = self._patience(timeout_ms)

        def build(module: Any) -> Any:
            return module.CreateTopicsRequest(
                topics=tuple(_creatable(module, topic) for topic in topics),
                timeout=patience(),
                validate_only=validate_only,
            )

        response = await self._command(ApiKey.CREATE_TOPICS, build, timeout_ms)
        found: dict[str, UUID | WireError] = {}
        for result in response.topics:
            if int(result.error_code) != NONE:
                found[result.name] = error_for(int(result.error_code), result.error_message or "")
            elif validate_only or not result.topic_id:  # Kafka makes one up
                found[result.name] = ZERO_TOPIC_ID
            else:
                found[result.name] = UUID(int=result.topic_id.int)
        return found

    async def delete_topic(self, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        """Delete a topic and its data; raise its error."""

        patience = self._patience(timeout_ms)

        def build(module: Any) -> Any:
            state = module.DeleteTopicState(name=name, topic_id=None)
            return module.DeleteTopicsRequest(topics=(state,), timeout=patience())

        response = await self._command(ApiKey.DELETE_TOPICS, build, timeout_ms)
        result = only(response.responses, f"topic {name}")
        raise_for(int(result.error_code), result.error_message)

    async def create_partitions(
        self,
        topic: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Raise the number of partitions of `topic` to `count`; raise its error.

        `assignments`: the nodes of each new partition, preferred leader first.
        """

        patience = self._patience(timeout_ms)

        def build(module: Any) -> Any:
            chosen = None
            if assignments is not None:
                chosen = tuple(
                    module.CreatePartitionsAssignment(broker_ids=tuple(nodes))
                    for nodes in assignments
                )
            wanted = module.CreatePartitionsTopic(name=topic, count=count, assignments=chosen)
            return module.CreatePartitionsRequest(
                topics=(wanted,),
                timeout=patience(),
                validate_only=validate_only,
            )

        response = await self._command(ApiKey.CREATE_PARTITIONS, build, timeout_ms)
        result = only(response.results, f"topic {topic}")
        raise_for(int(result.error_code), result.error_message)

    async def describe_configs(self, resource: Resource, name: str) -> list[ConfigEntry]:
        """Return the configs of a topic, a node (its id) or the cluster ("" and BROKER)."""

        def build(module: Any) -> Any:
            wanted = module.DescribeConfigsResource(
                resource_type=int(resource), resource_name=name, configuration_keys=None
            )
            return module.DescribeConfigsRequest(
                resources=(wanted,), include_synonyms=False, include_documentation=True
            )

        async def operation(node: NodeClient) -> Any:
            response = await node.call(ApiKey.DESCRIBE_CONFIGS, build)
            return only(response.results, name)

        if resource is Resource.BROKER and name:
            # Only the node itself knows its own file.
            result = await self._cluster.run(lambda: self._cluster.node(int(name)), operation)
        else:
            result = await self._cluster.run(self._cluster.any_node, operation)
        # Its error is not tried again: a topic that is not there would be asked for very long.
        raise_for(int(result.error_code), result.error_message)
        return [_config_entry(each) for each in result.configs]

    async def alter_configs(
        self,
        resource: Resource,
        name: str,
        *,
        set_values: Mapping[str, str] | None = None,
        delete_names: Sequence[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set some configs and bring others back to their defaults; raise the error."""
        changes = [(key, _SET, value) for key, value in (set_values or {}).items()]
        changes += [(key, _DELETE, "") for key in delete_names]

        def build(module: Any) -> Any:
            wanted = module.AlterConfigsResource(
                resource_type=int(resource),
                resource_name=name,
                configs=tuple(
                    module.AlterableConfig(
                        name=key,
                        config_operation=operation,
                        value=value if operation == _SET else None,
                    )
                    for key, operation, value in changes
                ),
            )
            return module.IncrementalAlterConfigsRequest(
                resources=(wanted,), validate_only=validate_only
            )

        # Setting a value twice is setting it.
        response = await self._command(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, build, TIMEOUT_MS, idempotent=True
        )
        result = only(response.responses, name)
        raise_for(int(result.error_code), result.error_message)

    async def describe_log_dirs(
        self, node_id: int, partitions: Iterable[TopicPartition] | None = None
    ) -> list[LogDirView]:
        """Return the data directories of one node; a directory's error stands in its view.

        With `partitions`, only these are told of.
        """
        wanted: dict[str, list[int]] | None = None
        if partitions is not None:
            wanted = {}
            for key in partitions:
                wanted.setdefault(key.topic, []).append(key.partition)

        def request(m: Any) -> Any:
            if wanted is None:
                return m.DescribeLogDirsRequest(topics=None)
            topics = tuple(
                m.DescribableLogDirTopic(topic=topic, partitions=tuple(indexes))
                for topic, indexes in wanted.items()
            )
            return m.DescribeLogDirsRequest(topics=topics)

        async def operation(node: NodeClient) -> list[LogDirView]:
            response = await node.call(ApiKey.DESCRIBE_LOG_DIRS, request)
            raise_for(int(response.error_code))
            return [_log_dir(result) for result in response.results]

        return await self._cluster.run(lambda: self._cluster.node(node_id), operation)


def describe_error(code: int, message: str | None = None) -> str:
    """Return an error code of a view as a line for people."""
    error = error_for(code, message or "")
    return f"{error.name}: {message}" if message else error.name
