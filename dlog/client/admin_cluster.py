"""Administration of nodes, leaders, replicas and metadata voters.

Part of `dlog.client.admin.Admin`. What concerns many partitions tells of each whether it was done;
what concerns the request as a whole is raised.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from dlog.client.admin_views import (
    Candidates,
    Drain,
    Election,
    NodeState,
    QuorumReplica,
    QuorumView,
    ReassignmentView,
    Resource,
)
from dlog.client.cluster.admin_session import TIMEOUT_MS, only
from dlog.client.cluster.maintenance_lock import MaintenanceAdmin
from dlog.client.cluster.node import (
    DESCRIBE_CLUSTER_VERSIONS,
    DESCRIBE_QUORUM_VERSIONS,
    NodeClient,
    raise_for,
)
from dlog.errors import NONE, WireError, error_for
from dlog.transport import Address
from dlog.types import ZERO_TOPIC_ID
from dlog.wire.apis import ApiKey

Partition = tuple[str, int]
"""A topic's name and the number of one of its partitions."""
Outcomes = dict[Partition, WireError | None]
"""What became of each partition; None: it was done."""

_METADATA_TOPIC = "__cluster_metadata"
_LISTENER = "CONTROLLER"
_DRAIN, _CONTROLLER = "node.drain", "controller.node"
_REGISTRATION = "node.registration"
_SET, _DELETE = 0, 1


def _error(result: Any) -> WireError | None:
    code = int(result.error_code)
    return None if code == NONE else error_for(code, result.error_message or "")


def _grouped(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


class ClusterAdmin(MaintenanceAdmin):
    """The calls about nodes, leaders, replicas and the quorum."""

    # Nodes

    async def describe_nodes(self) -> dict[int, NodeState]:
        """Return all nodes that the cluster knows, fenced ones too, by id."""

        async def operation(node: NodeClient) -> Any:
            response = await node.call(
                ApiKey.DESCRIBE_CLUSTER,
                lambda m: m.DescribeClusterRequest(
                    include_cluster_authorized_operations=False,
                    **({"include_fenced_brokers": True} if _has_fenced(m) else {}),
                ),
                versions=DESCRIBE_CLUSTER_VERSIONS,
            )
            raise_for(int(response.error_code), response.error_message)
            return response.brokers

        brokers = await self._cluster.run(self._cluster.any_node, operation)
        names = [str(int(each.broker_id)) for each in brokers]
        # Kafka has no such setting, and then nobody is drained.
        drains = await self.describe_values(Resource.BROKER, names, [_DRAIN])
        return {
            int(each.broker_id): NodeState(
                node_id=int(each.broker_id),
                address=Address(each.host, int(each.port)),
                rack=each.rack,
                is_fenced=bool(getattr(each, "is_fenced", False)),
                drain=Drain(drains.get(str(each.broker_id), {}).get(_DRAIN, Drain.NONE)),
            )
            for each in sorted(brokers, key=lambda broker: int(broker.broker_id))
        }

    async def drain_node(
        self, node_id: int, drain: Drain = Drain.LEADERS, *, token: UUID | None = None
    ) -> None:
        """Take leaders, or everything, off a node as long as `drain` is set; NONE ends it.

        Returns at once: the controller moves leaders and replicas afterwards. Raises
        PolicyViolationError while the maintenance lock is held with another token.
        """
        await self._settings(str(node_id), [(_DRAIN, _SET, str(drain))], token)

    async def remove_node(self, node_id: int, *, token: UUID | None = None) -> None:
        """Forget a node that is down, holds no replicas and does not keep the metadata.

        Raises PolicyViolationError while the maintenance lock is held with another token.
        """
        if token is not None:
            # Kafka's request has no room for it.
            await self._settings(str(node_id), [(_REGISTRATION, _DELETE, None)], token)
            return
        response = await self._command(
            ApiKey.UNREGISTER_BROKER,
            lambda m: m.UnregisterBrokerRequest(broker_id=node_id),
            TIMEOUT_MS,
        )
        raise_for(int(response.error_code), response.error_message)

    # Leaders and replicas

    async def elect_leaders(
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
        wanted = None if partitions is None else _grouped(partitions)

        patience = self._patience(timeout_ms)

        def build(module: Any) -> Any:
            named = None
            if wanted is not None:
                named = tuple(
                    module.TopicPartitions(topic=topic, partitions=tuple(numbers))
                    for topic, numbers in wanted.items()
                )
            return module.ElectLeadersRequest(
                election_type=int(election), topic_partitions=named, timeout=patience()
            )

        response = await self._command(ApiKey.ELECT_LEADERS, build, timeout_ms, idempotent=True)
        raise_for(int(response.error_code))
        return {
            (str(topic.topic), int(each.partition_id)): _error(each)
            for topic in response.replica_election_results
            for each in topic.partition_result
        }

    async def alter_reassignments(
        self,
        targets: Mapping[Partition, Sequence[int] | None],
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Outcomes:
        """Begin to move replicas to these nodes, preferred leader first; None cancels a move.

        Returns what became of each; the copying takes its time: see `list_reassignments`.
        """

        patience = self._patience(timeout_ms)

        def build(module: Any) -> Any:
            def partition(key: Partition) -> Any:
                nodes = targets[key]
                replicas = None if nodes is None else tuple(nodes)
                return module.ReassignablePartition(partition_index=key[1], replicas=replicas)

            return module.AlterPartitionReassignmentsRequest(
                timeout=patience(),
                topics=tuple(
                    module.ReassignableTopic(
                        name=topic,
                        partitions=tuple(partition((topic, number)) for number in numbers),
                    )
                    for topic, numbers in _grouped(targets).items()
                ),
            )

        response = await self._command(ApiKey.ALTER_PARTITION_REASSIGNMENTS, build, timeout_ms)
        raise_for(int(response.error_code), response.error_message)
        return {
            (str(topic.name), int(each.partition_index)): _error(each)
            for topic in response.responses
            for each in topic.partitions
        }

    async def list_reassignments(
        self, partitions: Iterable[Partition] | None = None
    ) -> list[ReassignmentView]:
        """Return which of these partitions, or of all, are being reassigned."""
        wanted = None if partitions is None else _grouped(partitions)

        patience = self._patience(TIMEOUT_MS)

        def build(module: Any) -> Any:
            named = None
            if wanted is not None:
                named = tuple(
                    module.ListPartitionReassignmentsTopics(
                        name=topic, partition_indexes=tuple(numbers)
                    )
                    for topic, numbers in wanted.items()
                )
            return module.ListPartitionReassignmentsRequest(timeout=patience(), topics=named)

        response = await self._command(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, build, TIMEOUT_MS, idempotent=True
        )
        raise_for(int(response.error_code), response.error_message)
        return [
            ReassignmentView(
                topic=str(topic.name),
                partition=int(each.partition_index),
                replicas=tuple(map(int, each.replicas)),
                adding=tuple(map(int, each.adding_replicas)),
                removing=tuple(map(int, each.removing_replicas)),
            )
            for topic in response.topics
            for each in topic.partitions
        ]

    # Who may lead

    async def describe_candidates(self, topic: str) -> dict[int, Candidates]:
        """Return who may lead the partitions of a topic besides those in sync, by partition."""
        found: dict[int, Candidates] = {}
        first: int | None = 0
        while first is not None:
            first = await self._add_candidates(topic, first, found)
        return found

    async def _add_candidates(
        self, topic: str, first: int, found: dict[int, Candidates]
    ) -> int | None:
        """Ask for one page of partitions, from `first` on; return where the next one begins."""

        def build(module: Any) -> Any:
            return module.DescribeTopicPartitionsRequest(
                topics=(module.TopicRequest(name=topic),),
                cursor=module.Cursor(topic_name=topic, partition_index=first) if first else None,
            )

        async def operation(node: NodeClient) -> Any:
            return await node.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, build)

        response = await self._cluster.run(self._cluster.any_node, operation)
        described = only(response.topics, topic)
        raise_for(int(described.error_code), topic)
        for each in described.partitions:
            found[int(each.partition_index)] = Candidates(
                tuple(map(int, each.eligible_leader_replicas or ())),
                tuple(map(int, each.last_known_elr or ())),
            )
        return None if response.next_cursor is None else int(response.next_cursor.partition_index)

    # Who keeps the metadata

    async def describe_quorum(self) -> QuorumView:
        """Return who keeps the metadata and how far each is."""

        def build(module: Any) -> Any:
            partition = module.PartitionData(partition_index=0)
            topic = module.TopicData(topic_name=_METADATA_TOPIC, partitions=(partition,))
            return module.DescribeQuorumRequest(topics=(topic,))

        async def operation(node: NodeClient) -> QuorumView:
            response = await node.call(
                ApiKey.DESCRIBE_QUORUM, build, versions=DESCRIBE_QUORUM_VERSIONS
            )
            raise_for(int(response.error_code), getattr(response, "error_message", None))
            topic = only(response.topics, _METADATA_TOPIC)
            found = only(topic.partitions, _METADATA_TOPIC)
            raise_for(int(found.error_code), getattr(found, "error_message", None))
            addresses = {
                int(each.node_id): Address(each.listeners[0].host, int(each.listeners[0].port))
                for each in getattr(response, "nodes", ())
                if each.listeners
            }
            return QuorumView(
                leader_id=int(found.leader_id),
                term=int(found.leader_epoch),
                high_watermark=int(found.high_watermark),
                voters=tuple(_replica(each, addresses) for each in found.current_voters),
                observers=tuple(_replica(each, {}) for each in found.observers),
            )

        return await self._cluster.run(self._cluster.any_node, operation)

    async def add_voter(
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

        patience = self._patience(timeout_ms)

        def build(module: Any) -> Any:
            listener = module.Listener(name=_LISTENER, host=address.host, port=address.port)
            return module.AddRaftVoterRequest(
                cluster_id=None,
                timeout=patience(),
                voter_id=node_id,
                voter_directory_id=directory_id,
                listeners=(listener,),
            )

        response = await self._command(ApiKey.ADD_RAFT_VOTER, build, timeout_ms)
        raise_for(int(response.error_code), response.error_message)

    async def remove_voter(self, node_id: int, directory_id: UUID = ZERO_TOPIC_ID) -> None:
        """Let a node vote on the metadata no longer; it goes on following it.

        With a `directory_id` only if that is where it keeps the metadata.
        """
        response = await self._command(
            ApiKey.REMOVE_RAFT_VOTER,
            lambda m: m.RemoveRaftVoterRequest(
                cluster_id=None, voter_id=node_id, voter_directory_id=directory_id
            ),
            TIMEOUT_MS,
        )
        raise_for(int(response.error_code), response.error_message)

    async def transfer_controller(self, node_id: int) -> None:
        """Make another voter the controller; return when it acts as one."""
        await self._settings("", [(_CONTROLLER, _SET, str(node_id))])


def _has_fenced(module: Any) -> bool:
    """Whether this version of the request can ask for fenced nodes."""
    return "include_fenced_brokers" in module.DescribeClusterRequest.__dataclass_fields__


def _replica(each: Any, addresses: Mapping[int, Address]) -> QuorumReplica:
    directory_id = getattr(each, "replica_directory_id", None)
    return QuorumReplica(
        node_id=int(each.replica_id),
        directory_id=ZERO_TOPIC_ID if directory_id is None else UUID(int=directory_id.int),
        log_end_offset=int(each.log_end_offset),
        last_fetch_ms=int(getattr(each, "last_fetch_timestamp", -1)),
        last_caught_up_ms=int(getattr(each, "last_caught_up_timestamp", -1)),
        address=addresses.get(int(each.replica_id)),
    )
