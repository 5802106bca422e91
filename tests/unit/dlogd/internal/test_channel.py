"""The internal listener serves only who proves the secret, and believes only who does."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dlog.errors import ProtocolError, TransportError
from dlog.transport import Address, ConnectionOptions
from dlog.types import NodeId
from dlogd.controller.leases import Probed, ProbeOrder
from dlogd.controller.liveness_service import LivenessService
from dlogd.controller.own_lease import OwnLease
from dlogd.controller.prober import Prober
from dlogd.internal import messages
from dlogd.internal.messages import Probe
from dlogd.internal.node_channel import Dialler, NodeChannel
from dlogd.internal.node_listener import COMPLAINTS_MAX, Door, NodeListener
from dlogd.runtime.clock import SystemClock
from tests.fakes.bounded_runs import check
from tests.fakes.randomness import SeededRandomness

SECRET = b"a secret of some length"
OPTIONS = ConnectionOptions(client_id="t", inflight_max=1, request_timeout_s=2)
PROBE = Probe(cluster_id="c", node_id=NodeId(1), controller_epoch=1)


class Listening:
    def __init__(self) -> None:
        self.lease = OwnLease()
        self.lease.begin(7)
        self.service = LivenessService(
            NodeId(2),
            self.lease,
            clock=SystemClock(),
            cluster_id=lambda: "c",
            image_version=lambda: 1,
        )
        self.port = 0
        self.refusals: dict[str, int] = {}

    @asynccontextmanager
    async def open(self, secret: bytes | None = SECRET) -> AsyncIterator[Address]:
        loop = asyncio.get_running_loop()
        entropy = SeededRandomness(5).entropy
        door = secret and Door(
            secret=secret, cluster_id="c", new_nonce=lambda: entropy.token(messages.NONCE_BYTES)
        )
        server = NodeListener(loop, self.service, idle_timeout_s=10, door=door or None)
        self.refusals = server.refusals.counts
        self.port = await server.start("127.0.0.1", 0)
        try:
            yield Address("127.0.0.1", self.port)
        finally:
            await server.stop()


async def probe(channel: NodeChannel) -> int:
    answer = await channel.call(lambda number: messages.encode_probe(PROBE, number))
    return messages.decode_probe_answer(answer).node_epoch


def dialler(secret: bytes | None = SECRET, cluster_id: str = "c") -> Dialler:
    loop = asyncio.get_running_loop()
    return Dialler(loop, secret=secret, cluster_id=cluster_id, entropy=SeededRandomness(6).entropy)


def test_who_knows_the_secret_is_served_again_and_again() -> None:
    async def scenario() -> None:
        async with Listening().open() as address:
            channel = await dialler().connect(address, OPTIONS)
            assert [await probe(channel) for _ in range(3)] == [7, 7, 7]
            channel.close()

    check(scenario)


@pytest.mark.parametrize("secret", [None, b"another secret, also long"])
def test_who_does_not_know_it_is_cut_off(secret: bytes | None) -> None:
    async def scenario() -> None:
        listening = Listening()
        async with listening.open() as address:
            channel = await dialler(secret).connect(address, OPTIONS)
            with pytest.raises((TransportError, ProtocolError)):
                await probe(channel)
            assert listening.service.counters.probes_total == 0

    check(scenario)


def test_a_node_of_another_cluster_is_told_so() -> None:
    async def scenario() -> None:
        async with Listening().open() as address:
            with pytest.raises(ProtocolError, match="another cluster"):
                await dialler(cluster_id="other").connect(address, OPTIONS)

    check(scenario)


def test_another_cluster_gets_no_nonce_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        listening = Listening()
        async with listening.open() as address:
            for _ in range(30):
                reader, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(messages.encode_hello("not your cluster", bytes(32), 9))
                # The length, the correlation id, the error code, and the end of the connection.
                assert await reader.read() == bytes.fromhex("00000006 00000009 0068")
                writer.close()
            assert listening.refusals == {"wrong_cluster": 30}

    check(scenario)
    said = [each.getMessage() for each in caplog.records if "wrong_cluster" in each.getMessage()]
    assert len(said) == 1 and "reason=wrong_cluster" in said[0]


@pytest.mark.parametrize("secret", [None, b"another secret, also long"])
def test_an_answer_without_the_secret_proves_nothing(secret: bytes | None) -> None:
    async def scenario() -> None:
        async with Listening().open(secret) as address:
            prober = Prober(
                asyncio.get_running_loop(),
                lambda: PROBE,
                timeout_s=2,
                options=OPTIONS,
                dialler=dialler(),
            )
            order = ProbeOrder(node_id=NodeId(2), node_epoch=7, number=1)
            assert await prober.probe(order, address) == (Probed.SILENT, None)

    check(scenario)


@pytest.mark.parametrize("place", [8, 20, -1])
def test_what_was_altered_or_repeated_ends_the_connection(place: int) -> None:
    async def scenario() -> None:
        listening = Listening()
        async with listening.open() as address:
            channel = await dialler().connect(address, OPTIONS)
            seals = channel._seals
            assert seals is not None
            sent = b""

            def altered(number: int) -> bytes:
                nonlocal sent
                sent = messages.encode_probe(PROBE, number)
                frame = bytearray(seals.seal(sent))
                frame[place] ^= 1
                return bytes(frame)

            with pytest.raises((TransportError, ProtocolError)):
                await channel._connection.call(altered)
            assert listening.service.counters.probes_total == 0

    check(scenario)


def test_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def work() -> None:
        async with Listening().open() as address:
            for _ in range(3 * COMPLAINTS_MAX):
                reader, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(b"\x7f" * 100)
                await reader.read()
                writer.close()

    asyncio.run(work())
    levels = [each.levelno for each in caplog.records if "broke the protocol" in each.message]
    assert len(levels) == 3 * COMPLAINTS_MAX
    assert levels.count(logging.WARNING) == COMPLAINTS_MAX
