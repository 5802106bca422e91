"""Client of another node, for what only that node knows.

For operators' requests, which are rare: each has a connection of its own.
"""

import asyncio
from collections.abc import Callable

from dlog import transport
from dlog.errors import BrokerNotAvailableError
from dlog.transport import Address, ConnectionOptions
from dlog.types import NodeId
from dlog.wire import messages
from dlogd.metadata.state.image import ClusterImage
from dlogd.server.handlers import topology
from dlogd.server.handlers.quorum import FORWARDER
from dlogd.server.response_builder import Entity

TIMEOUT_S = 5.0
ASKED_MAX = 8
"""Connections at a time: one client may ask thousandfold, and all its questions end here."""


class NodeAsker:
    """Carries decoded requests to other nodes. Owner: the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, image: Callable[[], ClusterImage]) -> None:
        self._loop = loop
        self._image = image
        self._options = ConnectionOptions(
            client_id=FORWARDER, connect_timeout_s=TIMEOUT_S, request_timeout_s=TIMEOUT_S
        )
        self._turns = asyncio.Semaphore(ASKED_MAX)

    async def ask(self, node_id: NodeId, request: Entity) -> Entity:
        """Return the answer; raise BrokerNotAvailableError, TransportError or ProtocolError."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise BrokerNotAvailableError(f"Too many ask node {node_id}") from None
        try:
            return await self._ask(node_id, request)
        finally:
            self._turns.release()

    async def _ask(self, node_id: NodeId, request: Entity) -> Entity:
        node = self._image().nodes.get(node_id)
        known = None if node is None else topology.address_of(node, "")
        if known is None:
            raise BrokerNotAvailableError(f"No node knows the address of node {node_id} is")
        address = Address(known.host, known.port)
        connection = await transport.connect(self._loop, address, self._options)
        try:
            frame = await connection.call(
                lambda correlation_id: messages.encode_request(request, correlation_id, FORWARDER)
            )
        finally:
            connection.close()
        return messages.parse_response(request.__api_key__, request.__version__, frame)
