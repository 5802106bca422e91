"""Nodes that hold logs in memory and serve readers over TCP: for tests of consumers.

Answers come in the order of requests on each connection, a fetch waits for data as long as it may,
and every error that a leader can give can be provoked: leaders move, logs are trimmed, cut back
and made anew, batches are damaged, answers are late.
"""

import asyncio
import socket
import struct
from datetime import timedelta
from typing import Any
from uuid import UUID

from dlog.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.transport import Address
from dlog.types import PartitionId, TopicPartition
from dlog.wire import fetch, messages
from dlog.wire.apis import ApiKey
from dlog.wire.frame import parse_request_header
from tests.fakes.served_log import FakeLog

_LENGTH = struct.Struct(">I")
EARLIEST, LATEST = -2, -1


def _place() -> socket.socket:
    """Return a socket that keeps a port for servers to come, and takes no connection itself."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind(("127.0.0.1", 0))
    return place


class LogNodes:
    """Some nodes with one topic `t`; every node knows who leads what.

    `fetches` counts the fetches that were answered; `held_back` stops all answers to fetches.
    """

    def __init__(self, partitions: int = 1, nodes: int = 1) -> None:
        self.topic_id = UUID(int=1)
        self.exists = True
        self.cleanup_policy = "delete"
        self.logs = [
            FakeLog(TopicPartition("t", PartitionId(index)), leader=index % nodes)
            for index in range(partitions)
        ]
        self.addresses: dict[int, Address] = dict.fromkeys(range(nodes), Address("127.0.0.1", 1))
        self.requests: list[fetch.FetchRequest] = []
        self.asked_nodes: list[int] = []  # for each of these
        self.versions: dict[int, tuple[int, int]] = {int(api): (0, 20) for api in ApiKey}
        self.changed = asyncio.Event()
        self.open_fetches = asyncio.Event()
        self.open_fetches.set()
        self.seen: list[int] = []
        self._places: dict[int, socket.socket] = {}
        self._servers: dict[int, asyncio.Server] = {}
        self._writers: dict[int, list[asyncio.StreamWriter]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def bootstrap(self) -> list[Address | str]:
        """Where to ask first."""
        return list(self.addresses.values())

    def notify(self) -> None:
        """Let waiting fetches look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def recreate(self, leader_epoch: int = 0) -> None:
        """Delete the topic and create it again, empty."""
        self.topic_id = UUID(int=self.topic_id.int + 1)
        for log in self.logs:
            log.batches.clear()
            log.start = log.end = 0
            log.leader_epoch = leader_epoch
        self.notify()

    async def start(self, node: int) -> None:
        """Open the port of a node; the same one when it was open before."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.setdefault(node, []).append(writer)
            task = asyncio.current_task()
            assert task is not None
            self._tasks.append(task)
            try:
                await self._serve(node, reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                pass
            finally:
                writer.close()

        if node not in self._places:
            self._places[node] = _place()
            self.addresses[node] = Address("127.0.0.1", self._places[node].getsockname()[1])
        port = self.addresses[node].port
        self._servers[node] = await asyncio.start_server(serve, "127.0.0.1", port, reuse_port=True)

    def stop(self, node: int) -> None:
        """Close the port and the connections of a node."""
        self._servers.pop(node).close()
        for writer in self._writers.pop(node, []):
            writer.transport.abort()

    async def __aenter__(self) -> "LogNodes":
        for node in self.addresses:
            await self.start(node)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for node in list(self._servers):
            self.stop(node)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for place in self._places.values():
            place.close()

    async def _serve(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            (size,) = _LENGTH.unpack(await reader.readexactly(4))
            frame = memoryview(await reader.readexactly(size))
            header = parse_request_header(frame, 0, len(frame))
            api, version = header.api_key, header.api_version
            self.seen.append(api)
            if api == ApiKey.FETCH:
                request = fetch.parse_request(frame, header.body_position, len(frame), version)
                self.requests.append(request)
                self.asked_nodes.append(node)
                writer.write(await self._fetch(node, version, header.correlation_id, request))
                continue
            asked = messages.parse_request(api, version, frame, header.body_position)
            module = messages.module_of(api, version, "response")
            answer = self._answer(api, asked, module, node)
            writer.write(messages.encode_response(answer, header.correlation_id))

    # Fetch

    async def _fetch(
        self, node: int, version: int, correlation_id: int, request: fetch.FetchRequest
    ) -> bytes:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.max_wait_ms / 1000
        while True:
            await self.open_fetches.wait()
            rows, found = self._look(node, version, request)
            left = deadline - loop.time()
            if found or left <= 0:
                break
            try:
                await asyncio.wait_for(self.changed.wait(), left)
            except TimeoutError:
                continue
        parts = fetch.encode_response_parts(version, correlation_id, 0, 0, 0, rows)
        data = iter(found)
        return b"".join(
            part if isinstance(part, bytes) else next(each for each in data if each)
            for part in parts
        )

    def _look(
        self, node: int, version: int, request: fetch.FetchRequest
    ) -> tuple[list[tuple[Any, list[fetch.FetchedPartition]]], list[bytes]]:
        left = request.max_bytes
        answers = []
        found: list[bytes] = []
        for topic, partitions in request.topics:
            row = []
            for entry in partitions:
                log = self.logs[entry[0]] if entry[0] < len(self.logs) else None
                try:
                    data = self._read(node, topic, log, entry, left, not any(found))
                except WireError as error:
                    found.append(b"")
                    leader = (log.leader, log.leader_epoch) if log is not None else None
                    hint = leader if isinstance(error, NotLeaderOrFollowerError) else None
                    row.append(
                        fetch.FetchedPartition(entry[0], error.code, -1, -1, -1, 0, None, hint)
                    )
                    continue
                assert log is not None
                end = log.end if node == log.leader else log.follower_end or log.end
                if node == log.leader and log.follower >= 0 and request.rack_id:
                    found.append(b"")
                    named = fetch.FetchedPartition(
                        entry[0], 0, end, end, log.start, 0, preferred_read_replica=log.follower
                    )
                    row.append(named)
                    continue
                foreign = log.foreign_epoch
                differs = entry[3] >= 0 if foreign is None else entry[3] == foreign
                if log.diverging is not None and differs:
                    told = log.diverging
                    if foreign is None:
                        log.diverging = None
                    found.append(b"")
                    row.append(fetch.FetchedPartition(entry[0], 0, -1, -1, -1, 0, told))
                    continue
                if data and log.damaged_reads:
                    log.damaged_reads -= 1
                    data = data[:-1] + bytes([data[-1] ^ 1])
                left -= len(data)
                stable = log.end if log.last_stable is None else log.last_stable
                if data:
                    found.append(data)
                row.append(
                    fetch.FetchedPartition(
                        entry[0], 0, end, stable, log.start, len(data),
                        aborted=log.aborted or None,
                    )
                )  # fmt: skip
            answers.append((topic, row))
        return answers, found

    def _read(
        self,
        node: int,
        topic: str | UUID,
        log: FakeLog | None,
        entry: fetch.FetchPartition,
        left: int,
        at_least_one: bool,
    ) -> bytes:
        if isinstance(topic, UUID) and topic != self.topic_id:
            raise UnknownTopicIdError
        if log is None or not self.exists:
            raise UnknownTopicOrPartitionError
        if log.errors:
            raise log.errors.pop(0)
        if node == log.follower and log.follower_errors:
            raise log.follower_errors.pop(0)
        if node != log.leader and log.follower < 0:
            raise NotLeaderOrFollowerError
        if 0 <= entry[1] < log.leader_epoch:
            raise FencedLeaderEpochError
        end = None if node == log.leader else log.follower_end
        if end is not None and entry[2] > end:
            raise OffsetOutOfRangeError
        return log.read(entry[2], min(left, entry[5]), at_least_one=at_least_one)

    # The rest

    def _answer(self, api: int, request: Any, module: Any, node: int) -> Any:
        if api == ApiKey.API_VERSIONS:
            keys = tuple(
                module.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self.versions.items()
            )
            return module.ApiVersionsResponse(
                error_code=_error(0), api_keys=keys, throttle_time=_no_time()
            )
        if api == ApiKey.METADATA:
            return self._metadata(request, module)
        if api == ApiKey.LIST_OFFSETS:
            return self._list_offsets(request, module, node)
        assert api == ApiKey.DESCRIBE_CONFIGS
        return self._configs(request, module)

    def _metadata(self, request: Any, module: Any) -> Any:
        brokers = tuple(
            module.MetadataResponseBroker(
                node_id=node, host=address.host, port=address.port, rack=None
            )
            for node, address in self.addresses.items()
        )
        partitions = tuple(
            module.MetadataResponsePartition(
                error_code=_error(0 if log.leader >= 0 else 5),
                partition_index=log.key.partition,
                leader_id=log.leader,
                leader_epoch=log.leader_epoch,
                replica_nodes=(0,),
                isr_nodes=(0,),
                offline_replicas=(),
            )
            for log in self.logs
        )
        names = ["t"] if request.topics is None else [each.name for each in request.topics]
        topics = tuple(
            module.MetadataResponseTopic(
                error_code=_error(0 if name == "t" and self.exists else 3),
                name=name,
                topic_id=self.topic_id,
                is_internal=False,
                partitions=partitions if name == "t" and self.exists else (),
            )
            for name in names
        )
        return module.MetadataResponse(
            throttle_time=_no_time(),
            brokers=brokers,
            cluster_id="c",
            controller_id=next(iter(self.addresses)),
            topics=topics,
        )

    def _list_offsets(self, request: Any, module: Any, node: int) -> Any:
        topics = []
        for topic in request.topics:
            found = []
            for each in topic.partitions:
                log = self.logs[each.partition_index]
                wrong = log.leader != node
                offset = self._offset_at(log, int(each.timestamp), int(request.isolation_level))
                found.append(
                    module.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=_error(6 if wrong else 0),
                        timestamp=-1,
                        offset=-1 if wrong else offset,
                        leader_epoch=log.leader_epoch,
                    )
                )
            topics.append(module.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(found)))
        return module.ListOffsetsResponse(throttle_time=_no_time(), topics=tuple(topics))

    def _offset_at(self, log: FakeLog, timestamp: int, isolation: int) -> int:
        """Records have the timestamp 1000 + offset; see `tests.fakes.batches`."""
        if timestamp == EARLIEST:
            return log.start
        if timestamp == LATEST:
            return log.last_stable if isolation and log.last_stable is not None else log.end
        offset = max(log.start, timestamp - 1000)
        return offset if offset < log.end else -1

    def _configs(self, request: Any, module: Any) -> Any:
        entry = module.DescribeConfigsResourceResult(
            name="cleanup.policy",
            value=self.cleanup_policy,
            read_only=False,
            config_source=5,
            is_sensitive=False,
            synonyms=(),
            config_type=7,
            documentation=None,
        )
        results = tuple(
            module.DescribeConfigsResult(
                error_code=_error(0),
                error_message=None,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=(entry,),
            )
            for each in request.resources
        )
        return module.DescribeConfigsResponse(throttle_time=_no_time(), results=results)


def _error(code: int) -> Any:
    return messages.module_of(ApiKey.METADATA, 12, "response").ErrorCode(code)


def _no_time() -> Any:
    module = messages.module_of(ApiKey.METADATA, 12, "response")
    return module.i32Timedelta.parse(timedelta(0))
