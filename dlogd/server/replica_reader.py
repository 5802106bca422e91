"""Reader of batches from a replica on another node, including uncommitted ones.

For what is damaged here: rare, so each reading has a connection of its own. It leads to the
internal listener: clients may not read what is not committed. The same offset in the
same leader epoch is the same batch everywhere, committed or not: who asks looks at the epoch.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from dlog.batch.header import (
    BATCH_STRUCT,
    HEADER_BYTES,
    LENGTH,
    next_offset_of,
    size_of,
)
from dlog.errors import NONE, BrokerNotAvailableError, ProtocolError, error_for
from dlog.transport import Connection, ConnectionOptions
from dlog.types import NodeId, TopicId
from dlog.wire import fetch_client
from dlog.wire.apis import ApiKey
from dlog.wire.fetch import COMPARING_REPLICA_ID, FetchRequest
from dlog.wire.frame import parse_response_header
from dlogd.server.handlers.quorum import FORWARDER

TIMEOUT_S = 10.0
FETCH_VERSION = 13  # the first that names topics by their ids
FETCH_BYTES = 1 << 20
WAIT_MS = 100
RACK = "-"
"""Of no node: whoever names a rack may read from followers (KIP-392), and is sent to none here."""
EMPTY_MAX = 20
"""So often in a row may a replica have nothing before it is given up."""


OpenRequests = Callable[[NodeId, ConnectionOptions], Awaitable[Connection]]


class ReplicaReader:
    """Reads from other nodes. Owner: the event loop's thread."""

    def __init__(self, open_requests: OpenRequests) -> None:
        """`open_requests` opens a connection to the internal listener of a node."""
        self._open = open_requests
        self._options = ConnectionOptions(
            client_id=FORWARDER, connect_timeout_s=TIMEOUT_S, request_timeout_s=TIMEOUT_S
        )

    async def read(
        self, node_id: NodeId, topic_id: TopicId, partition: int, first: int, end: int
    ) -> AsyncIterator[bytes]:
        """Yield record sets from the batch that holds `first` on, until `end` is reached.

        Raises TransportError, ProtocolError, or the WireError that the node answers with.
        """
        connection = await self._open(node_id, self._options)
        try:
            offset, empty = first, 0
            while offset < end:
                records = await self._fetch(connection, topic_id, partition, offset)
                reached = _end_of(records)
                if reached <= offset:
                    empty += 1
                    if empty > EMPTY_MAX:
                        raise BrokerNotAvailableError(f"Node {node_id} has nothing at {offset}")
                    continue
                offset, empty = reached, 0
                yield records
        finally:
            connection.close()

    async def _fetch(
        self, connection: Connection, topic_id: TopicId, partition: int, offset: int
    ) -> bytes:
        request = FetchRequest(
            replica_id=COMPARING_REPLICA_ID,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[(topic_id, [(partition, -1, offset, -1, -1, FETCH_BYTES)])],
            forgotten=[],
            rack_id=RACK,
        )
        frame = await connection.call(
            lambda correlation_id: fetch_client.encode_request(
                FETCH_VERSION, correlation_id, FORWARDER, request
            )
        )
        _, position = parse_response_header(frame, 0, len(frame), ApiKey.FETCH, FETCH_VERSION)
        response = fetch_client.parse_response(frame, position, len(frame), FETCH_VERSION)
        if response.error_code != NONE:
            raise error_for(response.error_code)
        for _, rows in response.topics:
            for fetched, start in rows:
                if fetched.error_code != NONE:
                    raise error_for(fetched.error_code)
                return bytes(frame[start : start + max(0, fetched.records_bytes)])
        raise ProtocolError(f"{connection.address} answered a fetch without its partition")


def _end_of(records: bytes) -> int:
    """Return the offset after the last whole batch; -1: there is none."""
    position, end = 0, -1
    while len(records) - position >= HEADER_BYTES:
        fields = BATCH_STRUCT.unpack_from(records, position)
        position += size_of(fields)
        if fields[LENGTH] < 0 or position > len(records):
            break
        end = next_offset_of(fields)
    return end
