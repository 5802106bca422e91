"""Bytes that rot in a closed segment of a partition log: told where they are, and no further."""

import struct

import pytest

from dlog.errors import CorruptMessageError
from dlogd.storage.damage import KNOWN_REPEATS_MAX
from dlogd.storage.log import PartitionLog
from dlogd.storage.log_config import LogConfig
from dlogd.storage.segment import file_name
from tests.fakes.logs import LogHost, append_waiting, batch_of, run, values_of

CONFIG = LogConfig(segment_bytes=8000, preallocate_bytes=0, index_interval_bytes=1000)
BATCH_BYTES = len(batch_of(b"x" * 100))
COUNT = 120


async def damaged(host: LogHost, number: int, length: int) -> PartitionLog:
    """Write some segments, give batch `number` of the first another length, start again."""
    plog = await host.open()
    for value in range(COUNT):
        await append_waiting(plog, b"%03d" % value + b"x" * 97)
    await plog.close()
    await host.services.tasks.close()
    directory = await host.kill()
    file = directory.open(file_name(0))
    file.pwrite(struct.pack(">i", length), BATCH_BYTES * number + 8)
    file.sync()
    file.close()
    return await host.open(clean=True)


async def poll(plog: PartitionLog, offset: int) -> bytes:
    """Read as a server does for a consumer; return the first bytes."""
    found = plog.read(offset, 1000, COUNT)
    for _ in range(3):
        if found is not None:
            break
        await plog.locate(offset)
        found = plog.read(offset, 1000, COUNT)
    assert found is not None, "one or two searches are enough"
    piece = found.ranges[0]
    return await plog.reader.bytes_of(piece.segment, piece.position, piece.length)


@pytest.mark.parametrize("number", [3, 6, 10, 12])
@pytest.mark.parametrize("length", [0x7FFFFFF0, 5000, 1, -1, BATCH_BYTES - 11])
def test_a_damaged_length_is_an_error_where_it_is(
    number: int, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await damaged(host, number, length)
        with pytest.raises(CorruptMessageError, match="is damaged"):
            for _ in range(4):  # an indexed batch is sent as it is, until it is asked for again
                await poll(plog, number)
        for _ in range(3):
            for offset in range(number):
                assert await poll(plog, offset), "what comes before is served"
        assert len([line for line in caplog.messages if "Damaged log" in line]) == 1
        assert f"position={BATCH_BYTES * number} " in caplog.text
        problems = plog.damage.problems(0)
        assert len(problems) == 1 and file_name(0) in problems[0]
        assert plog.failed is None
        assert len(await values_of(plog, 60)) == 60, "and what comes behind"
        await plog.trim_to(100)
        assert not plog.damage.problems(plog.log_start_offset)

    run(scenario)


@pytest.mark.parametrize("number", [0, 3, 10, 13])
@pytest.mark.parametrize("position", [90, 12], ids=["a record", "the leader epoch"])
def test_a_batch_whose_readers_throw_it_away_is_looked_at(number: int, position: int) -> None:
    """Records are sent unseen: only who asks for them again and again says that they are bad.

    A follower does so, too, of a batch whose leader epoch has rotted, which no checksum covers: its
    leader would never look at it before the segment is closed (seed 193810).
    """

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await damaged(host, 1, BATCH_BYTES - 12)  # as it is
        file = host.directory.open(file_name(0))
        file.pwrite(b"\xee", BATCH_BYTES * number + position)
        file.close()
        with pytest.raises(CorruptMessageError, match="is damaged"):
            for _ in range(KNOWN_REPEATS_MAX + 6):
                await poll(plog, number)
        (place,) = plog.damage.places
        assert (place.first_offset, place.next_offset) == (number, number + 1)
        assert (place.position, place.end_position) == (
            BATCH_BYTES * number,
            BATCH_BYTES * (number + 1),
        )
        for _ in range(20):
            assert await poll(plog, number + 1), "others may be asked for as often as one likes"
        assert len(plog.damage.places) == 1

    run(scenario)
