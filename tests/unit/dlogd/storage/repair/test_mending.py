"""Damaged places of closed segments: mended in place by what another replica has, or left alone."""

import asyncio

import pytest

from dlog.errors import CorruptMessageError, DlogError, KafkaStorageError
from dlogd.storage.io.files import Directory
from dlogd.storage.repair.segment_repair import SegmentRepair
from dlogd.storage.segment.segment import SegmentState
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.damaged_places import BATCH_BYTES, COUNT, END, FIRST, damaged
from tests.fakes.logs import batch_of, run, values_in, values_of
from tests.fakes.small_fleet import SmallFleet, tell


@pytest.mark.parametrize("pieces", [[(5, 8)], [(5, 6), (6, 7), (7, 8)], [(3, 7), (6, 12)]])
def test_a_place_is_whole_again(pieces: list[tuple[int, int]]) -> None:
    async def scenario() -> None:
        host, plog, place, good = await damaged()
        with pytest.raises(CorruptMessageError):
            plog.read(FIRST, 1000, COUNT)
        mending = SegmentRepair(plog, place)
        for first, end in pieces:
            assert not mending.is_whole
            await mending.take(good[first * BATCH_BYTES : end * BATCH_BYTES])
        assert mending.is_whole
        await mending.finish()
        assert not plog.damage.places
        expected = [(n, b"%03d" % n + b"x" * 97) for n in range(COUNT)]
        assert await values_of(plog) == expected
        assert await values_of(await host.power_cut()) == expected, "it is on stable storage"

    run(scenario)


def _other_epoch(data: bytearray) -> None:
    data[15] ^= 1


def _bad_checksum(data: bytearray) -> None:
    data[80] ^= 1


def _gap(data: bytearray) -> None:
    del data[:BATCH_BYTES]


def _larger(data: bytearray) -> None:
    last = batch_of(b"y" * 101)
    last[:8] = (7).to_bytes(8, "big")
    last[12:16] = data[12:16]
    data[2 * BATCH_BYTES :] = last


@pytest.mark.parametrize("spoil", [_other_epoch, _bad_checksum, _gap, _larger])
def test_nothing_is_written_that_does_not_fit(spoil: object) -> None:
    async def scenario() -> None:
        host, plog, place, good = await damaged()
        data = bytearray(good[FIRST * BATCH_BYTES : END * BATCH_BYTES])
        spoil(data)  # type: ignore[operator]
        mending = SegmentRepair(plog, place)
        with pytest.raises(CorruptMessageError):
            await mending.take(bytes(data))
        assert plog.damage.places == [place]
        file = host.directory.open(file_name(0), read_only=True)
        assert file.pread(8 + 2 * BATCH_BYTES, FIRST * BATCH_BYTES)[8:] == b"\xff" * 2 * BATCH_BYTES
        file.close()

    run(scenario)


def test_half_of_it_does_not_count() -> None:
    async def scenario() -> None:
        _, plog, place, good = await damaged()
        mending = SegmentRepair(plog, place)
        await mending.take(good[FIRST * BATCH_BYTES : 7 * BATCH_BYTES])
        with pytest.raises(CorruptMessageError, match="does not fill"):
            await mending.finish()
        assert plog.damage.places == [place]

    run(scenario)


def test_a_log_that_was_cut_meanwhile_is_left_alone() -> None:
    async def scenario() -> None:
        _, plog, place, good = await damaged()
        mending = SegmentRepair(plog, place)
        plog.damage.forget(0)
        await plog.truncate_to(4)
        with pytest.raises(KafkaStorageError, match="changed meanwhile"):
            await mending.take(good[FIRST * BATCH_BYTES : END * BATCH_BYTES])

    run(scenario)


# -- in a cluster

SCRUBBED = {"scrub.interval": "1s", "scrub.rate": "10MiB"}
VALUES = [b"%03d" % number + b"x" * 97 for number in range(COUNT)]


def _harm(fleet: SmallFleet, node_id: int, *batches: int) -> None:
    """Spoil batches of the first segment of a replica, behind everybody's back."""
    plog = fleet.replica(node_id, "t").log
    assert plog.segments[0].state is SegmentState.SEALED
    file = plog.directory.open(file_name(0))
    for number in batches:
        file.pwrite(b"\xee" * 8, number * BATCH_BYTES + 70)
    file.close()


def _root(fleet: SmallFleet, node_id: int) -> Directory:
    process = fleet.host(node_id).process
    assert process is not None
    return process.open_directory("/data0")


def _on_disk(fleet: SmallFleet, node_id: int) -> list[bytes]:
    """Return the values of all records that the files of a replica hold."""
    plog = fleet.replica(node_id, "t").log
    found = []
    for segment in plog.segments:
        file = plog.directory.open(file_name(segment.base_offset), read_only=True)
        found += [value for _, value in values_in(file.pread(segment.written_position, 0))]
        file.close()
    return found


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_what_the_scrub_finds_is_mended_from_another_replica(role: str) -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", segment_bytes="4000")
        await fleet.produce("t", *VALUES)
        await fleet.until_in_sync("t")
        victim = fleet.leader("t") if role == "leader" else fleet.followers("t")[0]
        await fleet.until(
            lambda: fleet.replica(victim, "t").log.segments[0].state is SegmentState.SEALED
        )
        before = fleet.state("t")
        _harm(fleet, victim, 3, 9, 10)
        broker = fleet.broker(victim)
        assert broker.replicating is not None
        mender = broker.replicating.mender
        await fleet.until(lambda: mender.counters.mended_total == 2, 120)
        assert not fleet.replica(victim, "t").log.damage.places
        assert broker.telemetry.storage.scrub_damages_total == 2
        assert fleet.state("t") == before, "no ISR, no leader, no epoch has changed"
        assert _on_disk(fleet, victim) == VALUES
        assert not broker.report.status()["problems"]

    tell(story, config=SCRUBBED)


def test_what_a_consumer_throws_away_is_mended() -> None:
    """Without any scrub: the leader sends records unseen, and hears of it by being asked again."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", segment_bytes="4000")
        await fleet.produce("t", *VALUES)
        await fleet.until_in_sync("t")
        leader = fleet.leader("t")
        fleet.host(leader).stop(downtime_ns=100_000_000)  # so that nothing is in its memory
        await fleet.until(lambda: not fleet.is_up(leader))
        await fleet.until(lambda: fleet.is_up(leader))
        await fleet.until_in_sync("t")
        await fleet.admin.elect_leaders([("t", 0)])
        await fleet.until(lambda: fleet.leader("t") == leader)
        _harm(fleet, leader, 3)
        for _ in range(100):
            try:
                assert await fleet.values("t", start=3) == VALUES[3:]
                break
            except DlogError:
                await fleet.sleep(0.1)
                await fleet.cluster.metadata("t", refresh=True)
        else:
            raise AssertionError("It is not mended")
        replicating = fleet.broker(leader).replicating
        assert replicating is not None and replicating.mender.counters.mended_total == 1
        assert fleet.leader("t") == leader

    tell(story, config={"scrub.interval": "-1"})


def test_what_a_new_replica_throws_away_is_mended_and_it_goes_on() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", segment_bytes="4000", replicas=2)
        await fleet.produce("t", *VALUES)
        await fleet.until_in_sync("t")
        leader = fleet.leader("t")
        fleet.host(leader).stop(downtime_ns=100_000_000)  # so that nothing is in its memory
        await fleet.until(lambda: not fleet.is_up(leader))
        await fleet.until(lambda: fleet.is_up(leader))
        await fleet.until_in_sync("t")
        await fleet.admin.elect_leaders([("t", 0)])
        await fleet.until(lambda: fleet.leader("t") == leader)
        _harm(fleet, leader, 3)
        nodes = [leader, *(each for each in (1, 2, 3) if each != leader)]
        await fleet.admin.alter_reassignments({("t", 0): nodes})
        await fleet.until(lambda: len(fleet.state("t").isr) == 3, 120)
        for node_id in nodes:
            assert _on_disk(fleet, node_id) == VALUES
        assert fleet.leader("t") == leader

    tell(story, config={"scrub.interval": "-1"})


def test_damage_that_all_replicas_share_stays_damage() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", segment_bytes="4000", replicas=2)
        await fleet.produce("t", *VALUES)
        await fleet.until_in_sync("t")
        holders = list(fleet.state("t").replicas)
        for node_id in holders:  # what is in memory is good, and would mend the other one
            fleet.host(node_id).stop(downtime_ns=100_000_000)
            await fleet.until(lambda n=node_id: not fleet.is_up(n))  # type: ignore[misc]
            await fleet.until(lambda n=node_id: fleet.is_up(n))  # type: ignore[misc]
            await fleet.until_in_sync("t")
        for node_id in holders:
            _harm(fleet, node_id, 3)
        await fleet.sleep(120)
        for node_id in holders:
            broker = fleet.broker(node_id)
            assert broker.replicating is not None
            assert broker.replicating.mender.counters.mended_total == 0
            assert broker.replicating.mender.counters.failures_total > 1
            (place,) = fleet.replica(node_id, "t").log.damage.places
            assert (place.first_offset, place.next_offset) == (3, 4)
        assert len(fleet.state("t").isr) == 2

    tell(story, config=SCRUBBED)


def test_a_replica_that_a_start_finds_damaged_is_fetched_anew() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", segment_bytes="1000000")
        await fleet.produce("t", *VALUES)
        await fleet.until_in_sync("t")
        victim = fleet.followers("t")[0]
        name = fleet.replica(victim, "t").log.directory.path.rsplit("/", 1)[1]
        host = fleet.host(victim)
        host.is_held_down = True
        host.crash()
        await fleet.until(lambda: victim not in fleet.state("t").isr)
        root = host.machine.boot().open_directory("/data0")
        file = root.directory("topics").directory(name).open(file_name(0))
        file.pwrite(b"\xee" * 8, (COUNT - 8) * BATCH_BYTES + 70)  # below the flushed mark
        file.sync()
        file.close()
        host.machine.crash()
        host.is_held_down = False
        host.boot()
        await fleet.until_in_sync("t", seconds=120)
        assert _on_disk(fleet, victim) == VALUES
        assert _root(fleet, victim).directory("stray").exists(name), "an operator may look at it"

    tell(story)


def test_a_damaged_log_that_the_cluster_counts_on_is_left_as_it_is() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", replicas=1, segment_bytes="1000000")
        await fleet.produce("t", *VALUES)
        victim = fleet.leader("t")
        name = fleet.replica(victim, "t").log.directory.path.rsplit("/", 1)[1]
        host = fleet.host(victim)
        host.is_held_down = True
        host.crash()
        root = host.machine.boot().open_directory("/data0")
        file = root.directory("topics").directory(name).open(file_name(0))
        file.pwrite(b"\xee" * 8, (COUNT - 8) * BATCH_BYTES + 70)
        file.sync()
        file.close()
        host.machine.crash()
        host.is_held_down = False
        host.boot()
        await fleet.until(lambda: fleet.is_up(victim))
        await fleet.sleep(20)
        assert not _root(fleet, victim).directory("stray").exists(name)
        assert _root(fleet, victim).directory("topics").exists(name)
        assert fleet.leader("t") == -1

    tell(story)


@pytest.mark.parametrize("dies_at", range(1, 9))
def test_a_power_cut_while_it_is_mended_spoils_nothing_else(dies_at: int) -> None:
    async def scenario() -> None:
        host, plog, place, good = await damaged()
        died = asyncio.Event()
        host.machine.die_at(dies_at, died.set)

        async def mend() -> None:
            mending = SegmentRepair(plog, place)
            for number in range(FIRST, END):
                await mending.take(good[number * BATCH_BYTES : (number + 1) * BATCH_BYTES])
            await mending.finish()

        work = asyncio.ensure_future(mend())
        waiting = asyncio.ensure_future(died.wait())
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=5)
        is_mended = work.done() and not work.cancelled() and work.exception() is None
        for task in (work, waiting):
            task.cancel()
        await asyncio.gather(work, waiting, return_exceptions=True)
        again = await host.power_cut()
        file = host.directory.open(file_name(0), read_only=True)
        data = file.pread(again.segments[0].end_position, 0)
        file.close()
        assert data[: FIRST * BATCH_BYTES] == good[: FIRST * BATCH_BYTES]
        assert data[END * BATCH_BYTES :] == good[END * BATCH_BYTES : len(data)]
        if is_mended:
            assert data == good[: len(data)], "what was finished is on stable storage"
        assert again.log_end_offset == COUNT

    run(scenario)


def test_a_place_that_was_forgotten_is_not_written_to() -> None:
    """The log was begun anew meanwhile, and other batches stand there."""

    async def scenario() -> None:
        _, plog, place, good = await damaged()
        mending = SegmentRepair(plog, place)
        plog.damage.forget_place(place)
        plog.damage.note(place.path, place.position, FIRST, END, END * BATCH_BYTES)
        with pytest.raises(KafkaStorageError, match="changed meanwhile"):
            await mending.take(good[FIRST * BATCH_BYTES : END * BATCH_BYTES])

    run(scenario)
