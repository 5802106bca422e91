"""The server's front on real sockets and real logs, without metadata: for tests of its parts.

    async with Front.open(tmp_path, ["a", "b"]) as front:
        client = await front.connect()
        await client.send(produce_frame("a", batch_of(b"x")))

Partitions are made by hand, so that a test can hold up, fail or delete each of them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from dlog.checksum import Buffer
from dlog.errors import UnknownTopicOrPartitionError
from dlog.types import LeaderEpoch, NodeId, PartitionId, TopicPartition
from dlog.wire import fetch, fetch_client, produce_client
from dlog.wire.frame import RequestHeader
from dlog.wire.topics import TopicKey
from dlogd.metadata.state.image import ClusterImage
from dlogd.net.connection_admission import Bounds, Rate
from dlogd.replication.partition.batch_validation import PartitionSettings
from dlogd.replication.partition.fetch_waiters import Wakes
from dlogd.replication.partition.lease import ENDLESS
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_state import ProducerStates
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.replication.role_assigner import RoleAssigner
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.tasks import Tasks
from dlogd.server.batch_unpacker import BatchUnpacker
from dlogd.server.dispatch import Dispatcher
from dlogd.server.entry_budget import EntryBudget
from dlogd.server.handlers.fetch import FetchHandler
from dlogd.server.handlers.produce import ProduceHandler
from dlogd.server.leader_hints import LeaderHints
from dlogd.server.listener import Listener
from dlogd.server.request_turns import RequestTurns
from dlogd.server.router import RequestRouter
from dlogd.server.session import Session
from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.io.thread_engine import ThreadEngine
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.telemetry.admission_metrics import AdmissionMetrics
from dlogd.telemetry.metrics import Telemetry
from tests.fakes.logs import services_for

PRODUCE_VERSION, FETCH_VERSION = 7, 11
SETTINGS = PartitionSettings(
    batch_bytes_max=1 << 20,
    acks_floor=0,
    stamps_append_time=False,
    timestamp_before_ms_max=1 << 60,
    timestamp_after_ms_max=1 << 60,
)
LIMITS: dict[str, Any] = {
    "frame_bytes_max": 100 << 20,
    "inflight_bytes_max": 256 << 20,
    "inflight_requests_max": 1024,
    "bounds": Bounds(
        count_max=1000,
        per_address_max=1000,
        per_address_rate=Rate(per_s=1000, burst=1000),
        rate=Rate(per_s=1000, burst=1000),
    ),
    "idle_timeout_s": 600.0,
}

Answer = bytes | Coroutine[Any, Any, bytes]


class Replicas:
    """Partitions by name and id, as the handlers look them up."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, int], Partition] = {}
        self.by_id: dict[tuple[UUID, int], Partition] = {}
        self.roles = RoleAssigner(self.by_id, NodeId(1), ENDLESS, SystemClock())
        self.wakes = Wakes(asyncio.get_running_loop())

    def partition(self, topic: str, index: int) -> Partition:
        """Find or refuse."""
        found = self.by_name.get((topic, index))
        if found is None:
            raise UnknownTopicOrPartitionError(f"This node knows no partition {topic}-{index}")
        return found

    def partition_by_id(self, topic_id: UUID, index: int) -> Partition:
        """Find or refuse."""
        found = self.by_id.get((topic_id, index))
        if found is None:
            raise UnknownTopicOrPartitionError(f"This node knows no partition {topic_id}-{index}")
        return found


class ScriptedDispatcher:
    """Answers every request that is neither Produce nor Fetch as the test says."""

    def __init__(self, entries: EntryBudget) -> None:
        self.turns = RequestTurns()
        self.entries = entries
        self.requests: list[RequestHeader] = []
        self.bodies: list[bytes] = []
        self.answer: Callable[[RequestHeader], Answer] = lambda header: response_of(header, b"")

    def respond(self, header: RequestHeader, view: memoryview, end: int, _peer: Session) -> Answer:
        """Answer one request."""
        self.requests.append(header)
        self.bodies.append(bytes(view[header.body_position : end]))
        return self.answer(header)


def response_of(header: RequestHeader, body: bytes) -> bytes:
    """Return a response frame."""
    return (4 + len(body)).to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big") + body


def request_frame(correlation_id: int = 1, body: bytes = b"", api_key: int = 3) -> bytes:
    """Return a request for the dispatcher (Metadata 0)."""
    head = api_key.to_bytes(2, "big") + b"\0\0" + correlation_id.to_bytes(4, "big") + b"\xff\xff"
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def produce_frame(
    topic: str,
    batch: Buffer,
    *,
    acks: int = -1,
    correlation_id: int = 1,
    timeout_ms: int = 5000,
    partitions: Iterable[int] = (0,),
) -> bytes:
    """Return a Produce request, of the same for each partition."""
    topics = [(topic, [(number, batch) for number in partitions])]
    return produce_client.encode_request(
        PRODUCE_VERSION, correlation_id, "test", acks, timeout_ms, topics
    )


def fetch_request(
    topics: list[tuple[TopicKey, list[fetch.FetchPartition]]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
) -> fetch.FetchRequest:
    """Return what a consumer asks for."""
    return fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten=[],
        rack_id="",
    )


def fetch_frame(
    wanted: Iterable[tuple[str, int]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
    correlation_id: int = 1,
    session: tuple[int, int] = (0, -1),
    partitions: Iterable[int] = (0,),
) -> bytes:
    """Return a Fetch request for some partitions of topics, each from an offset."""
    request = fetch_request(
        [
            (topic, [(number, -1, offset, -1, -1, partition_bytes) for number in partitions])
            for topic, offset in wanted
        ],
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session=session,
    )
    return fetch_client.encode_request(FETCH_VERSION, correlation_id, "test", request)


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *frames: bytes) -> None:
        """Send bytes."""
        self.writer.write(b"".join(frames))
        await self.writer.drain()

    async def receive(self) -> memoryview:
        """Return the next response without its length."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return memoryview(await self.reader.readexactly(size))

    async def produced(self) -> list[tuple[Any, list[Any]]]:
        """Return the topics of the next response, which is of Produce."""
        frame = await self.receive()
        response = produce_client.parse_response(frame, 4, len(frame), PRODUCE_VERSION)
        return list(response.topics)

    async def fetched(self) -> dict[str, tuple[int, bytes]]:
        """Return error code and records by topic of the next response, which is of Fetch."""
        frame = await self.receive()
        response = fetch_client.parse_response(frame, 4, len(frame), FETCH_VERSION)
        return {
            str(topic): (each.error_code, bytes(frame[start : start + each.records_bytes]))
            for topic, partitions in response.topics
            for each, start in partitions
        }

    async def is_closed_by_peer(self) -> bool:
        """Wait for the end of the connection; bytes before it are dropped."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        """Close without ado."""
        self.writer.transport.abort()


class Front:
    """A listener with handlers over hand-made partitions."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        loop = asyncio.get_running_loop()
        self.folder = folder
        self.clock = SystemClock()
        self.engine = ThreadEngine(loop)
        self.telemetry = Telemetry()
        self.admission = AdmissionMetrics()
        self.tasks = Tasks()
        self.replicas = Replicas()
        self.entries = EntryBudget(limits.pop("entries_max", 200_000), self.telemetry.server)
        self.dispatcher = ScriptedDispatcher(self.entries)
        memory = {name: limits.pop(name) for name in list(limits) if name.endswith("_bytes")}
        self.services = services_for(self.engine, **{"pool_bytes": 8 << 20, **memory})
        replicas = cast(ReplicaManager, self.replicas)
        self.image = ClusterImage()
        hints = LeaderHints(NodeId(1), lambda: self.image)
        self.fetch = FetchHandler(replicas, loop, self.clock, self.tasks, self.telemetry, hints)
        unpacker = BatchUnpacker(self.tasks, self.engine.run)
        self.produce = ProduceHandler(replicas, self.clock, self.telemetry, hints, unpacker)
        self.router = RequestRouter(
            self.produce,
            self.fetch,
            cast(Dispatcher, self.dispatcher),
            self.clock,
            self.tasks,
            self.telemetry,
        )
        self.listener = Listener(
            loop,
            self.engine,
            self.router,
            self.clock,
            self.telemetry.server,
            self.admission,
            **{**LIMITS, **limits},
        )
        self.port = 0
        self._clients: list[Client] = []

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        folder: Path,
        topics: Iterable[str] = ("t",),
        *,
        config: LogConfig | None = None,
        **limits: Any,
    ) -> AsyncIterator["Front"]:
        """Serve partition 0 of each topic until the end of the block."""
        front = cls(folder, **limits)
        for topic in topics:
            await front.add(topic, config)
        front.port = await front.listener.bind("127.0.0.1", 0)
        await front.listener.serve()
        try:
            yield front
        finally:
            for client in front._clients:
                client.close()
            await front.listener.stop(1.0)
            for partition in front.replicas.by_name.values():
                await partition.log.close(clean=False)
            await front.tasks.close()
            await front.services.tasks.close()
            front.engine.close()

    async def add(
        self,
        topic: str,
        config: LogConfig | None = None,
        settings: PartitionSettings = SETTINGS,
    ) -> Partition:
        """Make partition 0 of a topic."""
        path = self.folder / f"{topic}-0"
        path.mkdir(parents=True, exist_ok=True)
        topic_id = UUID(int=len(self.replicas.by_name) + 1)
        plog = await PartitionLog.open(
            TopicPartition(topic, PartitionId(0)),
            topic_id,
            PosixDirectory(str(path)),
            config or LogConfig(segment_bytes=1 << 20, preallocate_bytes=0),
            self.services,
            clean=False,
        )
        partition = Partition(
            plog,
            loop=asyncio.get_running_loop(),
            clock=self.clock,
            producers=ProducerStates(expiry_ms=1 << 40, producers_max=1000),
            settings=settings,
            leader_epoch=LeaderEpoch(3),
            wakes=self.replicas.wakes,
        )
        self.replicas.by_name[(topic, 0)] = partition
        self.replicas.by_id[(topic_id, 0)] = partition
        return partition

    def partition(self, topic: str) -> Partition:
        """Return partition 0 of a topic."""
        return self.replicas.by_name[(topic, 0)]

    async def connect(self, source: str | None = None) -> Client:
        """Open a raw connection, from an address of the loopback range."""
        local = None if source is None else (source, 0)
        client = Client(
            *await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16, local_addr=local)
        )
        self._clients.append(client)
        return client


async def written(client: Client, data: Buffer, acks: int = -1) -> tuple[int, int]:
    """Append a batch to `t`; return error code and base offset."""
    await client.send(produce_frame("t", data, acks=acks))
    ((_, ((_, code, base_offset, *_),)),) = await client.produced()
    return code, base_offset


async def stored(client: Client) -> bytes:
    """Return what Fetch returns of `t` from the log's start on."""
    await client.send(fetch_frame([("t", 0)], max_wait_ms=1000))
    code, data = (await client.fetched())["t"]
    assert code == 0
    return data


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until a condition holds."""
    for _ in range(int(seconds * 500)):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("It did not happen")


def run_on(new_loop: Callable[[], asyncio.AbstractEventLoop], work: Awaitable[None]) -> None:
    """Run a scenario on a fresh loop of a given kind, for at most 30 s."""

    async def bounded() -> None:
        await asyncio.wait_for(cast(Any, work), 30)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bounded())
