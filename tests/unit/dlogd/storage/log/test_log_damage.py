"""Bytes that rot in a segment of a partition log: told where they are, and no further."""

import random
import struct

import pytest

from dlog.batch.header import verify_crc
from dlog.errors import CorruptMessageError
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.bad_ranges import KNOWN_REPEATS_MAX
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.logs import LogHost, append_waiting, batch_of, run, values_of

CONFIG = LogConfig(segment_bytes=8000, preallocate_bytes=0, index_interval_bytes=1000)
BATCH_BYTES = len(batch_of(b"x" * 100))
COUNT = 120


async def damaged(host: LogHost, number: int, length: int) -> PartitionLog:
    """Write some segments, give batch `number` of the first another length, start again."""
    return await rotted(host, COUNT, number, 8, struct.pack(">i", length))


async def rotted(host: LogHost, count: int, number: int, at: int, data: bytes) -> PartitionLog:
    """Write so many batches, change bytes of one in the first segment, start again."""
    plog = await host.open()
    for value in range(count):
        await append_waiting(plog, b"%03d" % value + b"x" * 97)
    await plog.close()
    await host.services.tasks.close()
    directory = await host.kill()
    file = directory.open(file_name(0))
    file.pwrite(data, BATCH_BYTES * number + at)
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


@pytest.mark.parametrize(
    ("number", "at", "value"),
    [
        pytest.param(22, 12, b"\x40", id="the last one's leader epoch"),  # seed 227782
        pytest.param(14, 8, struct.pack(">i", -12), id="a length that leads nowhere"),
        pytest.param(14, 8, struct.pack(">i", BATCH_BYTES), id="a length that leads astray"),
    ],
)
def test_what_memory_has_read_from_the_last_block_is_not_believed(
    number: int, at: int, value: bytes
) -> None:
    """A start reads that block into memory, and looks only at what no index entry leads to."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rotted(host, 23, number, at, value)
        await append_waiting(plog, b"y" * 100)
        await plog.flush()
        assert plog.active.tail.holds(BATCH_BYTES * number)
        with pytest.raises(CorruptMessageError, match="is damaged"):
            for _ in range(KNOWN_REPEATS_MAX + 6):
                await poll(plog, number)
        for offset in range(24):
            if offset != number:
                assert verify_crc(await poll(plog, offset), 0, BATCH_BYTES)
        (place,) = plog.damage.places
        assert (place.first_offset, place.next_offset) == (number, number + 1)

    run(scenario)


def _spoil(host: LogHost, number: int, at: int, data: bytes) -> None:
    file = host.directory.open(file_name(0))
    file.pwrite(data, BATCH_BYTES * number + at)
    file.close()


@pytest.mark.parametrize("number", [0, 1, 4, 6])
def test_what_is_behind_a_damaged_head_is_read(number: int) -> None:
    """Without another replica: else all records up to the next entry of the index were lost."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await damaged(host, 1, BATCH_BYTES - 12)  # as it is
        _spoil(host, number, 2, b"\x05")
        for offset in range(14):
            if offset != number:
                assert (await poll(plog, offset))[:8] == offset.to_bytes(8, "big")
        with pytest.raises(CorruptMessageError, match="is damaged"):
            for _ in range(4):
                await poll(plog, number)
        (place,) = plog.damage.places
        assert (place.first_offset, place.next_offset) == (number, number + 1)
        assert place.end_position == BATCH_BYTES * (number + 1)
        # What was known before is not searched for again.
        await plog.trim_to(number + 1)
        for offset in range(number + 1, 14):
            assert await poll(plog, offset)

    run(scenario)


@pytest.mark.parametrize("asked", [(1,), (2,), (3,), (1, 2, 3), (0,)])
def test_what_only_looks_like_a_batch_in_a_damaged_one_is_not_served(
    asked: tuple[int, ...],
) -> None:
    """A record may hold a batch, of another log, say: it does not lead to what comes behind.

    Nor does the damaged place end there, whoever asks: what others have would not fit into it.
    """

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        inner = bytearray(batch_of(b"not this one"))
        inner[:8] = (2).to_bytes(8, "big")
        values = [b"0", b"<" + bytes(inner) + b">", b"2", b"3", *[b"x" * 1000] * 20]
        for value in values:
            await append_waiting(plog, value)
        await plog.close()
        await host.services.tasks.close()
        await host.kill()
        plog = await host.open(clean=True)
        file = host.directory.open(file_name(0))
        file.pwrite(b"\x05", len(batch_of(b"0")) + 2)  # the base offset of the second one
        file.close()
        assert await poll(plog, 0)
        for offset in asked:
            if offset == 0:
                await plog.locate(0)
                continue
            with pytest.raises(CorruptMessageError, match="is damaged"):
                for _ in range(4):
                    assert b"not this one" not in (await poll(plog, offset))[:100]
        (place,) = plog.damage.places
        assert place.first_offset == 1 and place.next_offset > 3

    run(scenario)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_rots_in_heads_the_others_are_served_as_they_were_written(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await damaged(host, 1, BATCH_BYTES - 12)  # as it is
        file = host.directory.open(file_name(0))
        good = file.pread(40 * BATCH_BYTES, 0)
        first = rng.randrange(30)
        bad = {first + number for number in range(4) if rng.random() < 0.7}
        for number in bad:
            # What a walk goes by: offset, length, magic, the number of offsets.
            at = rng.choice((*range(12), 16, *range(23, 27)))
            value = rng.choice((0, 1, 5, 0xFF, rng.randrange(first + 6)))
            file.pwrite(bytes([value]), number * BATCH_BYTES + at)
        file.close()
        served = 0
        for _ in range(2):
            for offset in rng.sample(range(36), 36):
                try:
                    data = await poll(plog, offset)
                except CorruptMessageError:
                    continue
                start = BATCH_BYTES * offset
                found = data[:BATCH_BYTES]
                if offset not in bad and verify_crc(found, 0, len(found)):
                    assert found == good[start : start + BATCH_BYTES]
                    served += 1
        assert served >= 2 * 20
        assert not any(
            place.first_offset <= offset < place.next_offset
            for place in plog.damage.places
            for offset in range(40)
            if not min(bad, default=99) - 1 <= offset <= max(bad, default=0) + 8
        )

    run(scenario)


@pytest.mark.parametrize("last", range(2, 14))
def test_a_batch_whose_offset_has_rotted_stands_for_no_other(last: int) -> None:
    """No checksum covers offsets: only what comes behind says which one it must be."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await damaged(host, 1, BATCH_BYTES - 12)  # as it is
        for number in (last - 2, last - 1):
            _spoil(host, number, 2, b"\x05")
            _spoil(host, number, 90, b"\xee")
        _spoil(host, last, 7, bytes([last - 1]))
        for offset in (last - 1, last - 2):
            with pytest.raises(CorruptMessageError, match="is damaged"):
                for _ in range(4):
                    data = await poll(plog, offset)
                    assert not verify_crc(data, 0, BATCH_BYTES)

    run(scenario)


@pytest.mark.parametrize("number", range(4, 7))
@pytest.mark.parametrize("delta", [1, 60])
def test_a_last_offset_that_has_rotted_makes_nothing_else_unreadable(
    number: int, delta: int
) -> None:
    """Number 5 is the last one before an entry of the index: no head behind it tells."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await damaged(host, 1, BATCH_BYTES - 12)  # as it is
        _spoil(host, number, 26, bytes([delta]))
        with pytest.raises(CorruptMessageError, match="is damaged"):
            for _ in range(KNOWN_REPEATS_MAX + 6):
                await poll(plog, number)
        for offset in range(40):
            assert offset == number or await poll(plog, offset)
        (place,) = plog.damage.places
        assert (place.first_offset, place.next_offset) == (number, number + 1)

    run(scenario)


@pytest.mark.parametrize("number", range(6, 12))
def test_offsets_of_a_batch_that_says_it_has_fewer_are_damaged(number: int) -> None:
    """Else nothing would be found there, and nothing noted that could be mended."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        for _ in range(60):
            await append_waiting(plog, *[b"x" * 50] * 3)
        await plog.close()
        await host.services.tasks.close()
        await host.kill()
        plog = await host.open(clean=True)
        size = len(batch_of(*[b"x" * 50] * 3))
        file = host.directory.open(file_name(0))
        file.pwrite(b"\0", size * number + 26)
        file.close()
        with pytest.raises(CorruptMessageError, match="is damaged"):
            for _ in range(4):
                await poll(plog, 3 * number + 2)

    run(scenario)
