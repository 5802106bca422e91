"""Blocking twin of `dlog.client.admin`: the same names, each call waits.

No thread: every call runs a private loop until it is done. Programs use it as
`dlog.client.blocking.Admin`:

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("payments", partitions=3)
        print(admin.describe_topic("payments").partitions)
"""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from dlog.client.admin import DEFAULT, TIMEOUT_MS, NewTopic, Resource
from dlog.client.blocking_admin_cluster import BlockingClusterAdmin
from dlog.client.starts import Start
from dlog.client.views import ClusterView, ConfigEntry, LogDirView, TopicView
from dlog.errors import DlogError, WireError
from dlog.types import TopicPartition


class BlockingAdmin(BlockingClusterAdmin):
    """Administrative calls on a cluster. Owner: one thread. Life: a `with` block."""

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
        assignments: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> UUID:
        """Create a topic and return its id (zero when only validated); raise its error.

        With `assignments`, the nodes of each partition, preferred leader first, the numbers of
        partitions and replicas follow from them.
        """
        return self._run(
            lambda: self._admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                assignments=assignments,
                configs=configs,
                validate_only=validate_only,
                timeout_ms=timeout_ms,
            )
        )

    def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> dict[str, UUID | WireError]:
        """Create many topics at once; return of each its id (zero when only validated) or error."""
        return self._run(
            lambda: self._admin.create_topics(
                topics, validate_only=validate_only, timeout_ms=timeout_ms
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
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Raise the number of partitions of `topic` to `count`; raise its error.

        `assignments`: the nodes of each new partition, preferred leader first.
        """
        self._run(
            lambda: self._admin.create_partitions(
                topic,
                count,
                assignments=assignments,
                validate_only=validate_only,
                timeout_ms=timeout_ms,
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

    def describe_log_dirs(
        self, node_id: int, partitions: Iterable[TopicPartition] | None = None
    ) -> list[LogDirView]:
        """Return the data directories of one node; a directory's error stands in its view.

        With `partitions`, only these are told of.
        """
        return self._run(lambda: self._admin.describe_log_dirs(node_id, partitions))

    def find_offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """Return the offset that each start stands for now, as readers of everything see it.

        "latest" is the high watermark. Raises the first error that is final, or that lasts until
        the policy's deadline.
        """
        return self._run(lambda: self._admin.find_offsets(starts))

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int = TIMEOUT_MS
    ) -> dict[TopicPartition, int | DlogError]:
        """Delete the records below an offset of each partition; return where each log begins then.

        The error of a partition stands in its place. All replicas in sync have deleted when this
        returns. Raises ValueError for a negative offset: `find_offsets` tells where a log ends.
        """
        return self._run(lambda: self._admin.delete_records(before, timeout_ms))
