"""Strangers at the Raft port do not push out a peer that is about to prove itself."""

import asyncio
from collections.abc import Sequence

import pytest

from dlogd.metadata.raft import handshake
from dlogd.metadata.raft.handshake import Proofs
from dlogd.net import peer_acceptor
from dlogd.net.connection_admission import Bounds, Rate
from tests.fakes.bounded_runs import check
from tests.fakes.manager import until
from tests.fakes.raft_handshakes import HOST, SECRET, Side, Stranger, hello_of

SMALL = Bounds(
    count_max=8,
    per_address_max=4,
    per_address_rate=Rate(per_s=1, burst=20),
    rate=Rate(per_s=100, burst=200),
    reserved_count=4,
)


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_acceptor, "BOUNDS_LOOPBACK", SMALL)
    # A crowd takes long to come while other work has the cores.
    monkeypatch.setattr(peer_acceptor, "UNPROVEN_LOOPBACK_S", 60.0)


async def connect(side: Side, source: str) -> Stranger:
    """Connect from an address of the loopback range."""
    stranger = Stranger(
        *await asyncio.open_connection(HOST, side.transport.port, local_addr=(source, 0))
    )
    side.kept.append(stranger)  # a collected one would be closed
    return stranger


async def crowd(side: Side, sources: Sequence[str]) -> list[Stranger]:
    return [await connect(side, each) for each in sources]


async def is_ended(stranger: Stranger, patience_s: float = 0.1) -> bool:
    """Whether the node has closed a connection that says nothing."""
    try:
        async with asyncio.timeout(patience_s):
            return await stranger.reader.read() == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def prove(stranger: Stranger, node_id: int) -> None:
    sent = handshake.encode_hello(hello_of(node_id))
    stranger.send(sent)
    proofs = Proofs(SECRET, sent, await stranger.frame())
    stranger.send(proofs.proof(of_dialler=True))
    assert await stranger.frame() == proofs.proof(of_dialler=False)


def test_the_newest_of_an_address_gives_way_and_the_first_can_still_prove() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            first = await connect(side, "127.0.0.2")
            later = await crowd(side, ["127.0.0.2"] * 10)
            counts = side.transport.refusals.counts
            await until(lambda: counts["address_full"] == 7)
            assert [await is_ended(each, 10.0) for each in later[3:]] == [True] * 7
            assert [await is_ended(each) for each in later[:3]] == [False] * 3
            await prove(first, 9)
            assert side.up == [9]
            assert counts["address_full"] == 7

    check(work)


def test_strangers_of_other_addresses_end_nobody_who_waits() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            first = await connect(side, "127.0.0.2")
            for number in range(5):
                await crowd(side, [f"127.0.1.{1 + number}"] * 4)
            assert side.transport.entrance.admission.count == SMALL.count_max
            await prove(first, 9)
            assert side.up == [9]

    check(work)


def test_a_voter_has_places_that_strangers_cannot_take() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            side.transport.set_targets({9: (("127.0.0.9", 1),)})
            for number in range(20):
                await crowd(side, [f"127.0.1.{1 + number}"] * 4)
            await prove(await connect(side, "127.0.0.9"), 9)
            assert side.up == [9]

    check(work)


def test_a_flood_of_one_address_is_refused_by_its_rate() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            for _ in range(60):
                (await connect(side, "127.0.0.2")).writer.close()
            await asyncio.sleep(0)
            counts = side.transport.refusals.counts
            assert counts["address_rate"] >= 60 - SMALL.per_address_rate.burst - 5
            # Others have a rate of their own.
            await prove(await connect(side, "127.0.0.3"), 9)
            assert side.up == [9]

    check(work)


def test_a_place_is_given_back_by_a_proof_and_by_the_end() -> None:
    async def work() -> None:
        async with Side(1).listening() as side:
            admission = side.transport.entrance.admission
            proven = await connect(side, "127.0.0.2")
            await prove(proven, 9)
            silent = await connect(side, "127.0.0.2")
            while admission.count != 1:
                await asyncio.sleep(0.01)
            silent.writer.close()
            while admission.count:
                await asyncio.sleep(0.01)
            assert admission.is_known("127.0.0.2")
            assert not admission.is_known("127.0.0.3")

    check(work)
