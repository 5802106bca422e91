"""Nonces and ids: each comes from the `Entropy` that a part is given, and none comes twice."""

import asyncio
import random
from uuid import UUID

from dlog.transport import Address, ConnectionOptions
from dlog.types import NodeId
from dlogd.internal import messages
from dlogd.internal.messages import Replicate
from dlogd.internal.node_channel import Dialler, StreamIntroduction
from dlogd.metadata.raft import handshake
from dlogd.metadata.raft.boot import open_disk
from dlogd.metadata.raft.transport import RaftTransport
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.runtime.randomness import Randomness, SystemEntropy, system_randomness
from tests.fakes.bounded_runs import check
from tests.fakes.disk import Machine
from tests.fakes.manager import ManagerHost
from tests.fakes.raft_handshakes import HOST, SECRET, TIMINGS, Stranger, hello_of

OPTIONS = ConnectionOptions(client_id="test")


class Noted(SystemEntropy):
    """The system's entropy; it keeps what it has given."""

    def __init__(self) -> None:
        self.tokens: list[bytes] = []
        self.ids: list[UUID] = []

    def token(self, count: int) -> bytes:
        self.tokens.append(super().token(count))
        return self.tokens[-1]

    def uuid(self) -> UUID:
        self.ids.append(super().uuid())
        return self.ids[-1]


def transport_of(node_id: int, entropy: Noted) -> RaftTransport:
    return RaftTransport(
        hello=hello_of(node_id),
        secret=SECRET,
        randomness=Randomness(random.Random(1), entropy),
        timings=TIMINGS,
        on_up=lambda *_: None,
        on_down=lambda _: None,
        on_message=lambda *_: None,
    )


def test_each_nonce_of_raft_is_given_by_entropy() -> None:
    async def work() -> None:
        entropy = Noted()
        transport = transport_of(1, entropy)
        await transport.start(HOST, 0)
        nonces: list[bytes] = []
        dialled = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonces.append(handshake.decode_hello(await Stranger(reader, writer).frame()).nonce)
            writer.close()
            dialled.set()

        server = await asyncio.start_server(serve, HOST, 0)
        async with server:
            for _ in range(5):
                stranger = Stranger(*await asyncio.open_connection(HOST, transport.port))
                stranger.send(handshake.encode_hello(hello_of(9)))
                nonces.append(handshake.decode_hello(await stranger.frame()).nonce)
                stranger.writer.close()
            transport.set_targets({2: ((HOST, server.sockets[0].getsockname()[1]),)})
            await dialled.wait()
            await transport.close()
        assert len(nonces) == len(set(nonces)) >= 6
        assert set(nonces) <= set(entropy.tokens)

    check(work)


def test_each_nonce_of_an_internal_connection_is_given_by_entropy() -> None:
    async def work() -> None:
        entropy = Noted()
        hellos: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hellos.append(await Stranger(reader, writer).frame())
            answer = messages.encode_hello_answer(bytes(messages.NONCE_BYTES), 0)
            # The correlation id of a request begins at its fifth byte, that of an answer at once.
            writer.write(answer[:4] + hellos[-1][4:8] + answer[8:])
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, HOST, 0)
        async with server:
            address = Address(HOST, server.sockets[0].getsockname()[1])
            loop = asyncio.get_running_loop()
            dialler = Dialler(loop, secret=SECRET, cluster_id="c", entropy=entropy)
            for _ in range(3):
                (await dialler.connect(address, OPTIONS)).close()
        nonces = [each[-messages.NONCE_BYTES :] for each in hellos]
        assert nonces == entropy.tokens and len(set(nonces)) == 3

    check(work)


def test_each_nonce_of_a_stream_is_given_by_entropy() -> None:
    entropy = Noted()
    request = Replicate(cluster_id="c", node_id=NodeId(1), node_epoch=1, leader_id=NodeId(2))
    hellos = [StreamIntroduction(SECRET, request, entropy).hello() for _ in range(3)]
    assert [each[-messages.NONCE_BYTES :] for each in hellos] == entropy.tokens
    assert len(set(entropy.tokens)) == 3


def test_ids_of_directories_are_given_by_entropy() -> None:
    async def work() -> None:
        entropy = Noted()
        host = ManagerHost(2)
        host.entropy = entropy
        manager = await host.start()
        assert set(manager.directory_ids) <= set(entropy.ids)
        assert len(set(manager.directory_ids)) == 2
        await host.stop()

    check(work)
    entropy = Noted()
    directory = Machine(random.Random(1), ("/data",)).boot().open_directory("/data/meta")
    voters = Voters.of([Voter(node_id=1, host="h", port=1)])
    disk = open_disk(directory, 1, voters, entropy)
    assert entropy.ids == [disk.log.directory_id]


def test_the_system_s_entropy_follows_no_seed() -> None:
    """Two processes may be seeded alike."""
    tokens, ids, jitter = set(), set(), set()
    for _ in range(3):
        random.seed(1)
        given = system_randomness()
        for each in (given, given.apart()):
            tokens.add(each.entropy.token(16))
            ids.add(each.entropy.uuid())
            jitter.add(each.rng.random())
    assert len(tokens) == len(ids) == len(jitter) == 6
