"""`dlog.client.admin` for code without an event loop: the same names, each call waits.

No thread: every call runs a private loop until it is done. Programs use it as
`dlog.client.blocking.Admin`:

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("payments", partitions=3)
        print(admin.describe_topic("payments").partitions)
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from dlog.client.admin import DEFAULT, TIMEOUT_MS, Admin, Resource
from dlog.client.bootstrap import Bootstrap
from dlog.client.retry import RetryPolicy
from dlog.client.views import ClusterView, ConfigEntry, LogDirView, TopicView
from dlog.errors import DlogError
from dlog.transport import ConnectionOptions

T = TypeVar("T")


class BlockingAdmin:
    """Administrative calls on a cluster. Owner: one thread. Life: a `with` block."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        connection: ConnectionOptions | None = None,
        policy: RetryPolicy | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._admin = Admin(bootstrap, connection=connection, policy=policy, rng=rng)
        self._runner: asyncio.Runner | None = None

    def start(self) -> None:
        """Make ready; `with` does it. Nothing is asked yet."""
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._run(self._admin.start)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._runner is not None:
            self._run(self._admin.close)
            self._runner.close()
            self._runner = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._runner is None:
            raise DlogError("the admin client is not open: use it in `with`")
        return self._runner.run(work())

    # Calls

    def describe_cluster(self) -> ClusterView:
        """Return the nodes and the controller."""
        return self._run(self._admin.describe_cluster)

    def describe_topics(self, names: Sequence[str] | None = None) -> ClusterView:
        """Return the cluster with these topics, or all; a topic's error stands in its view."""
        return self._run(lambda: self._admin.describe_topics(names))

    def describe_topic(self, name: str) -> TopicView:
        """Return one topic; raise its error."""
        return self._run(lambda: self._admin.describe_topic(name))

    def create_topic(
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
        return self._run(
            lambda: self._admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
                validate_only=validate_only,
                timeout_ms=timeout_ms,
            )
        )

    def delete_topic(self, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        """Delete a topic and its data; raise its error."""
        self._run(lambda: self._admin.delete_topic(name, timeout_ms))

    def create_partitions(
        self,
        topic: str,
        count: int,
        *,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Raise the number of partitions of `topic` to `count`; raise its error."""
        self._run(
            lambda: self._admin.create_partitions(
                topic, count, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def describe_configs(self, resource: Resource, name: str) -> list[ConfigEntry]:
        """Return the configs of a topic, a node (its id) or the cluster ("" and BROKER)."""
        return self._run(lambda: self._admin.describe_configs(resource, name))

    def alter_configs(
        self,
        resource: Resource,
        name: str,
        *,
        set_values: Mapping[str, str] | None = None,
        delete_names: Sequence[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set some configs and bring others back to their defaults; raise the error."""
        self._run(
            lambda: self._admin.alter_configs(
                resource,
                name,
                set_values=set_values,
                delete_names=delete_names,
                validate_only=validate_only,
            )
        )

    def describe_log_dirs(self, node_id: int) -> list[LogDirView]:
        """Return the data directories of one node; a directory's error stands in its view."""
        return self._run(lambda: self._admin.describe_log_dirs(node_id))
