"""A node's context in memory: the real image and machine, partitions as plain values."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from dlog.errors import UnknownTopicIdError, UnknownTopicOrPartitionError, WireError
from dlog.types import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from dlog.wire import frame, messages
from dlog.wire.apis import ApiKey
from dlogd.config.schema import Config
from dlogd.metadata.commands.codec import (
    Command,
    FenceNodes,
    Proof,
    RegisterNode,
    UnfenceNode,
    encode,
)
from dlogd.metadata.machine import admission, apply
from dlogd.metadata.raft.membership import Operation, QuorumState, ReplicaState
from dlogd.metadata.state.image import (
    EMPTY_IMAGE,
    Applied,
    ClusterImage,
    NodeAddress,
    Outcome,
    Refused,
    TopicImage,
)
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.pending_trims import PendingTrims
from dlogd.server import response_builder
from dlogd.server.context import LogDir, ServerContext
from dlogd.server.dispatch import Dispatcher
from dlogd.server.session import Session
from dlogd.storage.log.timestamp_lookup import TimestampOffset
from dlogd.telemetry.metrics import Telemetry
from tests.fakes.randomness import SeededRandomness

CLUSTER_ID = "test-cluster"


@dataclass
class FakeLog:
    """What handlers ask of a log; records are (timestamp, offset), epochs (epoch, start offset)."""

    topic_partition: TopicPartition
    log_start_offset: int = 0
    log_end_offset: int = 0
    records: list[tuple[int, int]] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    failed: WireError | None = None
    size_bytes: int = 0

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`."""
        return max((e for e, start in self.epochs if start <= offset), default=NO_EPOCH)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch` and where it ends."""
        known = [(e, start) for e, start in self.epochs if e <= epoch]
        if not known or epoch > self.last_epoch:
            return -1, -1
        above = [start for e, start in self.epochs if e > epoch]
        return known[-1][0], above[0] if above else self.log_end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record."""
        return self.epochs[-1][0] if self.epochs else NO_EPOCH

    async def offset_for_timestamp(self, timestamp_ms: int, _: str = "") -> TimestampOffset | None:
        """Return the first record at or after a time."""
        return self._found(next((r for r in self.records if r[0] >= timestamp_ms), None))

    async def offset_of_max_timestamp(self, _: str = "") -> TimestampOffset | None:
        """Return the newest record by time."""
        return self._found(max(self.records, default=None))

    def _found(self, record: tuple[int, int] | None) -> TimestampOffset | None:
        if record is None:
            return None
        timestamp_ms, offset = record
        return TimestampOffset(timestamp_ms, Offset(offset), LeaderEpoch(self.epoch_at(offset)))

    async def trim_to(self, offset: int) -> None:
        """Forget what is below."""
        self.log_start_offset = offset


@dataclass
class FakePartition:
    """What handlers ask of a partition."""

    log: FakeLog
    topic_id: TopicId
    leader_epoch: int = 0
    high_watermark: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """Name of the partition."""
        return self.log.topic_partition

    def check_serving(self, current_leader_epoch: int = -1) -> None:
        """Refuse as the real one does."""
        Partition.check_serving(cast(Any, self), current_leader_epoch)

    def check_readable(self, current_leader_epoch: int = -1) -> None:
        """Refuse as the real one does."""
        Partition.check_readable(cast(Any, self), current_leader_epoch)

    def check_watermark(self) -> None:
        """Refuse as the real one does."""
        Partition.check_watermark(cast(Any, self))

    closed: WireError | None = None
    is_ended = False

    def announce(self) -> None:
        """Nobody follows."""

    def settle_trims(self) -> None:
        """Nobody is waited for."""
        self.trims.settle_to(self.log.log_start_offset)

    def __post_init__(self) -> None:
        self.leader = FakeLeader(self.log)
        self.trims = PendingTrims(asyncio.get_running_loop())


@dataclass(slots=True)
class FakeLeader:
    """A leader without followers."""

    log: FakeLog
    epoch_start_offset: int = 0


class FakeClock:
    """A clock that stands still unless moved."""

    def __init__(self) -> None:
        self.time_ms = 1_000

    def now_ms(self) -> int:
        """Return monotonic milliseconds."""
        return self.time_ms

    def now_us(self) -> int:
        """Return monotonic microseconds."""
        return self.time_ms * 1000

    def timestamp_ms(self) -> int:
        """Return wall-clock milliseconds."""
        return 1_700_000_000_000 + self.time_ms


def new_topic(
    name: str,
    partitions: int = -1,
    replicas: int = -1,
    *,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
    configs: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Return the fields of one topic in a CreateTopics request."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [{"partition_index": p, "broker_ids": ids} for p, ids in assignments],
        "configs": [{"name": k, "value": v} for k, v in (configs or {}).items()],
    }


def replica_state(node_id: int, end: int = 10) -> ReplicaState:
    """Return what is known of one node that keeps the metadata."""
    return ReplicaState(
        node_id=node_id,
        directory_id=UUID(int=100 + node_id),
        log_end_offset=end,
        last_fetch_ms=900,
        last_caught_up_ms=800,
        host=f"host{node_id}",
        port=9093,
    )


class FakeQuorum:
    """Who keeps the metadata, as values; changes of it are noted."""

    def __init__(self, leader_id: int | None = 1) -> None:
        self.state = QuorumState(
            leader_id=leader_id,
            term=4,
            high_watermark=10,
            voters=(replica_state(1), replica_state(2, 8), replica_state(3)),
            observers=(replica_state(4, 7),),
        )
        self.changes: list[tuple[Operation, int, str, int]] = []
        self.outcome: Outcome = Applied(version=1)
        self.on_change: Callable[[], None] = lambda: None

    def quorum(self) -> QuorumState:
        """Return the state."""
        return self.state

    async def change_voters(
        self, operation: Operation, node_id: int, deadline_ms: int, host: str = "", port: int = 0
    ) -> Outcome:
        """Note the change and give the outcome that the test wants."""
        self.changes.append((operation, node_id, host, port))
        self.on_change()
        return self.outcome

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"handlers have no use for {name}")


class FakeNode:
    """A node whose metadata is the real machine and whose partitions are values."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        node_id: int = 1,
        seed: int = 1,
        quorum: "FakeQuorum | None" = None,
        port: int = 9092,
    ) -> None:
        """With a quorum the cluster is at the newest feature level, as clusters are.

        All nodes are at `port`: of hosts that there are not, unless somebody says a port.
        """
        self.quorum = quorum
        self.port = port
        self.image: ClusterImage = EMPTY_IMAGE
        self.partitions: dict[TopicPartition, FakePartition] = {}
        self.log_dirs: list[LogDir] = []
        self.commands: list[Command] = []
        self.outcomes: list[Outcome] = []
        """Outcomes to give instead of the machine's, first come first."""
        self.open_partitions = True
        self.context = ServerContext(
            node_id=NodeId(node_id),
            config=config or Config(),
            clock=FakeClock(),
            entropy=SeededRandomness(seed).entropy,
            image=lambda: self.image,
            propose_command=self.propose,
            partition=self.partition,
            partition_by_id=self.partition_by_id,
            log_dirs=self.describe_dirs,
            await_partitions=self.await_partitions,
            quorum=cast(Any, quorum),
        )
        self.register(node_id)
        self.telemetry = Telemetry()
        self.dispatcher = Dispatcher(self.context, self.telemetry)

    def register(self, node_id: int, rack: str | None = None) -> None:
        """Add a node to the cluster."""
        command = RegisterNode(
            command_id=self.context.new_id(),
            cluster_id=CLUSTER_ID,
            node_id=NodeId(node_id),
            directory_ids=(UUID(int=node_id + 1),),
            addresses=(NodeAddress(listener="clients", host=self._host(node_id), port=self.port),),
            rack=rack,
            version="test",
            proof=None if self.quorum is None else Proof.CLEAN,
        )
        epoch = self.apply(command)
        if self.quorum is not None:
            self.apply(
                UnfenceNode(
                    command_id=self.context.new_id(), node_id=NodeId(node_id), node_epoch=epoch
                )
            )

    def _host(self, node_id: int) -> str:
        return f"host{node_id}" if self.port == 9092 else "127.0.0.1"

    def apply(self, command: Command) -> int:
        """Change the image as somebody else does; return the outcome's value."""
        self.image, outcome = apply.apply(self.image, encode(command))
        assert isinstance(outcome, Applied), outcome
        return outcome.value

    def fence(self, *node_ids: int) -> None:
        """Take nodes for dead."""
        lives = tuple((NodeId(n), self.image.nodes[NodeId(n)].node_epoch) for n in node_ids)
        self.apply(FenceNodes(command_id=self.context.new_id(), nodes=lives))

    def unfence(self, node_id: int) -> None:
        """Take a node for alive again."""
        epoch = self.image.nodes[NodeId(node_id)].node_epoch
        self.apply(
            UnfenceNode(command_id=self.context.new_id(), node_id=NodeId(node_id), node_epoch=epoch)
        )

    async def propose(self, command: Command, deadline_ms: int) -> Outcome:
        """Apply at once."""
        self.commands.append(command)
        if self.outcomes:
            return self.outcomes.pop(0)
        refusal: Refused | None = admission.admit(command)
        if refusal is not None:
            return refusal
        self.image, outcome = apply.apply(self.image, encode(command))
        self._open()
        return outcome

    def _open(self) -> None:
        for topic in self.image.topics.values():
            for index in range(len(topic.partitions)):
                name = topic.topic_partition(index)
                known = self.partitions.get(name)
                if known is None or known.topic_id != topic.topic_id:
                    self.partitions[name] = FakePartition(FakeLog(name), topic.topic_id)

    def partition(self, topic: str, index: int) -> Partition:
        """Find a partition by name."""
        found = self.partitions.get(TopicPartition(topic, cast(Any, index)))
        if found is None:
            raise UnknownTopicOrPartitionError()
        return cast(Partition, found)

    def partition_by_id(self, topic_id: TopicId, index: int) -> Partition:
        """Find a partition by topic id."""
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicIdError()
        return self.partition(topic.name, index)

    async def describe_dirs(self) -> Sequence[LogDir]:
        """Return what the test has set."""
        return self.log_dirs

    async def await_partitions(self, topics: Sequence[str]) -> None:
        """Return at once, or with `open_partitions` false run out of time."""
        if not self.open_partitions:
            raise TimeoutError

    async def ask(self, api_key: ApiKey, version: int, **fields: Any) -> Any:
        """Send a request through bytes in both directions; return the response's entity."""
        entity = response_builder.build_request(api_key, version, fields)
        sent = memoryview(messages.encode_request(entity, 7, "test"))
        header = frame.parse_request_header(sent, frame.LENGTH_BYTES, len(sent))
        answer = self.dispatcher.respond(header, sent, len(sent), Session())
        received = memoryview(answer if isinstance(answer, bytes) else await answer)
        assert int.from_bytes(received[:4], "big") == len(received) - 4
        return messages.parse_response(api_key, version, received[4:])

    async def create(self, name: str, partitions: int = 1, **configs: str) -> TopicImage:
        """Create a topic by its API."""
        response = await self.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[new_topic(name, partitions, configs=configs)],
            timeout=1000,
        )
        assert response.topics[0].error_code == 0, response
        return self.image.topics[name]
