"""Mending, where memory has read the bad bytes before anybody knew that they are bad."""

import asyncio

from dlogd.storage.repair.segment_repair import SegmentRepair
from dlogd.storage.segment.segment import SegmentState
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.damaged_places import BATCH_BYTES, CONFIG, COUNT
from tests.fakes.logs import LogHost, append_waiting, read_batches, run


def test_what_memory_has_of_a_place_is_not_served_any_more() -> None:
    """A cut reads the last block again, with what has rotted in it."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        for number in range(6):
            await append_waiting(plog, b"%03d" % number + b"x" * 97)
        await plog.flush()
        good = await read_batches(plog, 0)
        file = host.directory.open(file_name(0))
        file.pwrite(b"\x40", 2 * BATCH_BYTES + 12)  # the leader epoch, under no checksum
        file.close()
        await plog.truncate_to(5)
        for number in range(5, COUNT):
            await append_waiting(plog, b"%03d" % number + b"x" * 97)
        await plog.flush()
        while plog.segments[0].state is not SegmentState.SEALED:
            await asyncio.sleep(0.01)
        path = plog.segments[0].path
        plog.damage.note(path, 2 * BATCH_BYTES, 2, 3, 3 * BATCH_BYTES)
        mending = SegmentRepair(plog, plog.damage.places[0])
        await mending.take(good[2 * BATCH_BYTES : 3 * BATCH_BYTES])
        await mending.finish()
        assert (await read_batches(plog, 0))[: 5 * BATCH_BYTES] == good[: 5 * BATCH_BYTES]

    run(scenario)
