"""The scrub: what rots in closed segments is found, told, and nothing else is harmed by it."""

import asyncio
import errno
from dataclasses import replace

import pytest

from dlog.batch.header import HEADER_BYTES
from dlog.errors import CorruptMessageError
from dlog.types import Offset
from dlogd.config.units import DiskReserve
from dlogd.storage.directory.log_directory import StorageSettings
from dlogd.storage.io.files import Directory
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.repair.scrub_schedule import Pace, Round, decode, due_ms, encode, next_place
from dlogd.storage.repair.scrubber import KIND
from dlogd.storage.segment.segment import SegmentState
from dlogd.storage.segment.segment_names import file_name
from dlogd.storage.segment.segment_verifier import SegmentVerifier
from tests.fakes.faults import DiskFault
from tests.fakes.logs import append_waiting, batch_of, run_virtual, values_of
from tests.fakes.manager import CONFIG, TOPIC_ID, ManagerHost, partition
from tests.simulation.loop import SimClock, SimLoop

SETTINGS = StorageSettings(
    reserve=DiskReserve(bytes=0), scrub_interval_ms=3_600_000, scrub_rate=1 << 20
)
LOG = replace(CONFIG, segment_bytes=20_000, index_interval_bytes=1000, segment_ms=1 << 60)
VALUE = b"v" * 100
BATCH_BYTES = len(batch_of(VALUE))
PER_SEGMENT = 20_000 // BATCH_BYTES
COUNT = PER_SEGMENT * 3 + 5  # three closed segments and a beginning


# -- the plan


def segment(count: int = 5) -> bytearray:
    """Return some batches in a row."""
    data = bytearray()
    for number in range(count):
        batch = batch_of(b"value %d" % number)
        batch[:8] = number.to_bytes(8, "big")
        data += batch
    return data


def walk(data: bytes, piece: int, end: int | None = None) -> SegmentVerifier:
    """Feed a segment in pieces of one size, until it is done."""
    check = SegmentVerifier(0, len(data) if end is None else end)
    for _ in range(10_000):
        if check.is_done:
            return check
        check.feed(memoryview(data)[check.position : check.position + piece])
    raise AssertionError("It does not end")


@pytest.mark.parametrize("piece", [HEADER_BYTES, 100, 1 << 20])
def test_an_epoch_that_the_log_does_not_know_there_is_bad(piece: int) -> None:
    """No checksum is over it; a follower that took it would have another history."""
    data = segment()
    size = len(data) // 5
    for number in range(5):
        data[number * size + 12 : number * size + 16] = bytes(4)
    position = size * 3
    data[position + 15] ^= 4
    for known, is_bad in ((0, True), (-1, False)):
        check = SegmentVerifier(0, len(data), epoch_of=lambda *_, known=known: known)
        while not check.is_done:
            check.feed(memoryview(data)[check.position : check.position + piece])
        assert check.is_bad is is_bad
        assert check.batch_position == (position if is_bad else len(data))


@pytest.mark.parametrize("piece", [HEADER_BYTES, 62, 64, 100, 1 << 20])
def test_good_batches_are_good_in_pieces_of_any_size(piece: int) -> None:
    check = walk(segment(), piece)
    assert not check.is_bad
    assert (check.expected_offset, check.position) == (5, len(segment()))


@pytest.mark.parametrize("piece", [HEADER_BYTES, 77, 1 << 20])
def test_any_changed_byte_is_found_in_its_batch(piece: int) -> None:
    data = segment()
    size = len(data) // 5
    for position in range(len(data)):
        in_batch = position % size
        if 12 <= in_batch < 16:
            continue  # the leader epoch is not under the checksum
        bad = bytearray(data)
        bad[position] ^= 0x10
        check = walk(bytes(bad), piece)
        assert check.is_bad, position
        assert check.batch_position == position - in_batch


def test_a_segment_that_is_too_short_is_bad() -> None:
    data = bytes(segment())
    for cut in (1, HEADER_BYTES - 1, HEADER_BYTES, 100):
        assert walk(data[:-cut], 64, end=len(data)).is_bad
    assert walk(b"", 64, end=100).is_bad


def test_the_walk_goes_on_where_it_is_told() -> None:
    data = segment()
    size = len(data) // 5
    data[size + 70] ^= 1
    check = walk(bytes(data), 1 << 20)
    assert check.is_bad and check.batch_position == size
    check.resume(2 * size, 2)
    check.feed(memoryview(data)[2 * size :])
    assert check.is_done and not check.is_bad and check.expected_offset == 5


def test_a_round_goes_over_everything_once() -> None:
    logs = {"b": [0, 10], "a": [5], "empty": [], "c": [0]}
    found = Round(started_ms=1)
    places = []
    while (place := next_place(found, logs, lambda name: logs[name])) is not None:
        places.append(place)
        found = found.passed(place, 7)
        if place == ("b", 0):
            logs["aa"] = [0]  # made behind the place: it is the next round's
            del logs["c"]
            logs["d"] = [3]
    assert places == [("a", 5), ("b", 0), ("b", 10), ("d", 3)]
    assert found.read_bytes == 28


def test_when_a_round_is_due() -> None:
    assert due_ms(None, 1000, 50) == 50
    assert due_ms(Round(started_ms=10), 1000, 50) == 50
    assert due_ms(Round(started_ms=10, ended_ms=20), 1000, 50) == 1010
    assert due_ms(Round(started_ms=99, ended_ms=100), 1000, 50) == 50, "the clock went back"


def test_the_pace_has_no_burst_and_catches_nothing_up() -> None:
    pace = Pace()
    now_s = 100.0
    for _ in range(10):
        wait_s = pace.wait_s(1000, 10_000, now_s)
        now_s += wait_s
    assert 100.8 < now_s <= 101.01
    now_s += 1000
    assert pace.wait_s(1000, 10_000, now_s) == pytest.approx(0.0)
    assert pace.wait_s(1000, 10_000, now_s) == pytest.approx(0.1)


def test_the_file() -> None:
    found = Round(started_ms=1, ended_ms=2, log="t-0.x", offset=7, read_bytes=9, damages=1)
    assert decode(encode(found)) == found


# -- on a disk


async def node_with(count: int = COUNT) -> tuple[ManagerHost, PartitionLog]:
    """Start a node with one log of some closed segments."""
    host = ManagerHost(1, settings=SETTINGS)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    host.clock = SimClock(loop)
    host.config = LOG
    await host.start()
    plog = await host.create(0)
    for _ in range(count):
        await append_waiting(plog, VALUE)
    await plog.flush()
    while sum(each.state is SegmentState.SEALED for each in plog.segments) < len(plog.segments) - 1:
        await asyncio.sleep(0.01)
    return host, plog


def directory_of(host: ManagerHost) -> Directory:
    """Return the log's directory."""
    home = host.home_of(0)
    return home.directory.topics.directory(next(iter(home.names.values())))


def harm(host: ManagerHost, base_offset: int, position: int, data: bytes = b"\xff") -> None:
    """Overwrite bytes of a segment, behind everybody's back."""
    file = directory_of(host).open(file_name(base_offset))
    file.pwrite(data, position)
    file.close()


def status(host: ManagerHost) -> dict[str, object]:
    """Return what is told about the scrub of the one directory."""
    found = host.manager.status()["directories"][0]["scrub"]
    assert isinstance(found, dict)
    return found


async def round_done(host: ManagerHost) -> dict[str, object]:
    """Wait until a round has ended."""
    for _ in range(1000):
        await asyncio.sleep(1)
        found = status(host)
        if found["ended_ms"] is not None:
            return found
    raise AssertionError(f"It does not end: {status(host)}")


def test_a_whole_log_is_whole() -> None:
    async def scenario() -> None:
        host, plog = await node_with()
        assert status(host)["state"] == "resting"
        found = await round_done(host)
        closed = sum(each.end_position for each in plog.segments[:-1])
        assert (found["read_bytes"], found["closed_bytes"]) == (closed, closed)
        assert (found["damages"], found["state"]) == (0, "resting")
        metrics = host.services.metrics
        assert (metrics.scrub_segments_total, metrics.scrub_damages_total) == (3, 0)
        assert plog.failed is None and not plog.damage.problems(0)
        await host.stop()

    run_virtual(scenario)


@pytest.mark.parametrize("in_batch", [0, 8, 11, 12, 15, 16, 20, 23, 57, 61, BATCH_BYTES - 1])
@pytest.mark.parametrize("number", [0, 7, PER_SEGMENT - 1])
def test_a_bad_batch_is_noted_alone(in_batch: int, number: int) -> None:
    async def scenario() -> None:
        host, plog = await node_with()
        base = PER_SEGMENT
        harm(host, base, number * BATCH_BYTES + in_batch)
        assert (await round_done(host))["damages"] == 1
        (place,) = plog.damage.places
        assert (place.first_offset, place.next_offset) == (base + number, base + number + 1)
        assert (place.position, place.end_position) == (
            number * BATCH_BYTES,
            (number + 1) * BATCH_BYTES,
        )
        assert plog.failed is None, "the rest is served"
        with pytest.raises(CorruptMessageError):
            plog.read(base + number, 1000, plog.log_end_offset)
        assert len(await values_of(plog, base + number + 1)) == COUNT - base - number - 1
        await host.stop()

    run_virtual(scenario)


def test_several_places_and_a_cut_file() -> None:
    async def scenario() -> None:
        host, plog = await node_with()
        for number in (2, 3, 9):
            harm(host, 0, number * BATCH_BYTES + 80)
        file = directory_of(host).open(file_name(PER_SEGMENT))
        file.truncate(10 * BATCH_BYTES + 30)
        file.close()
        damages = (await round_done(host))["damages"]
        places = [(each.first_offset, each.next_offset) for each in plog.damage.places]
        assert places == [(2, 4), (9, 10), (PER_SEGMENT + 10, 2 * PER_SEGMENT)]
        assert damages == 3
        await host.stop()

    run_virtual(scenario)


def test_what_looks_like_a_batch_inside_a_bad_one_leads_nobody_astray() -> None:
    async def scenario() -> None:
        host = ManagerHost(1, settings=SETTINGS)
        host.config = LOG
        await host.start()
        plog = await host.create(0)
        decoy = batch_of(b"decoy")
        decoy[:8] = (50).to_bytes(8, "big")
        await append_waiting(plog, bytes(decoy))
        for _ in range(PER_SEGMENT * 2):
            await append_waiting(plog, VALUE)
        await plog.flush()
        harm(host, 0, 62)
        await round_done(host)
        assert [each.next_offset for each in plog.damage.places] == [1]
        await host.stop()

    run_virtual(scenario)


def test_an_unreadable_place_takes_no_disk_out_of_service() -> None:
    async def scenario() -> None:
        host, plog = await node_with()
        # Once as a piece, once as the block that is to blame.
        fault = DiskFault(("read",), errno.EIO, count=2, path_part=file_name(PER_SEGMENT))
        host.machine.disks[host.mounts[0]].faults.append(fault)
        assert (await round_done(host))["damages"] == 1
        assert fault.count == 0 and plog.failed is None and not host.failed
        await host.stop()

    run_virtual(scenario)


def test_a_disk_that_cannot_be_read_is_out_of_service() -> None:
    async def scenario() -> None:
        host, plog = await node_with()
        host.machine.disks[host.mounts[0]].faults.append(DiskFault(("read",), errno.EIO))
        for _ in range(1000):
            await asyncio.sleep(1)
            if host.failed:
                break
        assert host.failed and plog.failed is not None
        await host.stop()

    run_virtual(scenario)


def test_it_keeps_to_its_rate_and_to_its_interval() -> None:
    async def scenario() -> None:
        host, plog = await node_with()
        loop = asyncio.get_running_loop()
        host.manager.reconfigure(replace(SETTINGS, scrub_rate=4096))
        begin = loop.time()
        await round_done(host)
        closed = sum(each.end_position for each in plog.segments[:-1])
        assert loop.time() - begin >= closed / 4096
        host.manager.reconfigure(SETTINGS)
        await asyncio.sleep(3000)
        assert host.services.metrics.scrub_segments_total == 3
        await asyncio.sleep(700)
        assert host.services.metrics.scrub_segments_total == 6
        host.manager.reconfigure(replace(SETTINGS, scrub_interval_ms=-1))
        await asyncio.sleep(10_000)
        assert host.services.metrics.scrub_segments_total == 6
        assert status(host)["state"] == "off"
        await host.stop()

    run_virtual(scenario)


def test_a_restart_goes_on_where_it_was() -> None:
    async def scenario() -> None:
        host, _ = await node_with(PER_SEGMENT * 12)
        slow = replace(SETTINGS, scrub_rate=4096)
        host.manager.reconfigure(slow)
        host.settings = slow
        await asyncio.sleep(150)
        seen = host.services.metrics.scrub_segments_total
        assert 3 <= seen < 9
        await host.crash(power_cut=True)
        await host.start(0)
        await round_done(host)
        again = host.services.metrics.scrub_segments_total
        assert 11 <= seen + again < 18 and again < 11
        await host.stop()

    run_virtual(scenario)


def test_a_damaged_note_begins_a_round() -> None:
    async def scenario() -> None:
        host, _ = await node_with()
        await round_done(host)
        await host.crash()
        root = host.machine.boot().open_directory(f"{host.mounts[0]}/dlog")
        file = root.open(KIND)
        file.pwrite(b"x", 3)
        file.close()
        await host.start(0)
        await round_done(host)
        assert host.services.metrics.scrub_segments_total == 3
        await host.stop()

    run_virtual(scenario)


def test_segments_may_go_meanwhile() -> None:
    async def scenario() -> None:
        host, plog = await node_with(PER_SEGMENT * 6)
        host.manager.reconfigure(replace(SETTINGS, scrub_rate=4096))
        await asyncio.sleep(50)
        await plog.trim_to(PER_SEGMENT * 3)
        await plog.truncate_to(Offset(PER_SEGMENT * 5 - 3))
        found = await round_done(host)
        assert found["damages"] == 0 and plog.failed is None
        await host.manager.delete(partition(0), TOPIC_ID)
        await asyncio.sleep(8000)
        assert not host.failed
        await host.stop()

    run_virtual(scenario)
