"""What recovery makes of a log that was not closed: each kind of damage by its name."""

import asyncio
import logging
from dataclasses import replace

import pytest

from dlog.batch.header import patch
from dlog.errors import KafkaStorageError
from dlog.types import LeaderEpoch
from dlogd.config.choices import DirectIo, FlushPolicy
from dlogd.storage.checkpoint import replace_file
from dlogd.storage.entries import HEADER_BYTES
from dlogd.storage.files import Directory
from dlogd.storage.log import PartitionLog
from dlogd.storage.log_config import LogConfig
from dlogd.storage.recovery import LOG_START, encode_log_start, recover
from dlogd.storage.scan import WINDOW_BYTES
from dlogd.storage.segment import IDX, TDX, file_name
from tests.fakes.logs import LogHost, append_waiting, batch_of, run_virtual, settle, values_of

LOG_0 = file_name(0)
CONFIG = LogConfig(
    segment_bytes=1 << 20, preallocate_bytes=1 << 16, index_interval_bytes=256, segment_ms=10**9
)


async def fill(plog: PartitionLog, count: int, size: int = 100, epoch: int = 0) -> None:
    """Append and flush batches of one record each."""
    for number in range(count):
        await append_waiting(plog, b"%d" % number + bytes([65 + number % 26]) * size, epoch=epoch)
    await plog.flush()
    await settle()


async def filled(host: LogHost, count: int = 20, size: int = 100) -> int:
    """Open a log, fill it, kill the process; return where the data ends."""
    plog = await host.open()
    await fill(plog, count, size)
    return plog.active.end_position


def raw_batch(offset: int, *values: bytes, epoch: int = 0) -> bytes:
    """Return a batch as it stands in a segment."""
    batch = batch_of(*values)
    patch(batch, 0, offset, epoch)
    return bytes(batch)


def overwrite(directory: Directory, name: str, position: int, data: bytes) -> None:
    """Change bytes of a file at rest."""
    file = directory.open(name)
    file.pwrite(data, position)
    file.sync()
    file.close()


def flip(directory: Directory, name: str, position: int) -> None:
    """Flip one bit of a file at rest."""
    file = directory.open(name)
    byte = file.pread(1, position)[0]
    file.close()
    overwrite(directory, name, position, bytes([byte ^ 0x10]))


def content(directory: Directory, name: str = LOG_0) -> bytes:
    """Return all bytes of a file."""
    file = directory.open(name)
    data = file.pread(file.size(), 0)
    file.close()
    return data


async def offsets(plog: PartitionLog) -> list[int]:
    return [offset for offset, _ in await values_of(plog)]


async def refused(host: LogHost) -> str:
    """Open the log, which must be refused without a change; return the message."""
    directory = host.machine.boot().open_directory("/data/t-0")
    before = {name: content(directory, name) for name in directory.names()}
    with pytest.raises(KafkaStorageError) as caught:
        await host.open()
    directory = host.machine.boot().open_directory("/data/t-0")
    assert {name: content(directory, name) for name in directory.names()} == before
    return str(caught.value)


def test_nothing_is_lost_by_a_killed_process() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host)
        plog = await host.crash()
        assert await offsets(plog) == list(range(20))
        assert plog.flushed_offset == 20

    run_virtual(scenario)


def test_h16_a_zero_filled_preallocated_tail_is_not_data() -> None:
    """H16: a zero-filled tail must not parse as records; it is no torn tail either."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        assert len(content(directory)) >= 65536 > end
        plog = await host.open()
        assert await offsets(plog) == list(range(20))
        assert plog.size_bytes == end
        assert plog.active.allocated_end >= 65536
        await fill(plog, 3)
        assert await offsets(await host.crash()) == list(range(23))

    run_virtual(scenario)


@pytest.mark.parametrize("cut", [1, 60, 61, 100, 161])
def test_torn_tail_without_anything_behind_it(cut: int) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        torn = raw_batch(20, b"never acknowledged" * 10)[:cut]
        overwrite(directory, LOG_0, end, torn)
        plog = await host.open()
        assert await offsets(plog) == list(range(20))
        assert set(content(host.directory)[end:]) <= {0}

    run_virtual(scenario)


def test_h17_what_is_cut_never_comes_back() -> None:
    """H17: stale bytes behind a later append must not parse as its continuation."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        first, second = raw_batch(20, b"first"), raw_batch(21, b"second")
        broken = bytearray(first)
        broken[-1] ^= 1
        overwrite(directory, LOG_0, end, bytes(broken) + bytes(1024) + second)
        plog = await host.open()
        assert plog.log_end_offset == 20
        await append_waiting(plog, b"other")  # exactly as long as the first
        await plog.flush()
        plog = await host.crash()
        assert [value for _, value in await values_of(plog, 20)] == [b"other"]

    run_virtual(scenario)


def lost_sector(end: int) -> bytes:
    """Return a last write of three batches of which the second sector did not reach the disk."""
    written = b"".join(raw_batch(20 + n, b"%d" % n * 700) for n in range(3))
    start = -end % 512 + 512  # the second sector boundary within the write
    return written[:start] + bytes(512) + written[start + 512 :]


def test_torn_sector_in_the_last_write(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        overwrite(await host.kill(), LOG_0, end, lost_sector(end))
        with caplog.at_level(logging.WARNING):
            plog = await host.open()
        assert await offsets(plog) == list(range(20))
        assert "Cut a torn tail" in caplog.text
        assert set(content(host.directory)[end:]) <= {0}

    run_virtual(scenario)


def test_nothing_is_called_cut_when_the_log_would_end_too_early(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The end that the last run noted is checked first, and then no file is touched."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        for suffix in (IDX, TDX):  # the flushed mark with it
            directory.unlink(file_name(0, suffix))
        flip(directory, LOG_0, end - 10)
        before = content(directory)
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(KafkaStorageError, match="ends at offset 19, but held all up to 20"),
        ):
            recover(directory, CONFIG, clean=False, stored_end=20)
        assert content(directory) == before
        assert "Cut a torn tail" not in caplog.text
        found = recover(directory, CONFIG, clean=False, stored_end=19)
        # The last byte of a batch is zero, as what is preallocated.
        assert found.report.bytes_cut == end - 1 - found.segments[0].end_position > 0
        assert "Cut a torn tail" in caplog.text

    run_virtual(scenario)


def test_progress_moves_while_one_large_segment_is_scanned() -> None:
    """The service manager waits as long as it moves; a slow disk needs minutes for one segment."""

    async def scenario() -> None:
        config = replace(CONFIG, segment_bytes=16 << 20, index_interval_bytes=4096)
        host = LogHost(config=config)
        plog = await host.open()
        await fill(plog, 60, 60_000)
        end = plog.active.end_position
        assert len(plog.segments) == 1 and end > 3 * WINDOW_BYTES
        directory = await host.kill()
        for suffix in (IDX, TDX):
            directory.unlink(file_name(0, suffix))
        steps: list[int] = []
        found = recover(directory, config, clean=False, on_progress=steps.append)
        assert found.report.bytes_scanned >= end
        assert sum(steps) >= end
        assert max(steps) <= WINDOW_BYTES

    run_virtual(scenario)


def test_first_sector_of_the_last_write_lost() -> None:
    """Of that sector only what follows the older batches may be zeros."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        written = b"".join(raw_batch(20 + n, b"%d" % n * 700) for n in range(3))
        rest = -end % 512
        overwrite(await host.kill(), LOG_0, end, bytes(rest) + written[rest:])
        assert await offsets(await host.open()) == list(range(20))

    run_virtual(scenario)


def test_bit_flip_in_the_middle_of_flushed_data() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        # Beyond the last index entry: what is before it is the scrub's.
        flip(directory, LOG_0, end - 250)
        text = await refused(host)
        assert LOG_0 in text and "flushed reaches to" in text and "out of service" in text

    run_virtual(scenario)


def test_bit_flip_in_the_last_flushed_batch() -> None:
    """Nothing valid follows, but the flushed mark says that it was acknowledged."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        flip(await host.kill(), LOG_0, end - 10)
        await refused(host)

    run_virtual(scenario)


def test_bit_flip_beyond_the_mark_with_good_batches_behind_it() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        written = b"".join(raw_batch(20 + n, b"%d" % n * 700) for n in range(3))
        directory = await host.kill()
        overwrite(directory, LOG_0, end, written)
        flip(directory, LOG_0, end + 300)
        assert "a good batch follows" in await refused(host)

    run_virtual(scenario)


def test_torn_region_larger_than_any_write_is_damage() -> None:
    async def scenario() -> None:
        config = replace(CONFIG, segment_bytes=64 << 20, max_message_bytes=1 << 20)
        host = LogHost(config=config)
        end = await filled(host)
        directory = await host.kill()
        overwrite(directory, LOG_0, end + (12 << 20), raw_batch(500, b"far away"))
        assert "more than one write" in await refused(host)

    run_virtual(scenario)


def test_file_cut_below_the_flushed_mark() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        file = directory.open(LOG_0)
        file.truncate(end - 40)
        file.sync()
        assert "flushed reaches to" in await refused(host)

    run_virtual(scenario)


@pytest.mark.parametrize("suffixes", [(IDX,), (TDX,), (IDX, TDX)])
def test_missing_index(suffixes: tuple[str, ...]) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host, 200)
        directory = await host.kill()
        for suffix in suffixes:
            directory.unlink(file_name(0, suffix))
        plog = await host.open()
        assert await offsets(plog) == list(range(200))
        assert plog.segments[0].index.count > 50
        assert plog.segments[0].index.count == plog.segments[0].times.count
        assert (await plog.offset_for_timestamp(1000)) == (1000, 0, 0)

    run_virtual(scenario)


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 9000, bytes(9000), b"DLIX" + bytes(5000)])
@pytest.mark.parametrize("suffix", [IDX, TDX])
def test_garbage_index(suffix: str, garbage: bytes) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host, 200)
        directory = await host.kill()
        file = directory.open(file_name(0, suffix))
        file.truncate(0)
        file.pwrite(garbage, 0)
        file.sync()
        plog = await host.open()
        assert await offsets(plog) == list(range(200))
        assert plog.segments[0].index.count > 50

    run_virtual(scenario)


def test_index_entries_that_name_no_batch_are_stepped_over() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host, 200)
        count = host.log.active.index.settled
        directory = await host.kill()
        for number in range(count - 3, count):
            at = HEADER_BYTES + 12 * number
            entry = bytearray(content(directory, file_name(0, IDX))[at : at + 12])
            entry[4] ^= 1
            overwrite(directory, file_name(0, IDX), at, bytes(entry))
        plog = await host.open()
        assert await offsets(plog) == list(range(200))

    run_virtual(scenario)


def test_garbage_in_the_flushed_mark_is_not_believed() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host)
        overwrite(await host.kill(), file_name(0, IDX), 24, b"\xee" * 8)
        assert await offsets(await host.open()) == list(range(20))

    run_virtual(scenario)


def segments_config(policy: FlushPolicy = FlushPolicy.ALWAYS) -> LogConfig:
    return replace(CONFIG, segment_bytes=4096, flush_policy=policy, direct_io=DirectIo.OFF)


async def several_segments(host: LogHost) -> list[int]:
    """Fill some segments; return the base offsets."""
    plog = await host.open()
    await fill(plog, 100)
    for _ in range(50):
        await settle()
    return [segment.base_offset for segment in plog.segments]


def test_index_of_a_closed_segment_is_rebuilt() -> None:
    async def scenario() -> None:
        host = LogHost(config=segments_config())
        bases = await several_segments(host)
        assert len(bases) > 3
        directory = await host.kill()
        directory.unlink(file_name(bases[1], IDX))
        plog = await host.open()
        assert await offsets(plog) == list(range(100))
        assert host.directory.exists(file_name(bases[1], IDX))

    run_virtual(scenario)


def test_missing_segment_in_the_middle() -> None:
    async def scenario() -> None:
        host = LogHost(config=segments_config())
        bases = await several_segments(host)
        directory = await host.kill()
        directory.unlink(file_name(bases[1]))
        assert f"begins with offset {bases[2]}" in await refused(host)

    run_virtual(scenario)


def test_missing_first_segment() -> None:
    async def scenario() -> None:
        host = LogHost(config=segments_config())
        bases = await several_segments(host)
        directory = await host.kill()
        directory.unlink(file_name(bases[0]))
        assert f"begins with offset {bases[1]}" in await refused(host)

    run_virtual(scenario)


def test_damage_at_the_end_of_a_closed_segment() -> None:
    async def scenario() -> None:
        host = LogHost(config=segments_config())
        bases = await several_segments(host)
        directory = await host.kill()
        name = file_name(bases[1])
        flip(directory, name, len(content(directory, name)) - 5)
        assert name in await refused(host)

    run_virtual(scenario)


def test_segment_that_was_rolled_to_and_never_written() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host)
        await append_waiting(host.log, b"in memory only")
        host.log.roll()
        directory = await host.kill()
        directory.open(file_name(21), create=True).close()
        plog = await host.open()
        assert await offsets(plog) == list(range(20))
        assert [segment.base_offset for segment in plog.segments] == [0]
        assert not host.directory.exists(file_name(21))

    run_virtual(scenario)


def test_lost_page_of_a_closed_segment_under_a_weak_policy() -> None:
    """Without flushes later pages may reach the disk before earlier ones: the log is cut there."""

    async def scenario() -> None:
        host = LogHost(config=segments_config(FlushPolicy.NEVER))
        plog = await host.open()
        for number in range(100):
            await append_waiting(plog, b"%d" % number + b"x" * 100)
            await settle()
        await plog.flush()
        bases = [segment.base_offset for segment in plog.segments]
        directory = await host.kill()
        for base in bases:
            if directory.exists(file_name(base, IDX)):  # as if nothing had been synced yet
                directory.unlink(file_name(base, IDX))
        overwrite(directory, file_name(bases[1]), 1024, bytes(1024))
        plog = await host.open()
        found = await offsets(plog)
        assert bases[1] < len(found) < bases[2]
        assert found == list(range(len(found)))
        assert [segment.base_offset for segment in plog.segments] == bases[:2]

    run_virtual(scenario)


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_leader_epochs_are_found_again(damage: str) -> None:
    async def scenario() -> None:
        host = LogHost(config=segments_config())
        plog = await host.open()
        for epoch in (1, 2, 5):
            await fill(plog, 40, epoch=epoch)
        expected = plog.epochs.entries
        assert expected == [(1, 0), (2, 40), (5, 80)]
        directory = await host.kill()
        if damage == "missing":
            directory.unlink("leader-epochs")
        else:
            overwrite(directory, "leader-epochs", 20, b"\xff\xff")
        plog = await host.open()
        assert plog.epochs.entries == expected

    run_virtual(scenario)


def test_epochs_found_by_one_recovery_are_known_to_the_next() -> None:
    """It completes the index, so the next one does not see the first batch of the epoch again."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        await fill(plog, 3)
        for _ in range(20):
            await append_waiting(plog, b"x" * 100, epoch=5)
        while plog.promised_offset < 23:
            await asyncio.sleep(0)
        assert host.directory.names()[-1] != "leader-epochs" or plog.active.index.settled < 5
        for _ in range(2):
            plog = await host.crash()
            assert plog.epochs.entries == [(0, 0), (5, 3)]
        assert plog.active.index.settled > 5

    run_virtual(scenario)


def test_truncation_forgets_later_epochs_for_good() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        for epoch in (1, 2, 4):
            await fill(plog, 10, epoch=epoch)
        await plog.truncate_to(20)
        assert plog.end_offset_for_epoch(LeaderEpoch(4)) == (-1, -1)
        assert plog.end_offset_for_epoch(LeaderEpoch(2)) == (2, 20)
        plog = await host.power_cut(keep=0.0)
        assert plog.epochs.entries == [(1, 0), (2, 10)]
        await append_waiting(plog, b"x", epoch=3)
        assert plog.epochs.entries == [(1, 0), (2, 10), (3, 20)]

    run_virtual(scenario)


def test_log_that_ends_before_its_start_begins_anew() -> None:
    """Under a weak policy a power cut may take records that had been trimmed already."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host)
        replace_file(await host.kill(), LOG_START, encode_log_start(500))  # type: ignore[arg-type]
        plog = await host.open()
        assert (plog.log_start_offset, plog.log_end_offset) == (500, 500)
        assert await append_waiting(plog, b"x") == 500
        await plog.flush()
        assert await offsets(await host.crash()) == [500]

    run_virtual(scenario)


def test_damaged_log_start_is_not_guessed() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host)
        replace_file(await host.kill(), LOG_START, b"nonsense")
        assert LOG_START in await refused(host)

    run_virtual(scenario)


def test_clean_start_needs_no_scan_and_an_unclean_one_little() -> None:
    async def scenario() -> None:
        host = LogHost(config=segments_config())
        bases = await several_segments(host)
        plog = await host.reopen()
        assert await offsets(plog) == list(range(100))
        assert host.services.metrics.recovered_bytes_total <= 4096
        plog = await host.crash()
        assert len(plog.segments) == len(bases)
        assert host.services.metrics.recovered_bytes_total <= len(bases) * 1024

    run_virtual(scenario)


def test_stray_index_files_are_removed() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host)
        directory = await host.kill()
        directory.open(file_name(777, IDX), create=True).close()
        directory.open("notes.txt", create=True).close()
        await host.open()
        assert not host.directory.exists(file_name(777, IDX))
        assert host.directory.exists("notes.txt")

    run_virtual(scenario)
