"""A socket on the listener that is for nodes, held by somebody who says what it likes.

It speaks as docs/formats/replication.md tells, and knows the cluster's secret, or not: what a node
does that went wrong, or somebody who has its key.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dlog.errors import ProtocolError
from dlog.types import NodeId
from dlogctl.sandbox.layout import HOST
from dlogd.internal.messages import Replicate
from dlogd.internal.node_channel import StreamIntroduction
from dlogd.replication import protocol
from dlogd.replication.protocol import Refusal, Subscription
from dlogd.runtime.randomness import SystemEntropy
from tests.cluster.nodes import Cluster, Node
from tests.cluster.stage import Log

ANSWER_S = 5.0


class Impostor:
    """One replication stream that a leader has let in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._handles = 0

    async def frame(self) -> bytes:
        """Return the payload of the next frame; raise IncompleteReadError when it is over."""
        async with asyncio.timeout(ANSWER_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return await self._reader.readexactly(size)

    async def _first(self, wanted: int) -> tuple[memoryview, int, int]:
        while True:
            payload = memoryview(await self.frame())
            kind, count, position = protocol.parse_kind(payload, 0, len(payload))
            if kind == wanted:
                return payload, count, position

    async def claim(self, log: Log, leader_epoch: int, offset: int) -> Refusal:
        """Claim to have all below an offset, on stable storage; return why that does not count.

        Raises TimeoutError when the leader does not refuse it.
        """
        self._handles += 1
        handle = self._handles
        claimed = Subscription(
            handle, log.key.topic_id, log.key.partition, leader_epoch, offset, -1, 0, offset
        )
        self._writer.write(protocol.encode_subscribe([claimed]))
        self._writer.write(protocol.encode_progress(0, [(handle, offset, offset, 0)]))
        payload, count, position = await self._first(protocol.REFUSED)
        (refusal,) = protocol.parse_refused(payload, position, len(payload), count)
        # It answers this when it has taken everything before.
        self._writer.write(protocol.encode_progress(0, []))
        await self._first(protocol.DATA)
        return refusal


@asynccontextmanager
async def impostor(
    cluster: Cluster,
    leader: Node,
    *,
    node_id: int,
    node_epoch: int,
    secret: bytes | None = None,
) -> AsyncIterator[Impostor]:
    """Give a stream to a leader by the name of a node; with the cluster's secret, or another.

    Raises ProtocolError when the leader refuses it, IncompleteReadError when it just closes.
    """
    status = await leader.status()
    assert status is not None
    known = (cluster.directory / "secret").read_text().strip().encode()
    wanted = Replicate(
        cluster_id=status["cluster_id"],
        node_id=NodeId(node_id),
        node_epoch=node_epoch,
        leader_id=NodeId(leader.node_id),
    )
    introduction = StreamIntroduction(known if secret is None else secret, wanted, SystemEntropy())
    reader, writer = await asyncio.open_connection(HOST, leader.internal_port)
    try:
        found = Impostor(reader, writer)
        writer.write(introduction.hello())
        request = introduction.reply(memoryview(await found.frame()))
        if request is None:
            raise ProtocolError("the leader wants no request")
        writer.write(request)
        introduction.reply(memoryview(await found.frame()))
        yield found
    finally:
        writer.transport.abort()
