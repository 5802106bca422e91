"""What a stranger collects at the listeners of a node does not predict what the node says next."""

import asyncio
import random
from pathlib import Path
from uuid import UUID

from dlog.client.admin import Admin
from dlogctl.sandbox.layout import HOST
from dlogd.internal import messages
from dlogd.internal.messages import NONCE_BYTES
from dlogd.metadata.raft import handshake
from dlogd.metadata.raft.handshake import Hello
from tests.cluster.nodes import Node, cluster_of
from tests.cluster.running import run
from tests.fakes.mersenne import STATE_WORDS, WORD_BYTES, rebuilt

ENOUGH = STATE_WORDS * WORD_BYTES // NONCE_BYTES
"""Nonces that hold the whole state of a Mersenne Twister."""
FURTHER = 12
WORDS = 1000
"""As many of those that would come next are compared."""


def test_the_state_of_a_generator_can_be_rebuilt() -> None:
    """Otherwise the tests below could not fail."""
    rng = random.Random(1)
    seen = [rng.randbytes(NONCE_BYTES) for _ in range(ENOUGH + 3)]
    found = rebuilt(seen)
    assert [found.randbytes(NONCE_BYTES) for _ in range(FURTHER)] == [
        rng.randbytes(NONCE_BYTES) for _ in range(FURTHER)
    ]


async def _answer(port: int, frame: bytes) -> bytes:
    """Return the first frame that comes for a frame."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(frame)
        async with asyncio.timeout(5):
            size = int.from_bytes(await reader.readexactly(4), "big")
            return await reader.readexactly(size)
    finally:
        writer.transport.abort()


async def _nonces(node: Node, cluster_id: str, count: int) -> list[bytes]:
    """Collect nonces of the internal listener."""
    hello = messages.encode_hello(cluster_id, bytes(NONCE_BYTES), 1)
    answers = [await _answer(node.internal_port, hello) for _ in range(count)]
    return [answer[-NONCE_BYTES:] for answer in answers]


async def _raft_nonces(node: Node, cluster_id: str, count: int) -> list[bytes]:
    """Collect nonces of the Raft port, by the name of a node that is not there."""
    hello = Hello(
        cluster=cluster_id,
        node_id=77,
        directory_id=UUID(int=1),
        wanted_id=-1,
        nonce=bytes(NONCE_BYTES),
    )
    body = handshake.encode_hello(hello)
    frame = len(body).to_bytes(4, "big") + body
    answers = [await _answer(node.raft_port, frame) for _ in range(count)]
    return [answer[len(body) - NONCE_BYTES : len(body)] for answer in answers]


def test_nonces_and_ids_are_not_predicted(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, 1) as cluster:
            node = cluster.node(1)
            status = await node.status()
            assert status is not None
            cluster_id = status["cluster_id"]
            for collect in (_nonces, _raft_nonces):
                seen = await collect(node, cluster_id, ENOUGH)
                assert len(set(seen)) == ENOUGH
                next_ones = await collect(node, cluster_id, FURTHER)
                # The node may make other numbers in between: look at all that follow.
                predicted = rebuilt(seen).randbytes(WORD_BYTES * WORDS)
                assert not [each for each in next_ones if each in predicted]
            async with Admin([node.client_address]) as admin:
                # Again and again: what the node itself draws in between spoils a collection.
                for name in ("a", "b", "c", "d", "e"):
                    seen = await _nonces(node, cluster_id, ENOUGH)
                    topic_id = await admin.create_topic(name, partitions=1, replication_factor=1)
                    expect_unforeseen(topic_id, seen)

    run(work)


def expect_unforeseen(topic_id: UUID, seen: list[bytes]) -> None:
    """Fail when an id follows from the nonces: at any of the words that come next."""
    for skipped in range(WORDS):
        found = rebuilt(seen)
        found.randbytes(WORD_BYTES * skipped)
        assert UUID(int=found.getrandbits(128), version=4) != topic_id
