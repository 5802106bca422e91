"""One node as a client sees it: a connection whose API versions are known.

Each API is used in one version (`VERSION_USED`), which dlog of this and of the neighbouring
releases serves, and Apache Kafka from 3.5 on. kio's modules are loaded when they are first needed.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Any

from dlog.errors import (
    NONE,
    UnsupportedVersionError,
    error_for,
)
from dlog.transport import (
    Address,
    Connection,
    ConnectionOptions,
    Encode,
    OnError,
    Request,
    TransportCounters,
    connect,
)
from dlog.version import VERSION, wire_version
from dlog.wire import messages
from dlog.wire.apis import ApiKey
from dlog.wire.frame import parse_response_header

VERSION_USED: Mapping[ApiKey, int] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
    ApiKey.UNREGISTER_BROKER: 0,
    ApiKey.ADD_RAFT_VOTER: 0,
    ApiKey.REMOVE_RAFT_VOTER: 0,
}
PRODUCE_VERSIONS = (9, 12)
"""For `highest_version`: with topic names; from 10 on a refusal names the leader (KIP-951)."""
FETCH_VERSIONS = (12, 17)
"""For `highest_version`: from 13 on with topic ids, from 16 on a refusal names the leader."""
DESCRIBE_CLUSTER_VERSIONS = (0, 2)
"""For `NodeClient.call`: from 2 on with the nodes that are fenced (KIP-1073)."""
DESCRIBE_QUORUM_VERSIONS = (0, 2)
"""From 2 on with directories and addresses (KIP-853)."""
SOFTWARE_NAME = "dlog"
SOFTWARE_VERSION = wire_version(VERSION)

_ERROR_CODE = struct.Struct(">h")

Build = Callable[[Any], Any]
"""Makes a request entity from kio's module of that API and version."""

OnAnswer = Callable[[memoryview, int], None]
"""Takes a response frame and where its body begins; may raise ProtocolError, nothing else."""


def raise_for(code: int, message: str | None = None) -> None:
    """Raise the error of a response; nothing when there is none."""
    if code != NONE:
        raise error_for(code, message or "")


class NodeClient:
    """An open, negotiated connection to one node. Owner: the loop's thread; see `open_node`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # API key -> (lowest, highest) version that the node serves.
        self.served: dict[int, tuple[int, int]] = {}

    @property
    def address(self) -> Address:
        """Where the node listens."""
        return self.connection.address

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self.connection.is_open

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.connection.close()

    async def negotiate(self, timeout_s: float | None = None) -> None:
        """Ask which versions the node serves (KIP-35, KIP-511)."""
        try:
            response = await self._ask_versions(VERSION_USED[ApiKey.API_VERSIONS], timeout_s)
        except UnsupportedVersionError:
            response = await self._ask_versions(0, timeout_s)
        self.served = {
            int(each.api_key): (int(each.min_version), int(each.max_version))
            for each in response.api_keys
        }

    async def _ask_versions(self, version: int, timeout_s: float | None) -> Any:
        def build(module: Any) -> Any:
            if version < 3:
                return module.ApiVersionsRequest()
            return module.ApiVersionsRequest(
                client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
            )

        encode = self._encoder(ApiKey.API_VERSIONS, version, build)
        frame = await self.connection.call(encode, timeout_s)
        # A node that does not know this version answers in version 0, with this error first.
        if len(frame) >= 6 and _ERROR_CODE.unpack_from(frame, 4)[0] == UnsupportedVersionError.code:
            raise UnsupportedVersionError(f"{self.address} does not know ApiVersions {version}")
        response = messages.parse_response(ApiKey.API_VERSIONS, version, frame)
        raise_for(int(response.error_code))
        return response

    def version_of(self, api: ApiKey) -> int:
        """Return the version that is used for `api`; raise UnsupportedVersionError."""
        version = VERSION_USED[api]
        low, high = self.served.get(int(api), (0, -1))
        if not low <= version <= high:
            serves = f"{low} to {high}" if high >= 0 else "none"
            raise UnsupportedVersionError(
                f"{self.address} serves {api.name} {serves}, this client needs {version}"
            )
        return version

    def highest_version(self, api: ApiKey, low: int, high: int) -> int:
        """Return the newest version within [low, high] that the node serves, too.

        Raises UnsupportedVersionError. For the hot calls, which know several versions.
        """
        served_low, served_high = self.served.get(int(api), (0, -1))
        version = min(high, served_high)
        if version < max(low, served_low):
            serves = f"{served_low} to {served_high}" if served_high >= 0 else "none"
            raise UnsupportedVersionError(
                f"{self.address} serves {api.name} {serves}, this client needs {low} to {high}"
            )
        return version

    def send_request(
        self,
        api: ApiKey,
        version: int,
        encode: Encode,
        on_answer: OnAnswer,
        on_error: OnError,
        deadline: float,
        *,
        answered: bool = True,
    ) -> Request:
        """Send a frame made by hand; exactly one callback is called (`Connection.send_request`).

        With `answered` false (produce with acks 0) `on_answer` gets an empty frame once the
        request is written.
        """

        def on_response(frame: memoryview) -> None:
            position = 0
            if answered:
                _, position = parse_response_header(frame, 0, len(frame), api, version)
            on_answer(frame, position)

        return self.connection.send_request(
            encode, on_response, on_error, deadline, answered=answered
        )

    async def call(
        self,
        api: ApiKey,
        build: Build,
        timeout_s: float | None = None,
        *,
        versions: tuple[int, int] | None = None,
    ) -> Any:
        """Send the request that `build` makes and return the response entity.

        In the version that this client uses, or the newest one within `versions`.
        """
        version = self.version_of(api) if versions is None else self.highest_version(api, *versions)
        frame = await self.connection.call(self._encoder(api, version, build), timeout_s)
        return messages.parse_response(api, version, frame)

    async def exchange(
        self, api: ApiKey, version: int, encode: Encode, timeout_s: float | None = None
    ) -> tuple[memoryview, int]:
        """Send a frame made by hand; return the response frame and where its body begins."""
        frame = await self.connection.call(encode, timeout_s)
        _, position = parse_response_header(frame, 0, len(frame), api, version)
        return frame, position

    def _encoder(self, api: ApiKey, version: int, build: Build) -> Encode:
        entity = build(messages.module_of(api, version, "request"))
        client_id = self.connection.options.client_id
        return lambda correlation_id: messages.encode_request(entity, correlation_id, client_id)


async def open_node(
    loop: asyncio.AbstractEventLoop,
    address: Address,
    options: ConnectionOptions,
    counters: TransportCounters | None = None,
) -> NodeClient:
    """Connect and negotiate; raise a TransportError, a WireError or a ProtocolError."""
    deadline = loop.time() + options.connect_timeout_s
    node = NodeClient(await connect(loop, address, options, counters))
    negotiated = False
    try:
        await node.negotiate(max(0.0, deadline - loop.time()))
        negotiated = True
    finally:
        if not negotiated:
            node.close()
    return node
