"""Damaged places whose beginning was deleted since: nobody has that part, the rest is mended."""

import asyncio

import pytest

from dlog.batch.header import HEADER_BYTES, decode_header, verify_crc
from dlog.client.cluster.partition_calls import delete_records
from dlog.errors import CorruptMessageError
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.repair.tail_repair import TailRepair, filler
from dlogd.storage.segment.bad_ranges import BadRange
from dlogd.storage.segment.segment import SegmentState
from tests.fakes.damaged_logs import LOG_0, overwrite
from tests.fakes.damaged_places import CONFIG
from tests.fakes.logs import LogHost, append_waiting, batch_of, read_batches, run, values_of
from tests.fakes.small_fleet import SmallFleet, tell

TWO = [b"x" * 100, b"y" * 100]
BATCH_BYTES = len(batch_of(*TWO))
COUNT = 60
"""Batches, of two records each."""
FIRST, END = 10, 16
"""The damaged batches are those from offset 10 to 15."""


async def damaged(start: int) -> tuple[LogHost, PartitionLog, BadRange, bytes]:
    """Return a log with three bad batches that starts among them, the place, what was there."""
    host = LogHost(config=CONFIG)
    plog = await host.open()
    for _ in range(COUNT):
        await append_waiting(plog, *TWO)
    await plog.flush()
    while plog.segments[0].state is not SegmentState.SEALED:
        await asyncio.sleep(0.01)
    good = await read_batches(plog, 0)
    position = FIRST // 2 * BATCH_BYTES
    overwrite(host.directory, LOG_0, position + 8, b"\xff" * (2 * BATCH_BYTES + 30))
    plog.damage.note(plog.segments[0].path, position, FIRST, END, END // 2 * BATCH_BYTES)
    await plog.trim_to(start)
    return host, plog, plog.damage.places[0], good


def batches(good: bytes, first: int, end: int) -> bytes:
    return good[first * BATCH_BYTES : end * BATCH_BYTES]


@pytest.mark.parametrize("start", range(FIRST + 1, END))
@pytest.mark.parametrize("pieces", [[(5, 8)], [(5, 6), (6, 7), (7, 8)], [(4, 6), (6, 12)]])
def test_what_is_left_of_a_place_is_whole_again(start: int, pieces: list[tuple[int, int]]) -> None:
    async def scenario() -> None:
        host, plog, place, good = await damaged(start)
        with pytest.raises(CorruptMessageError):
            plog.read(start, 1000, 2 * COUNT)
        mending = TailRepair(plog, place, start)
        for first, end in pieces:
            assert not mending.is_whole
            # A replica gives what begins with the batch that has the offset.
            await mending.take(batches(good, max(first, start // 2), end))
        assert mending.is_whole
        await mending.finish()
        assert not plog.damage.places
        expected = [(n, TWO[n % 2]) for n in range(start, 2 * COUNT)]
        found = [each for each in await values_of(plog) if each[0] >= start]
        assert found == expected
        reopened = await host.power_cut()
        assert [each for each in await values_of(reopened) if each[0] >= start] == expected

    run(scenario)


@pytest.mark.parametrize("count", [0, 1])
def test_what_does_not_fill_the_rest_changes_nothing(count: int) -> None:
    async def scenario() -> None:
        host, plog, place, good = await damaged(13)
        file = host.directory.open(LOG_0, read_only=True)
        before = file.pread(COUNT * BATCH_BYTES, 0)
        mending = TailRepair(plog, place, 13)
        await mending.take(batches(good, 6, 6 + count))
        with pytest.raises(CorruptMessageError, match="does not fill"):
            await mending.finish()
        other = TailRepair(plog, place, 13)
        with pytest.raises(CorruptMessageError, match="does not fit"):
            await other.take(batches(good, 6, 7) + batches(good, 8, 9))
        assert plog.damage.places == [place]
        assert file.pread(COUNT * BATCH_BYTES, 0) == before
        file.close()

    run(scenario)


@pytest.mark.parametrize("size", [HEADER_BYTES, HEADER_BYTES + 1, 5000])
def test_what_fills_the_beginning_is_a_batch(size: int) -> None:
    batch = filler(7, 12, size, 3)
    header = decode_header(batch)
    assert (header.base_offset, header.next_offset, header.record_count) == (7, 12, 0)
    assert len(batch) == size == header.batch_bytes and header.producer_id == -1
    assert verify_crc(batch, 0, size)


def test_rot_where_a_log_starts_is_mended_from_another_replica() -> None:
    values = [b"%03d" % number + b"x" * 97 for number in range(COUNT)]
    batch_bytes = len(batch_of(values[0]))

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", segment_bytes="4000")
        await fleet.produce("t", *values)
        await fleet.until_in_sync("t")
        victim = fleet.followers("t")[0]
        plog = fleet.replica(victim, "t").log
        await fleet.until(lambda: plog.segments[0].state is SegmentState.SEALED)
        cluster = fleet.cluster
        await cluster.run(
            lambda: cluster.leader("t", 0), lambda node: delete_records(node, "t", {0: 5})
        )
        await fleet.until(lambda: plog.log_start_offset == 5)
        overwrite(plog.directory, LOG_0, 3 * batch_bytes, b"\xee" * 4 * batch_bytes)
        replicating = fleet.broker(victim).replicating
        assert replicating is not None
        await fleet.until(lambda: replicating.mender.counters.mended_total == 1, 120)
        assert not plog.damage.places
        leader = fleet.leader("t")
        # Not from memory any more, so each on its own node.
        loop = fleet.host(victim).loop
        assert loop is not None
        mended = loop.create_task(read_batches(plog, 5))
        await fleet.until(mended.done)
        assert mended.result() == await read_batches(fleet.replica(leader, "t").log, 5)

    tell(story, config={"scrub.interval": "1s", "scrub.rate": "10MiB"})
