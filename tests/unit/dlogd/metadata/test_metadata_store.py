"""The metadata store on a simulated disk: durability, order, bounds, full and failing disks."""

import asyncio
import errno
import os
from uuid import UUID

import pytest

from dlog.errors import (
    BrokerNotAvailableError,
    InvalidConfigError,
    KafkaStorageError,
    TopicAlreadyExistsError,
)
from dlog.types import NodeId
from dlogd.metadata.commands.codec import AlterConfigs, ConfigChange, CreateTopic
from dlogd.metadata.journal_files import MetadataCorruptError
from dlogd.metadata.local_store import WAITING_MAX
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import Applied, ClusterImage, Refused, Unknown
from dlogd.node.service import exit_code_of
from tests.fakes.faults import DiskFault, Latency, ProcessDied
from tests.fakes.metadata_host import JOURNAL_0, Host, create, filled, propose, register, run


def test_what_is_applied_survives() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host)
        image = store.image
        assert image.version == 4
        assert (await host.reopen()).image == image
        host.machine.power_cut(keep=0.0)
        again = await host.open()
        assert again.image == image
        assert list(again.image.topics) == ["t0", "t1", "t2"]
        await again.close()
        await again.close()
        assert (await host.open()).image == image

    run(scenario)


def test_refusals_leave_no_trace() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host)
        image, data = store.image, host.data()
        topic_id = UUID(int=5001)
        wrong = AlterConfigs(
            command_id=UUID(int=2),
            topic_id=topic_id,
            changes=(ConfigChange(key="cleanup.policy", value="compact"),),
        )
        twice = CreateTopic(
            command_id=UUID(int=3), name="t0", topic_id=UUID(int=77), assignments=((NodeId(1),),)
        )
        unwritable = CreateTopic(
            command_id=UUID(int=4), name="\ud800", topic_id=UUID(int=77), assignments=()
        )
        codes = []
        for command in (wrong, twice, unwritable):
            outcome = await propose(store, command)
            assert isinstance(outcome, Refused)
            codes.append(outcome.code)
        assert codes == [InvalidConfigError.code, TopicAlreadyExistsError.code, 42]
        assert store.image is image
        assert host.data() == data

    run(scenario)


def test_commands_that_wait_are_flushed_together() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host, 0)
        syncs: list[str] = []
        host.machine.trace = lambda operation, path, position, length: (
            syncs.append(path) if operation == "sync" else None
        )
        commands = [create(number) for number in range(50)]
        outcomes = await asyncio.gather(*(propose(store, each) for each in commands))
        assert [outcome.version for outcome in outcomes if isinstance(outcome, Applied)] == list(
            range(2, 52)
        )
        assert len(syncs) <= 5
        image = store.image
        assert (await host.reopen()).image == image

    run(scenario)


def test_subscribers_hear_of_each_change_before_the_proposer_goes_on() -> None:
    async def scenario() -> None:
        store = await Host().open()
        heard: list[tuple[int, int, int]] = []

        def subscriber(old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
            heard.append((old.version, new.version, len(delta.topics_created)))

        unsubscribe = store.subscribe(subscriber)
        await propose(store, register())
        assert heard == [(0, 1, 0)]
        await propose(store, create(0))
        assert heard == [(0, 1, 0), (1, 2, 1)]
        unsubscribe()
        await propose(store, create(1))
        assert len(heard) == 2

    run(scenario)


def test_a_deadline_leaves_the_outcome_unknown_and_a_repetition_settles_it() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host, 0)
        host.machine.disks["/data"].stick()
        outcome = await propose(store, create(0), patience_ms=20)
        assert isinstance(outcome, Unknown)
        assert not store.image.topics
        host.machine.heal()
        assert await propose(store, create(0)) == Applied(version=2, value=1)
        assert await propose(store, create(0)) == Applied(version=2, value=1)
        assert store.image.version == 2

    run(scenario)


def test_proposals_that_wait_are_bounded() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host, 0)
        host.machine.disks["/data"].stick()
        waiting = [
            asyncio.create_task(propose(store, create(number)))
            for number in range(WAITING_MAX + 200)
        ]
        await asyncio.sleep(0.05)
        host.machine.heal()
        outcomes = await asyncio.gather(*waiting)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
        assert {outcome.code for outcome in refused} == {89}
        assert refused[0].error.retriable
        assert len(store.image.topics) == len(outcomes) - len(refused)

    run(scenario)


def test_a_large_journal_becomes_a_snapshot() -> None:
    async def scenario() -> None:
        host = Host()
        host.journal_bytes_max = 1000
        store = await filled(host, 40)
        names = host.names()
        assert len(names) == 2
        assert JOURNAL_0 not in names
        assert len(host.data(names[0])) < 1200
        image = store.image
        again = await host.reopen()
        assert again.image == image
        assert isinstance(await propose(again, create(99)), Applied)
        assert host.names()[0] >= names[0]

    run(scenario)


def test_one_process_at_a_time() -> None:
    async def scenario() -> None:
        host = Host()
        store = await host.open()
        with pytest.raises(MetadataCorruptError, match="in use by another process") as raised:
            await host.open()
        assert exit_code_of(raised.value) == os.EX_TEMPFAIL
        await store.close()
        await host.open()

    run(scenario)


def test_a_full_disk_refuses_and_recovers() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host)
        image = store.image
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write",), errno=errno.ENOSPC, path_part="journal"))
        outcome = await propose(store, create(7))
        assert isinstance(outcome, Refused)
        assert outcome.code == KafkaStorageError.code
        assert store.image is image
        assert store.failed is None
        host.machine.heal()
        assert isinstance(await propose(store, create(7)), Applied)
        image = store.image
        assert (await host.reopen()).image == image

    run(scenario)


def test_a_repetition_of_what_was_applied_is_told_so_whatever_the_disk_refuses_beside_it() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host)
        applied = await propose(store, create(7))
        disk = host.machine.disks["/data"]
        for fault in (
            DiskFault(("write",), errno=errno.ENOSPC, path_part="journal"),
            DiskFault(("sync",), path_part="journal"),
        ):
            disk.faults[:] = [fault]
            again, refused = await asyncio.gather(
                propose(store, create(7)), propose(store, create(8))
            )
            assert again == applied
            assert isinstance(refused, Refused | Unknown)

    run(scenario)


def test_a_failed_flush_ends_the_store() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host)
        image = store.image
        host.machine.disks["/data"].faults.append(DiskFault(("sync",), path_part="journal"))
        outcomes = await asyncio.gather(propose(store, create(7)), propose(store, create(8)))
        assert all(isinstance(outcome, Unknown | Refused) for outcome in outcomes)
        assert isinstance(outcomes[0], Unknown)
        assert store.image is image
        assert store.failed is not None
        assert len(host.failures) == 1
        refused = await propose(store, create(9))
        assert isinstance(refused, Refused)
        assert refused.code == KafkaStorageError.code
        await store.close()
        host.machine.heal()
        assert set(image.topics) <= set((await host.reopen()).image.topics)

    run(scenario)


def test_a_snapshot_that_the_disk_refuses_is_tried_again() -> None:
    async def scenario() -> None:
        host = Host()
        host.journal_bytes_max = 1000
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write",), errno=errno.ENOSPC, path_part="snapshot"))
        store = await filled(host, 20)
        assert host.names()[0] == JOURNAL_0
        assert store.failed is None
        host.machine.heal()
        for number in range(20, 60):
            assert isinstance(await propose(store, create(number)), Applied)
        assert JOURNAL_0 not in host.names()
        image = store.image
        assert (await host.reopen()).image == image

    run(scenario)


def test_a_closed_store_refuses() -> None:
    async def scenario() -> None:
        host = Host()
        host.machine.disks["/data"].latency = Latency(fixed=0.001)
        store = await filled(host, 1)
        waiting = asyncio.create_task(propose(store, create(5)))
        await asyncio.sleep(0)
        await store.close()
        assert isinstance(await waiting, Applied)
        outcome = await propose(store, create(6))
        assert isinstance(outcome, Refused)
        assert outcome.code == BrokerNotAvailableError.code

    run(scenario)


async def life(host: Host, told: dict[str, None], tried: list[str]) -> None:
    """Create topics one after the other, then stop; note what was tried and what was told."""
    store = await host.open()
    if not store.image.nodes:
        await propose(store, register())
    for number in range(20):
        name = f"t{number}"
        tried.append(name)
        if isinstance(await propose(store, create(number)), Applied):
            told[name] = None
    await store.close()


async def die_at(operation: int, host: Host, told: dict[str, None], tried: list[str]) -> bool:
    """Live until an operation of the disk; return whether there were so many."""
    died = asyncio.Event()
    host.machine.die_at(operation, died.set)
    tasks = [asyncio.create_task(life(host, told, tried)), asyncio.create_task(died.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return died.is_set()


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_every_operation_loses_nothing_that_was_told(seed: int) -> None:
    async def scenario() -> None:
        operation = 1
        while True:
            host = Host(seed * 1000 + operation)
            host.journal_bytes_max = 500
            told: dict[str, None] = {}
            tried: list[str] = []
            if not await die_at(operation, host, told, tried):
                break
            if seed % 6 == 5:
                host.machine.crash()
            else:
                host.machine.power_cut()
            topics = list((await host.open()).image.topics)
            assert topics == tried[: len(topics)]
            assert set(told) <= set(topics)
            assert len(topics) - len(told) <= 1
            operation += 1
        assert operation > 100

    try:
        run(scenario)
    except ProcessDied:
        pytest.fail("the death of the process reached the test")
