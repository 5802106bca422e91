"""Blocking twin of `dlog.client.admin_cluster`.

Part of `dlog.client.blocking_admin`, which says how it works.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from dlog.client.admin import Admin
from dlog.client.admin_cluster import Outcomes, Partition
from dlog.client.admin_views import (
    Candidates,
    Drain,
    Election,
    MaintenanceLock,
    NodeState,
    QuorumView,
    ReassignmentView,
    Resource,
)
from dlog.client.cluster.admin_session import TIMEOUT_MS
from dlog.client.cluster.bootstrap import Bootstrap
from dlog.client.cluster.loop_thread import up_to_date
from dlog.client.cluster.maintenance_lock import LIFETIME_S
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from dlog.transport import Address, ConnectionOptions
from dlog.types import ZERO_TOPIC_ID

T = TypeVar("T")


class BlockingClusterAdmin:
    """The calls about nodes, leaders, replicas and the quorum. Owner: one thread."""

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
        return self._runner.run(up_to_date(work))

    # Calls

    def describe_values(
        self, resource: Resource, names: Sequence[str], keys: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Return some configs of many topics or nodes; what has none of them is left out.

        Any node tells: of other nodes only what the metadata knows of them.
        """
        return self._run(lambda: self._admin.describe_values(resource, names, keys))

    def describe_nodes(self) -> dict[int, NodeState]:
        """Return all nodes that the cluster knows, fenced ones too, by id."""
        return self._run(self._admin.describe_nodes)

    def drain_node(
        self, node_id: int, drain: Drain = Drain.LEADERS, *, token: UUID | None = None
    ) -> None:
        """Take leaders, or everything, off a node as long as `drain` is set; NONE ends it.

        Returns at once: the controller moves leaders and replicas afterwards. Raises
        PolicyViolationError while the maintenance lock is held with another token.
        """
        self._run(lambda: self._admin.drain_node(node_id, drain, token=token))

    def remove_node(self, node_id: int, *, token: UUID | None = None) -> None:
        """Forget a node that is down, holds no replicas and does not keep the metadata.

        Raises PolicyViolationError while the maintenance lock is held with another token.
        """
        self._run(lambda: self._admin.remove_node(node_id, token=token))

    def hold_maintenance(
        self, owner: str, token: UUID, node_id: int | None = None, lifetime_s: float = LIFETIME_S
    ) -> MaintenanceLock:
        """Take the lock, or renew it with the same token; return it as the cluster has it.

        Raises PolicyViolationError, which says who is at it, while another operator holds it.
        `owner` is a line for people: what is done, by whom. `lifetime_s` is at most an hour.
        """
        return self._run(lambda: self._admin.hold_maintenance(owner, token, node_id, lifetime_s))

    def release_maintenance(self, token: UUID | None) -> None:
        """End the lock that is held with a token; None ends the lock of any holder.

        Nothing happens when it is free. Raises PolicyViolationError when it is another's.
        """
        self._run(lambda: self._admin.release_maintenance(token))

    def describe_maintenance(self) -> MaintenanceLock | None:
        """Return who works on the cluster, None when the lock is free or has expired."""
        return self._run(self._admin.describe_maintenance)

    def elect_leaders(
        self,
        partitions: Iterable[Partition] | None = None,
        election: Election = Election.PREFERRED,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Outcomes:
        """Elect leaders of these partitions, or of all; return what became of each.

        Of all, only those are told of that have not the leader that is wanted. An UNCLEAN election
        may lose acknowledged records; it touches only partitions without a leader.
        """
        return self._run(
            lambda: self._admin.elect_leaders(partitions, election, timeout_ms=timeout_ms)
        )

    def alter_reassignments(
        self,
        targets: Mapping[Partition, Sequence[int] | None],
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Outcomes:
        """Begin to move replicas to these nodes, preferred leader first; None cancels a move.

        Returns what became of each; the copying takes its time: see `list_reassignments`.
        """
        return self._run(lambda: self._admin.alter_reassignments(targets, timeout_ms=timeout_ms))

    def list_reassignments(
        self, partitions: Iterable[Partition] | None = None
    ) -> list[ReassignmentView]:
        """Return which of these partitions, or of all, are being reassigned."""
        return self._run(lambda: self._admin.list_reassignments(partitions))

    def describe_candidates(self, topic: str) -> dict[int, Candidates]:
        """Return who may lead the partitions of a topic besides those in sync, by partition."""
        return self._run(lambda: self._admin.describe_candidates(topic))

    def describe_quorum(self) -> QuorumView:
        """Return who keeps the metadata and how far each is."""
        return self._run(self._admin.describe_quorum)

    def add_voter(
        self,
        node_id: int,
        address: Address,
        directory_id: UUID = ZERO_TOPIC_ID,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Let a node vote on the metadata that has followed it so far.

        `address` is that of its metadata listener. With a `directory_id` only if that is where it
        keeps the metadata.
        """
        self._run(
            lambda: self._admin.add_voter(node_id, address, directory_id, timeout_ms=timeout_ms)
        )

    def remove_voter(self, node_id: int, directory_id: UUID = ZERO_TOPIC_ID) -> None:
        """Let a node vote on the metadata no longer; it goes on following it.

        With a `directory_id` only if that is where it keeps the metadata.
        """
        self._run(lambda: self._admin.remove_voter(node_id, directory_id))

    def transfer_controller(self, node_id: int) -> None:
        """Make another voter the controller; return when it acts as one."""
        self._run(lambda: self._admin.transfer_controller(node_id))
