"""A Kafka node of a few lines, for tests of clients: answers what a test tells it to.

`answers[api]` gets the parsed request and returns the response entity (made of the module that it
is given), raises to close the connection, or returns None to stay silent.
"""

import asyncio
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from dlog.transport import Address
from dlog.wire import messages
from dlog.wire.apis import ApiKey
from dlog.wire.frame import FrameSplitter, RequestHeader, parse_request_header

Answer = Callable[[Any, Any, RequestHeader], Any]


class HangUpError(Exception):
    """Close the connection instead of an answer."""


class Peer:
    """One fake node on a loopback port."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {ApiKey.API_VERSIONS: self.api_versions}
        self.raw: dict[int, Callable[[RequestHeader, memoryview], bytes | None]] = {}
        self.versions: dict[int, tuple[int, int]] = {int(api): (0, 20) for api in ApiKey}
        self.seen: list[int] = []
        self.connections: list[asyncio.BaseTransport] = []
        self.address = Address("127.0.0.1", 0)
        self.advertised: Address | None = None  # what others hear, when it is not the address
        self._server: asyncio.Server | None = None

    def api_versions(self, _request: Any, module: Any, header: RequestHeader) -> Any:
        keys = tuple(
            module.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        )
        arguments = {} if header.api_version < 1 else {"throttle_time": zero_time()}
        return module.ApiVersionsResponse(error_code=no_error(), api_keys=keys, **arguments)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _PeerConnection(self), "127.0.0.1", 0)
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.close()

    @property
    def open_count(self) -> int:
        """Connections that nobody has closed."""
        return sum(not connection.is_closing() for connection in self.connections)

    def answer(self, frame: memoryview) -> bytes | None:
        header = parse_request_header(frame, 0, len(frame))
        self.seen.append(header.api_key)
        if header.api_key in self.raw:
            return self.raw[header.api_key](header, frame)
        key, version = header.api_key, header.api_version
        request = messages.parse_request(key, version, frame, header.body_position)
        module = messages.module_of(key, version, "response")
        entity = self.answers[key](request, module, header)
        return None if entity is None else messages.encode_response(entity, header.correlation_id)


class _PeerConnection(asyncio.Protocol):
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer.connections.append(transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        for frame in self._splitter.feed(memoryview(data)):
            try:
                answer = self._peer.answer(frame)
            except HangUpError:
                self._transport.close()
                return
            if answer is not None:
                self._transport.write(answer)


def no_error() -> Any:
    """Return kio's "no error"."""
    return error(0)


def error(code: int) -> Any:
    """Return kio's error code."""
    return messages.module_of(ApiKey.METADATA, 12, "response").ErrorCode(code)


def zero_time() -> Any:
    """Return kio's duration of nothing."""
    return messages.module_of(ApiKey.METADATA, 12, "response").i32Timedelta.parse(_NO_TIME)


_NO_TIME = timedelta(0)
TOPIC_ID = UUID(int=77)


def unsupported_versions(header: RequestHeader) -> bytes:
    """Return what a node answers to an ApiVersions that is too new for it: version 0, error 35."""
    body = struct.pack(">hi", 35, 0)
    return struct.pack(">ii", 4 + len(body), header.correlation_id) + body


class PeerCluster:
    """Two fake nodes; node 1 is the controller; `leaders` says who leads topic `t`."""

    def __init__(self) -> None:
        self.peers = {1: Peer(), 2: Peer()}
        self.leaders = [1, 2]
        self.leader_epoch = 3
        self.cluster_id: str | None = "c"
        self.isr: tuple[int, ...] = (1,)
        self.topic_error = 0
        for peer in self.peers.values():
            peer.answers[ApiKey.METADATA] = self.metadata

    def metadata(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        told = {node_id: peer.advertised or peer.address for node_id, peer in self.peers.items()}
        brokers = tuple(
            module.MetadataResponseBroker(
                node_id=node_id, host=address.host, port=address.port, rack="r"
            )
            for node_id, address in told.items()
        )
        parts = tuple(
            module.MetadataResponsePartition(
                error_code=error(0 if leader > 0 else 5),
                partition_index=index,
                leader_id=leader,
                leader_epoch=self.leader_epoch,
                replica_nodes=(1, 2),
                isr_nodes=self.isr,
                offline_replicas=(),
            )
            for index, leader in reversed(list(enumerate(self.leaders)))
        )
        names = ["t"] if request.topics is None else [topic.name for topic in request.topics]
        topics = tuple(
            module.MetadataResponseTopic(
                error_code=error(self.topic_error if name == "t" else 3),
                name=name,
                topic_id=TOPIC_ID,
                is_internal=False,
                partitions=parts if name == "t" else (),
            )
            for name in names
        )
        return module.MetadataResponse(
            throttle_time=zero_time(),
            brokers=brokers,
            cluster_id=self.cluster_id,
            controller_id=1,
            topics=topics,
        )
