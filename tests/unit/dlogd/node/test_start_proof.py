"""What a node may say of its replicas when it starts, on simulated disks."""

import asyncio
import dataclasses
import errno
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

import pytest

from dlog.types import NodeId
from dlogd.config.choices import FlushPolicy
from dlogd.metadata.commands.codec import Proof
from dlogd.metadata.state.image import Applied, NodeRegistration, Outcome
from dlogd.node.replica_proof import ReplicaProof, epoch_of, start_proof
from tests.fakes.faults import DiskFault
from tests.fakes.files import MemoryDirectory
from tests.fakes.manager import TOPIC_ID, ManagerHost, wanted
from tests.simulation.loop import run_alone

KEY = (TOPIC_ID, 0)
OTHER = (TOPIC_ID, 1)


class Lives:
    """A node that starts again and again, and what the cluster knows of it."""

    def __init__(self, directory_count: int = 1) -> None:
        self.host = ManagerHost(directory_count)
        self.known: NodeRegistration | None = None
        self.outcomes: dict[UUID, Outcome] = {}
        self.epoch = 6

    async def recover(self) -> ReplicaProof:
        """Start up to the proof."""
        manager = self.host.boot()
        await manager.claim(NodeId(1), None)
        known = self.known.directory_ids if self.known is not None else ()
        await manager.open(wanted(0, 1, config=self.host.config), known)
        return start_proof(self.known, self.outcomes, manager.homes, [KEY, OTHER])

    def register(self) -> int:
        """Let the cluster know of this life."""
        self.epoch += 1
        present = self.host.manager.directory_ids
        lost = [
            each
            for each in (self.known.directory_ids if self.known is not None else ())
            if each not in present
        ]
        self.known = NodeRegistration(
            node_id=NodeId(1),
            node_epoch=self.epoch,
            directory_ids=(*present, *lost),
            addresses=(),
            rack=None,
            version="",
            fenced=True,
            failed_directory_ids=tuple(lost),
        )
        return self.epoch

    async def start(self) -> ReplicaProof:
        """Start to the end."""
        proof = await self.recover()
        await self.host.manager.begin(self.register())
        return proof

    async def note(self, command_id: UUID) -> None:
        """Note a registration that is about to be proposed."""
        resolve = partial(epoch_of, outcomes=self.outcomes)
        await self.host.manager.lives.note_registering(command_id, resolve)

    async def crash(self, *, power_cut: bool = False) -> None:
        await self.host.crash(power_cut=power_cut)

    def root(self, number: int = 0) -> MemoryDirectory:
        """The directory, between two lives."""
        return self.host.machine.boot().open_directory(f"{self.host.mounts[number]}/dlog")


def check(scenario: Callable[[Lives], Awaitable[None]], directory_count: int = 1) -> None:
    run_alone(scenario(Lives(directory_count)))


def test_the_first_start_has_nothing_to_prove() -> None:
    async def scenario(lives: Lives) -> None:
        assert await lives.start() == ReplicaProof()
        await lives.host.stop()

    check(scenario)


@pytest.mark.parametrize("policy", list(FlushPolicy))
def test_an_orderly_stop_proves_all(policy: FlushPolicy) -> None:
    async def scenario(lives: Lives) -> None:
        lives.host.config = dataclasses.replace(lives.host.config, flush_policy=policy)
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.host.stop()
        proof = await lives.start()
        assert proof == ReplicaProof(proof=Proof.CLEAN, previous_epoch=7)
        await lives.host.stop()

    check(scenario)


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("policy", list(FlushPolicy))
def test_after_a_crash_only_what_was_always_flushed_is_whole(
    policy: FlushPolicy, power_cut: bool
) -> None:
    async def scenario(lives: Lives) -> None:
        lives.host.config = dataclasses.replace(lives.host.config, flush_policy=policy)
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.crash(power_cut=power_cut)
        proof = await lives.recover()
        assert (proof.proof, proof.previous_epoch) == (Proof.FLUSHED, 7)
        assert proof.unproven == (() if policy is FlushPolicy.ALWAYS else (KEY,))
        await lives.crash()

    check(scenario)


def test_a_policy_that_was_changed_while_the_node_was_down_proves_nothing() -> None:
    async def scenario(lives: Lives) -> None:
        strict = lives.host.config
        lives.host.config = dataclasses.replace(strict, flush_policy=FlushPolicy.NEVER)
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.crash(power_cut=True)
        lives.host.config = strict
        for _ in range(2):  # the same is found until the cluster has heard of it
            assert (await lives.recover()).unproven == (KEY,)
            await lives.crash()
        assert (await lives.start()).unproven == (KEY,)
        await lives.crash()
        assert (await lives.start()).unproven == ()
        await lives.crash()

    check(scenario)


def test_a_running_log_that_becomes_weak_is_noted() -> None:
    async def scenario(lives: Lives) -> None:
        await lives.start()
        plog = await lives.host.create_with(0, b"a")
        await lives.host.manager.note_weak(plog)
        await lives.crash()
        assert (await lives.recover()).unproven == (KEY,)
        await lives.crash()

    check(scenario)


def test_a_registration_whose_answer_was_not_heard_is_this_life() -> None:
    async def scenario(lives: Lives) -> None:
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.crash()
        await lives.recover()
        command_id = UUID(int=77)
        await lives.note(command_id)
        epoch = lives.register()
        await lives.crash()
        lives.outcomes[command_id] = Applied(version=epoch, value=epoch)
        proof = await lives.recover()
        assert (proof.proof, proof.previous_epoch) == (Proof.FLUSHED, epoch)
        await lives.crash()
        lives.outcomes.clear()  # forgotten by the cluster: nothing is proved
        proof = await lives.recover()
        assert (proof.proof, proof.previous_epoch) == (Proof.NONE, 7)
        await lives.crash()

    check(scenario)


def test_a_second_start_that_is_cut_off_remembers_what_the_first_one_began() -> None:
    async def scenario(lives: Lives) -> None:
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.crash()
        await lives.recover()
        await lives.note(UUID(int=77))
        epoch = lives.register()
        lives.outcomes[UUID(int=77)] = Applied(version=epoch, value=epoch)
        for number in (78, 79):  # never applied
            await lives.crash()
            proof = await lives.recover()
            assert (proof.proof, proof.previous_epoch) == (Proof.FLUSHED, epoch)
            await lives.note(UUID(int=number))
            await lives.note(UUID(int=number + 100))  # a directory failed in between
        await lives.crash()
        proof = await lives.recover()
        assert (proof.proof, proof.previous_epoch, proof.unproven) == (Proof.FLUSHED, epoch, ())
        await lives.crash()

    check(scenario)


@pytest.mark.parametrize("ends", ["in order", "crash"])
def test_a_start_that_ends_before_it_registers_proves_no_more_than_it_found(ends: str) -> None:
    """What was acknowledged and not flushed is lost, and only who was told of that knows."""

    async def scenario(lives: Lives) -> None:
        lives.host.config = dataclasses.replace(lives.host.config, flush_policy=FlushPolicy.NEVER)
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.crash(power_cut=True)
        for _ in range(2):
            proof = await lives.recover()
            assert (proof.proof, proof.unproven[0]) == (Proof.FLUSHED, KEY)
            if ends == "crash":
                await lives.crash()
            else:
                await lives.host.stop()
        # In order after order: nothing was found to be wrong.
        await lives.start()
        await lives.host.stop()
        for _ in range(2):
            assert (await lives.recover()).proof is Proof.CLEAN
            await lives.host.stop()

    check(scenario)


def test_an_old_copy_proves_nothing() -> None:
    async def scenario(lives: Lives) -> None:
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.host.stop()
        await lives.start()
        await lives.host.stop()
        root = lives.root()
        file = root.open("life")
        file.pwrite(b"dlog life 1 13 00000000\n", 0)  # damaged, for one
        file.close()
        proof = await lives.recover()
        assert (proof.proof, proof.previous_epoch) == (Proof.NONE, -1)
        await lives.crash()

    check(scenario)


def test_nothing_of_an_old_copy_leads_by_itself_neither_what_it_has_nor_what_it_lacks() -> None:
    """Else the last leader would, and others would be cut to it who have more."""

    async def scenario(lives: Lives) -> None:
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.host.stop()
        root = lives.root()
        file = root.open("life")
        life = file.pread(file.size(), 0)
        await lives.start()
        await lives.host.create_with(1, b"a")
        await lives.host.stop()
        # As if the disk were a copy from before the last life.
        root = lives.root()
        root.directory("topics").remove_tree(f"t-1.{TOPIC_ID}")
        for name in ("life", "high-watermarks", "promised-offsets", "clean-shutdown"):
            root.unlink(name)
        file = root.open("life", create=True)
        file.pwrite(life, 0)
        file.sync()
        root.sync()
        proof = await lives.recover()
        assert (proof.proof, proof.previous_epoch) == (Proof.NONE, 7)
        assert proof.missing == (KEY, OTHER)
        await lives.crash()

    check(scenario)


def test_a_log_that_is_gone_is_missing_until_the_cluster_knows() -> None:
    async def scenario(lives: Lives) -> None:
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.host.create_with(1, b"a")
        await lives.host.stop()
        root = lives.root()
        root.directory("topics").remove_tree(f"t-0.{TOPIC_ID}")
        root.directory("topics").sync()
        for _ in range(3):
            proof = await lives.recover()
            assert proof.unproven == proof.missing == (KEY,)
            # Also an orderly stop of a start that did not end forgets nothing.
            await lives.host.stop()
        assert (await lives.start()).missing == (KEY,)
        await lives.host.create(0)
        await lives.crash()
        assert (await lives.start()).unproven == ()
        await lives.crash()

    check(scenario)


def test_an_empty_directory_in_the_place_of_a_known_one() -> None:
    async def scenario(lives: Lives) -> None:
        await lives.start()
        for number in (0, 1):
            await lives.host.create_with(number, b"a")
        places = [lives.host.mounts.index(lives.host.home_of(n).path[:6]) for n in (0, 1)]
        assert places[0] != places[1]
        await lives.host.stop()
        disk = lives.host.machine.disks[lives.host.mounts[places[0]]]
        disk.root.entries.clear()
        disk.root.durable_entries.clear()
        proof = await lives.start()
        assert (proof.proof, proof.previous_epoch) == (Proof.CLEAN, 7)
        assert proof.unproven == proof.offline == (KEY,)
        assert proof.missing == ()  # the disk may come back
        assert lives.known is not None and len(lives.known.failed_directory_ids) == 1
        await lives.host.stop()

    check(scenario, 2)


def test_all_directories_new() -> None:
    async def scenario(lives: Lives) -> None:
        await lives.start()
        await lives.host.create_with(0, b"a")
        await lives.host.stop()
        disk = lives.host.machine.disks[lives.host.mounts[0]]
        disk.root.entries.clear()
        disk.root.durable_entries.clear()
        proof = await lives.start()
        assert (proof.proof, proof.previous_epoch) == (Proof.NONE, -1)
        assert proof.offline == (KEY, OTHER)
        await asyncio.sleep(0)
        await lives.host.stop()

    check(scenario)


def test_a_directory_that_the_last_life_could_not_use_is_no_old_copy() -> None:
    async def scenario(lives: Lives) -> None:
        await lives.start()
        await lives.host.stop()
        machine = lives.host.machine
        machine.disks[lives.host.mounts[1]].faults.append(
            DiskFault(operations=("open",), errno=errno.EIO)
        )
        first = await lives.start()
        assert first.offline == (KEY, OTHER)  # they may be on what cannot be read
        await lives.host.crash()
        machine.disks[lives.host.mounts[1]].faults.clear()
        second = await lives.recover()
        assert (second.missing, second.offline) == ((), ())
        assert second.unproven == (KEY, OTHER)
        await lives.crash()

    check(scenario, 2)
