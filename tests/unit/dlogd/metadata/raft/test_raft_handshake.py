"""What a stranger, a node of another cluster and a node before its upgrade get at the Raft port."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dlogd.metadata.raft import handshake, messages
from dlogd.metadata.raft.handshake import MAGIC, PROOF_BYTES, Hello, Proofs, Seal
from tests.fakes.bounded_runs import check
from tests.fakes.raft_handshakes import HOST, SECRET, Side, Stranger, hello_of

OTHER_SECRET = b"another one, and just as long too"


def refusal(code: int) -> bytes:
    body = MAGIC + b"\0\2" + code.to_bytes(2, "big")
    return len(body).to_bytes(4, "big") + body


def test_a_stranger_with_the_public_cluster_id_gets_no_proof() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            stranger = await Stranger.of(side)
            sent = handshake.encode_hello(hello_of(9))
            stranger.send(sent)
            answer = await stranger.frame()
            assert handshake.decode_hello(answer).node_id == 1  # nothing is behind the hello
            # Silence proves nothing, and the listener says no more.
            assert await stranger.rest() == b""
            assert side.transport.refusals.counts == {"no_proof": 1}

    check(work)


def test_a_wrong_proof_is_told_so_and_answered_with_no_proof() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            stranger = await Stranger.of(side)
            sent = handshake.encode_hello(hello_of(9))
            stranger.send(sent)
            answer = await stranger.frame()
            stranger.send(Proofs(OTHER_SECRET, sent, answer).proof(of_dialler=True))
            assert await stranger.rest() == refusal(58)
            assert side.transport.refusals.counts == {"wrong_proof": 1}

    check(work)


def test_the_right_proof_is_answered_with_the_listeners() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            stranger = await Stranger.of(side)
            sent = handshake.encode_hello(hello_of(9))
            stranger.send(sent)
            proofs = Proofs(SECRET, sent, await stranger.frame())
            stranger.send(proofs.proof(of_dialler=True))
            assert await stranger.frame() == proofs.proof(of_dialler=False)
            assert side.up == [9]
            stranger.writer.close()

    check(work)


@pytest.mark.parametrize("what", ["altered", "repeated"])
def test_a_frame_that_was_altered_or_repeated_ends_the_connection(what: str) -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            stranger = await Stranger.of(side)
            sent = handshake.encode_hello(hello_of(9))
            stranger.send(sent)
            proofs = Proofs(SECRET, sent, await stranger.frame())
            stranger.send(proofs.proof(of_dialler=True))
            await stranger.frame()
            seal = Seal(proofs.key(of_dialler=True))
            body = messages.encode({"type": "response_vote", "term": 5})
            good = body + seal.mac(body)
            stranger.send(good)
            body = messages.encode({"type": "response_vote", "term": 6})
            bad = bytearray(body + seal.mac(body))
            bad[len(body) - 1] ^= 1
            stranger.send(good if what == "repeated" else bytes(bad))
            await stranger.rest()
            assert [message["term"] for _, message in side.messages] == [5]

    check(work)


def test_a_stranger_cannot_announce_more_than_a_hello() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            stranger = await Stranger.of(side)
            stranger.writer.write((1 << 20).to_bytes(4, "big") + MAGIC)
            assert await stranger.rest() == b""
            assert side.transport.refusals.counts == {"malformed": 1}

    check(work)


@pytest.mark.parametrize(
    ("hello", "code", "reason"),
    [
        (hello_of(9, cluster="not your cluster"), 104, "wrong_cluster"),
        # Such a node wants the listener's proof first.
        (hello_of(9, version=1), 35, "version"),
        (hello_of(9, version=3), 35, "version"),
    ],
)
def test_a_refused_hello_gets_a_reason_and_no_nonce(hello: Hello, code: int, reason: str) -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            stranger = await Stranger.of(side)
            stranger.send(handshake.encode_hello(hello))
            assert await stranger.rest() == refusal(code)
            assert side.transport.refusals.counts == {reason: 1}

    check(work)


def test_refusals_are_counted_and_told_once_for_an_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            for number in range(40):
                stranger = await Stranger.of(side)
                stranger.send(handshake.encode_hello(hello_of(9, cluster=f"other {number}")))
                await stranger.rest()
            assert side.transport.refusals.counts == {"wrong_cluster": 40}

    check(work)
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(said) == 1
    assert "reason=wrong_cluster" in said[0] and "other 0" in said[0]


def test_two_nodes_meet() -> None:
    async def work() -> None:
        async with Side(1).listening() as one, Side(2).listening() as two:
            two.transport.set_targets({1: ((HOST, one.transport.port),)})
            await asyncio.gather(one.changed.wait(), two.changed.wait())
            assert (one.up, two.up) == ([2], [1])

    check(work)


def test_a_node_with_another_secret_learns_why_it_is_alone() -> None:
    async def work() -> None:
        async with Side(1).listening() as one, Side(2, OTHER_SECRET).listening() as two:
            two.transport.set_targets({1: ((HOST, one.transport.port),)})
            while "does not know the secret" not in two.transport.trouble(1):
                await asyncio.sleep(0.01)
            assert not one.up and not two.up

    check(work)


class OlderListener:
    """A node before its upgrade: answers version 1 only, and proves first."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.hellos: list[int] = []
        self.proofs: list[bool] = []
        """Whether each proof that came was right."""
        self.proved = asyncio.Event()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["OlderListener"]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stranger = Stranger(reader, writer)
        try:
            dialled = await stranger.frame()
            self.hellos.append(dialled[len(MAGIC) + 1])
            if self.hellos[-1] == 1:
                own = handshake.encode_hello(hello_of(1, version=1))
                proofs = Proofs(self._secret, dialled, own)
                stranger.send(own + proofs.proof(of_dialler=False))
                proof = await stranger.frame()
                self.proofs.append(proof == proofs.proof(of_dialler=True))
                self.proved.set()
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def test_a_node_before_its_upgrade_is_dialled_in_its_own_order() -> None:
    async def work() -> None:
        async with OlderListener(SECRET).listening() as older, Side(2).listening() as two:
            two.transport.set_targets({1: ((HOST, older.port),)})
            await asyncio.gather(older.proved.wait(), two.changed.wait())
            assert older.hellos == [2, 1]
            assert older.proofs == [True]
            assert two.up == [1]

    check(work)


def test_nothing_is_proved_to_an_older_listener_without_the_secret() -> None:
    """Somebody at the address of a node claims to be an old one, to collect a proof."""

    async def work() -> None:
        async with OlderListener(OTHER_SECRET).listening() as older, Side(2).listening() as two:
            two.transport.set_targets({1: ((HOST, older.port),)})
            while older.hellos.count(1) < 3:
                await asyncio.sleep(0.01)
            assert not older.proofs and not two.up

    check(work)


@pytest.mark.parametrize("answer", [hello_of(1, cluster="other"), hello_of(3)])
def test_nothing_is_proved_to_a_listener_that_is_not_the_one_wanted(answer: Hello) -> None:
    """A program at the address of a node collects proofs."""

    async def work() -> None:
        behind_hellos: list[bytes] = []
        two_came = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stranger = Stranger(reader, writer)
            await stranger.frame()
            stranger.send(handshake.encode_hello(answer))
            behind_hellos.append(await stranger.rest())
            if len(behind_hellos) == 2:
                two_came.set()

        server = await asyncio.start_server(serve, HOST, 0)
        async with server, Side(2).listening() as two:
            two.transport.set_targets({1: ((HOST, server.sockets[0].getsockname()[1]),)})
            await two_came.wait()
            assert behind_hellos[:2] == [b"", b""]
            assert not two.up

    check(work)


def test_golden_bytes() -> None:
    """A change of these needs a new version number (docs/formats/raft-wire.md)."""
    dialler = handshake.encode_hello(hello_of(1, wanted_id=2))
    assert dialler.hex() == (
        f"646c6f6772616674 0002 0001 63 00000001 {1:032x} 00000002 {'01' * 32}".replace(" ", "")
    )
    listener = handshake.encode_hello(hello_of(2))
    proofs = Proofs(SECRET, dialler, listener)
    assert proofs.proof(of_dialler=True).hex()[:16] == "d5b0cdc4860c0c37"
    assert proofs.proof(of_dialler=False).hex()[:16] == "c0ee040a89cd970c"
    assert len(proofs.proof(of_dialler=True)) == PROOF_BYTES
    assert handshake.encode_refusal(104).hex() == "646c6f677261667400020068"
