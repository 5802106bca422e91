"""Strangers who only hold connections, and strangers who only want to learn nonces."""

import asyncio

from dlogd.metadata.raft import handshake
from dlogd.metadata.raft.handshake import NONCE_BYTES, RefusedPeerError
from dlogd.metadata.state.encoding import MalformedError
from tests.attacks.honest import timed
from tests.attacks.scene import Scene
from tests.attacks.strangers import hello
from tests.cluster.nodes import get_page

IDLE = 64
HELLOS = 78
"""So many nonces of 32 bytes give away the state of Python's own generator."""


def test_idle_http_connections(scene: Scene) -> None:
    """64 connections to the operators' port that ask for nothing."""
    seconds = scene.pick(short=2.0, long=10.0)

    async def work() -> None:
        async with scene.victims(1) as victims:
            host, _, port = victims.leader.http_address.rpartition(":")
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(IDLE)]

            async def probe() -> None:
                status, _ = await get_page(victims.leader.http_address, "/livez")
                assert status == 200

            times = await timed(probe, seconds)
            for _, writer in idle:
                writer.close()
        scene.bound("failures of probes", times.failures, at_most=0)
        scene.bound("longest probe", times.max_ms, "ms", at_most=100, short=2_000, is_timing=True)

    scene.run(work)


async def answer_to(port: int, cluster_id: str) -> bytes:
    """Return the first frame that a Raft port answers to a hello."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello(cluster_id))
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size)
    finally:
        writer.transport.abort()


def has_nonce(answer: bytes) -> bool:
    """Say whether a listener introduced itself instead of refusing."""
    try:
        handshake.expect_no_refusal(answer)
        return len(handshake.decode_hello(answer).nonce) == NONCE_BYTES
    except RefusedPeerError:
        return False
    except MalformedError:
        return len(answer) >= NONCE_BYTES


def test_hellos_of_the_curious(scene: Scene) -> None:
    """78 hellos of another cluster, and 78 of this one by somebody without its secret."""

    async def work() -> None:
        async with scene.victims(1) as victims:
            status = await victims.leader.status()
            assert status is not None
            port = victims.leader.raft_port
            others = [await answer_to(port, "another") for _ in range(HELLOS)]
            own = [await answer_to(port, status["cluster_id"]) for _ in range(HELLOS)]
        scene.bound("answers to another cluster", len(others), at_least=HELLOS)
        scene.bound("nonces in them", sum(map(has_nonce, others)), at_most=0)
        told = sum(map(has_nonce, own))
        scene.bound("nonces to who knows the cluster", told, at_least=1)
        nonces = {handshake.decode_hello(each).nonce for each in own if has_nonce(each)}
        scene.bound("nonces repeated", told - len(nonces), at_most=0)

    scene.run(work)
