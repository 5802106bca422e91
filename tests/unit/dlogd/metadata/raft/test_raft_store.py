"""Three Raft stores with real sockets, threads and disks; the simulation has the faults."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from bench.peers.server import free_port
from dlog.errors import BrokerNotAvailableError, NotControllerError
from dlog.types import NodeId
from dlogd.metadata.commands.codec import (
    AllocateProducerIds,
    ClaimController,
    FenceNodes,
    Guarded,
    RegisterNode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.raft.proposals import WAITING_MAX
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.store import RaftStore
from dlogd.metadata.raft.thread import ThreadedRaftStore
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state.image import Applied, ClusterImage, Outcome, Refused
from dlogd.runtime.clock import SystemClock
from dlogd.storage.io.posix import PosixDirectory
from tests.fakes.randomness import SeededRandomness

CLOCK = SystemClock()
SECRET = b"a secret for three"
THROTTLED = 89


def _soon(seconds: int = 10) -> int:
    return CLOCK.now_ms() + seconds * 1000


def _config(node_id: int, ports: dict[int, int], voters: tuple[int, ...]) -> RaftConfig:
    return RaftConfig(
        node_id=node_id,
        cluster="c",
        secret=SECRET,
        controllers=Voters.of(Voter(node_id=n, host="127.0.0.1", port=ports[n]) for n in voters),
        host="127.0.0.1",
        port=ports[node_id],
        # A shared machine stalls: nobody shall lose an election by that.
        timings=RaftTimings(election_min_s=0.6, election_max_s=1.5, check_quorum_s=2.0),
    )


async def _open(path: Path, config: RaftConfig) -> ThreadedRaftStore:
    directory = path / str(config.node_id)
    directory.mkdir(exist_ok=True)
    return await ThreadedRaftStore.open(
        PosixDirectory(str(directory)),
        config,
        clock=CLOCK,
        randomness=SeededRandomness(config.node_id),
    )


@asynccontextmanager
async def _cluster(
    path: Path, voters: tuple[int, ...] = (1, 2, 3), observers: tuple[int, ...] = ()
) -> AsyncIterator[dict[int, ThreadedRaftStore]]:
    ports = {n: free_port() for n in (*voters, *observers)}
    stores = {n: await _open(path, _config(n, ports, voters)) for n in (*voters, *observers)}
    try:
        yield stores
    finally:
        for store in stores.values():
            await store.close()


def _register(number: int) -> RegisterNode:
    return RegisterNode(
        command_id=UUID(int=number),
        cluster_id="c",
        node_id=NodeId(7),
        directory_ids=(),
        addresses=(),
        rack=None,
        version="1",
    )


def _fence(number: int) -> Guarded:
    plain = FenceNodes(command_id=UUID(int=10_000 + number), nodes=((NodeId(7), 1),))
    return apply.guarded(ClusterImage(), plain, controller_epoch=1)


def _claim(number: int) -> ClaimController:
    return ClaimController(
        command_id=UUID(int=20_000 + number), node_id=NodeId(7), node_epoch=1, controller_epoch=0
    )


def test_any_node_proposes_and_all_images_become_equal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, observers=(4,)) as stores:
            seen: list[int] = []

            def on_image(_: ClusterImage, new: ClusterImage, __: object) -> None:
                seen.append(new.version)

            stores[2].subscribe(on_image)
            outcome = await stores[2].propose(_register(1), _soon())
            assert isinstance(outcome, Applied)
            assert seen and seen[-1] >= outcome.version
            epoch = outcome.value
            first = 0
            for node_id in (1, 2, 3, 4):
                command = AllocateProducerIds(
                    command_id=UUID(int=100 + node_id),
                    node_id=NodeId(7),
                    node_epoch=epoch,
                    count=10,
                )
                done = await stores[node_id].propose(command, _soon())
                assert isinstance(done, Applied) and done.value == first
                assert stores[node_id].image.producer_id_next == first + 10
                # The same command again changes nothing.
                assert await stores[node_id].propose(command, _soon()) == done
                first += 10
            for store in stores.values():
                assert isinstance(await store.barrier(_soon()), Applied)
                assert store.image.producer_id_next == 40
            roles = sorted(store.role for store in stores.values())
            assert roles == ["follower", "follower", "leader", "observer"]

    asyncio.run(scenario())


def test_voters_are_added_removed_and_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with _cluster(tmp_path, observers=(4,)) as stores:
            assert isinstance(await stores[4].barrier(_soon()), Applied)
            leader = next(store for store in stores.values() if store.role == "leader")
            leader_id = leader.leader_id
            assert leader_id is not None
            refused = await stores[4].change_voters(Operation.REMOVE, leader_id, _soon())
            assert isinstance(refused, Refused) and "transfer" in refused.message
            added = await stores[1].change_voters(
                Operation.ADD, 4, _soon(), host="127.0.0.1", port=stores[4].port
            )
            assert isinstance(added, Applied), added
            await stores[4].barrier(_soon())
            assert stores[4].role == "follower"
            state = await leader.quorum()
            assert [voter.node_id for voter in state.voters] == [1, 2, 3, 4]
            assert all(voter.log_end_offset > 1 for voter in state.voters)
            other = next(n for n in (1, 2, 3) if n != leader_id)
            removed = await stores[4].change_voters(Operation.REMOVE, other, _soon())
            assert isinstance(removed, Applied)
            begun = await stores[other].transfer(4, _soon())
            assert isinstance(begun, Applied)
            while stores[4].role != "leader":
                await asyncio.sleep(0.01)
            await asyncio.gather(*(store.barrier(_soon()) for store in stores.values()))
            left = ",".join(str(n) for n in (1, 2, 3, 4) if n != other)
            told = Counter(each for each in caplog.messages if each.startswith("Metadata voters"))
            # On each node; that directories are bound at the start is no change.
            assert told == {
                "Metadata voters changed came=4 left=- voters=1,2,3,4": 4,
                f"Metadata voters changed came=- left={other} voters={left}": 4,
            }

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_voter_with_another_directory_has_left_and_come() -> None:
    def voters(*directories: int) -> Voters:
        return Voters.of(
            Voter(node_id=n, directory_id=UUID(int=each), host="h", port=n)
            for n, each in enumerate(directories, 1)
        )

    assert voters(1, 2, 7).changes_since(voters(1, 2, 3)) == ((3,), (3,))
    assert voters(1, 2, 3).changes_since(voters(1, 0, 3)) == ((), ())
    assert voters(1, 2, 3).changes_since(voters(1, 2)) == ((3,), ())
    assert voters(1).changes_since(voters(1, 2, 3)) == ((), (2, 3))


def test_an_address_that_cannot_be_ends_no_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, observers=(4,)) as stores:
            assert isinstance(await stores[4].barrier(_soon()), Applied)
            for store in stores.values():
                refused = await store.change_voters(
                    Operation.ADD, 4, _soon(), host="x" * 70_000, port=9093
                )
                assert isinstance(refused, Refused) and "no address" in refused.message
            for store in stores.values():
                assert isinstance(await store.barrier(_soon()), Applied)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_voter_with_an_impossible_address_is_dialled_again_and_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        ports = {n: free_port() for n in (1, 2)}
        config = _config(1, ports, (1, 2))
        members = (Voter(node_id=2, host="h..x", port=ports[2]), config.controllers.members[0])
        store = await _open(tmp_path, replace(config, controllers=Voters.of(members)))
        try:
            while not any("label" in each for each in store.progress.absent):
                await asyncio.sleep(0.01)
            # Who is dialled in vain may still come by itself.
            other = await _open(tmp_path, _config(2, ports, (1, 2)))
            assert isinstance(await other.barrier(_soon()), Applied)
            await other.close()
        finally:
            await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_everything_is_there_after_all_were_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        ports = {n: free_port() for n in (1, 2, 3)}
        for number in (1, 2, 3):
            stores = [await _open(tmp_path, _config(n, ports, (1, 2, 3))) for n in ports]
            outcome = await stores[number - 1].propose(_register(number), _soon())
            assert isinstance(outcome, Applied) and outcome.version == number
            for store in stores:
                await store.barrier(_soon())
                assert store.image.version == number
            for store in stores:
                await store.close()

    asyncio.run(scenario())


def test_what_nobody_waits_for_any_more_is_not_carried_out_late(tmp_path: Path) -> None:
    """Its proposer may have asked elsewhere since, and may want something else by now."""

    async def scenario() -> None:
        ports = {n: free_port() for n in (1, 2)}
        stores = [await _open(tmp_path, _config(1, ports, (1, 2)))]
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await stores[0].propose(_register(1), _soon(60))
            stores.append(await _open(tmp_path, _config(2, ports, (1, 2))))
            for store in stores:
                assert isinstance(await store.barrier(_soon(30)), Applied)
                assert store.image.version == 0
        finally:
            for store in stores:
                await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_was_submitted_is_withdrawn_whoever_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = _config(1, {1: free_port(), 2: free_port()}, (1, 2))
        directory = PosixDirectory(str(tmp_path))
        store = await RaftStore.open(directory, config, clock=CLOCK, randomness=SeededRandomness(1))
        told: list[Outcome] = []
        try:
            for withdraw in (
                store.submit(_register(1), _soon(), lambda outcome: told.append(outcome)),
                store.submit_barrier(_soon(), lambda outcome: told.append(outcome)),
            ):
                assert len(store._outbox)
                withdraw()
                withdraw()
            assert not len(store._outbox)
        finally:
            await store.close()
        assert not told

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_however_many_changes_wait_the_controller_goes_on(tmp_path: Path) -> None:
    """Leases rest on its proof that it leads: who asks for much must not take them from all nodes.

    Nor does a dead node stay a leader because of that.
    """

    async def scenario() -> None:
        config = _config(1, {1: free_port()}, (1,))
        directory = PosixDirectory(str(tmp_path))
        store = await RaftStore.open(directory, config, clock=CLOCK, randomness=SeededRandomness(1))
        try:
            assert isinstance(await store.barrier(_soon()), Applied)
            outcomes: list[Outcome] = []
            for number in range(WAITING_MAX + 1):
                store.submit(_register(number), _soon(), outcomes.append)
            assert [each.code for each in outcomes if isinstance(each, Refused)] == [THROTTLED]
            for command in (_fence(1), _claim(2)):
                store.submit(command, _soon(), outcomes.append)
            assert len(outcomes) == 1
            assert isinstance(await store.contact(_soon()), Applied)
        finally:
            await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, voters=(1,)) as stores:
            store = stores[1]
            assert isinstance(await store.barrier(_soon()), Applied)
            await asyncio.gather(
                store.close(), *(store.propose(_register(n), _soon()) for n in (1, 2))
            )
            for refused in (
                await store.propose(_register(3), _soon()),
                await store.barrier(_soon()),
                await store.change_voters(Operation.REMOVE, 2, _soon()),
                await store.transfer(2, _soon()),
            ):
                assert isinstance(refused, Refused) and "closed" in refused.message
            with pytest.raises(BrokerNotAvailableError):
                await store.quorum()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_strangers_and_nonsense_are_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, voters=(1,)) as stores:
            assert isinstance(await stores[1].propose(_register(1), _soon()), Applied)
            for data in (b"\xff" * 100, b"\0\0\0\5hello", b"\0\0\2\1" + b"x" * 513):
                reader, writer = await asyncio.open_connection("127.0.0.1", stores[1].port)
                writer.write(data)
                assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()
            wrong = _config(9, {1: stores[1].port, 9: free_port()}, (1,))
            wrong = RaftConfig(
                node_id=9,
                cluster="c",
                secret=b"another secret of 20",
                controllers=wrong.controllers,
                host="127.0.0.1",
                port=wrong.port,
            )
            stranger = await _open(tmp_path, wrong)
            alone = await stranger.barrier(_soon(1))
            assert isinstance(alone, Refused) and isinstance(alone.error, NotControllerError)
            await stranger.close()
            assert isinstance(await stores[1].barrier(_soon()), Applied)

    asyncio.run(scenario())
