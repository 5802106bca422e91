"""Administration: topics, configs, the cluster, data directories.

What changes something and may have happened although the answer was lost is not repeated: the
error says so, and the caller looks. Everything else is retried by `dlog.client.cluster`.

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topic("payments", partitions=3, configs={"retention.ms": "86400000"})
        for name in (await admin.describe_topics()).topics:
            print(name)
"""

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from dlog.client.bootstrap import Bootstrap, parse_bootstrap
from dlog.client.cluster import Cluster
from dlog.client.node import Build, NodeClient, raise_for
from dlog.client.retry import RetryPolicy
from dlog.client.views import ClusterView, ConfigEntry, LogDirView, TopicView
from dlog.errors import DlogError, ProtocolError, error_for
from dlog.transport import ConnectionOptions
from dlog.types import ZERO_TOPIC_ID
from dlog.wire.apis import ApiKey

TIMEOUT_MS = 30_000
DEFAULT = -1  # let the cluster choose the number of partitions or replicas
_ANSWER_SLACK_S = 5.0
_SET, _DELETE = 0, 1


class Resource(IntEnum):
    """What a config belongs to (KIP-133)."""

    TOPIC = 2
    BROKER = 4


def _timeout_s(timeout_ms: int) -> float:
    return timeout_ms / 1000 + _ANSWER_SLACK_S


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


def _only(items: Iterable[Any], what: str) -> Any:
    """Return the one item that was asked for."""
    for item in items:
        return item
    raise ProtocolError(f"the answer does not tell about {what}")


class Admin:
    """Administrative calls on a cluster. Owner: one event loop. Life: an `async with` block.

    With a `Cluster`, which stays its owner's, it may be used at once and needs no end.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | Cluster,
        *,
        connection: ConnectionOptions | None = None,
        policy: RetryPolicy | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._given = bootstrap if isinstance(bootstrap, Cluster) else None
        self._addresses = [] if isinstance(bootstrap, Cluster) else parse_bootstrap(bootstrap)
        self._connection = connection
        self._policy = policy
        self._rng = rng or random.Random()
        self._own: Cluster | None = None

    @property
    def _cluster(self) -> Cluster:
        cluster = self._given or self._own
        if cluster is None:
            raise DlogError("the admin client is not open: use it in `async with`")
        return cluster

    async def start(self) -> None:
        """Make ready; `async with` does it. Nothing is asked yet."""
        if self._given is None and self._own is None:
            self._own = Cluster(
                self._addresses,
                loop=asyncio.get_running_loop(),
                rng=self._rng,
                options=self._connection,
                policy=self._policy,
            )

    async def close(self) -> None:
        """Close its connections, not those of a cluster that was given. Idempotent."""
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.close()

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
            raise ProtocolError(f"the answer does not tell about topic {name}")
        raise_for(topic.error_code, name)
        return topic

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = DEFAULT,
        replication_factor: int = DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> UUID:
        """Create a topic and return its id (zero when only validated); raise its error."""

        def build(module: Any) -> Any:
            topic = module.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=(),
                configs=tuple(
                    module.CreatableTopicConfig(name=key, value=value)
                    for key, value in (configs or {}).items()
                ),
            )
            return module.CreateTopicsRequest(
                topics=(topic,),
                timeout=timedelta(milliseconds=timeout_ms),
                validate_only=validate_only,
            )

        response = await self._command(ApiKey.CREATE_TOPICS, build, timeout_ms)
        result = _only(response.topics, f"topic {name}")
        raise_for(int(result.error_code), result.error_message)
        if validate_only or not result.topic_id:  # Kafka makes one up
            return ZERO_TOPIC_ID
        return UUID(int=result.topic_id.int)

    async def delete_topic(self, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        """Delete a topic and its data; raise its error."""

        def build(module: Any) -> Any:
            state = module.DeleteTopicState(name=name, topic_id=None)
            return module.DeleteTopicsRequest(
                topics=(state,), timeout=timedelta(milliseconds=timeout_ms)
            )

        response = await self._command(ApiKey.DELETE_TOPICS, build, timeout_ms)
        result = _only(response.responses, f"topic {name}")
        raise_for(int(result.error_code), result.error_message)

    async def create_partitions(
        self,
        topic: str,
        count: int,
        *,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Raise the number of partitions of `topic` to `count`; raise its error."""

        def build(module: Any) -> Any:
            wanted = module.CreatePartitionsTopic(name=topic, count=count, assignments=None)
            return module.CreatePartitionsRequest(
                topics=(wanted,),
                timeout=timedelta(milliseconds=timeout_ms),
                validate_only=validate_only,
            )

        response = await self._command(ApiKey.CREATE_PARTITIONS, build, timeout_ms)
        result = _only(response.results, f"topic {topic}")
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
            return _only(response.results, name)

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
        result = _only(response.responses, name)
        raise_for(int(result.error_code), result.error_message)

    async def describe_log_dirs(self, node_id: int) -> list[LogDirView]:
        """Return the data directories of one node; a directory's error stands in its view."""

        async def operation(node: NodeClient) -> list[LogDirView]:
            response = await node.call(
                ApiKey.DESCRIBE_LOG_DIRS, lambda m: m.DescribeLogDirsRequest(topics=None)
            )
            raise_for(int(response.error_code))
            return [_log_dir(result) for result in response.results]

        return await self._cluster.run(lambda: self._cluster.node(node_id), operation)

    async def _command(
        self, api: ApiKey, build: Build, timeout_ms: int, *, idempotent: bool = False
    ) -> Any:
        """Send a request that changes metadata to the controller."""
        return await self._cluster.run(
            self._cluster.controller,
            lambda node: node.call(api, build, _timeout_s(timeout_ms)),
            idempotent=idempotent,
        )


def describe_error(code: int, message: str | None = None) -> str:
    """Return an error code of a view as a line for people."""
    error = error_for(code, message or "")
    return f"{error.name}: {message}" if message else error.name
