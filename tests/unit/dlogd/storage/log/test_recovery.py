"""What recovery makes of a log that was not closed: torn or damaged, each kind by its name."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.batch.header import HEADER_BYTES, patch
from dlog.errors import KafkaStorageError
from dlogd.storage.io.checkpoint_files import replace_file
from dlogd.storage.log import flusher, log_recovery, partition_log
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_recovery import LOG_START, encode_log_start, recover
from dlogd.storage.segment.batch_scan import WINDOW_BYTES
from dlogd.storage.segment.segment_names import IDX, TDX, file_name
from tests.fakes.damaged_logs import (
    LOG_0,
    content,
    fill,
    filled,
    flip,
    overwrite,
    refused,
    segments_config,
    several_segments,
)
from tests.fakes.faults import Latency
from tests.fakes.filled_logs import CONFIG, offsets
from tests.fakes.logs import (
    LogHost,
    append,
    append_waiting,
    batch_of,
    run_virtual,
    settle,
    values_of,
)


def raw_batch(offset: int, *values: bytes, epoch: int = 0) -> bytes:
    """Return a batch as it stands in a segment."""
    batch = batch_of(*values)
    patch(batch, 0, offset, epoch)
    return bytes(batch)


def test_nothing_is_lost_by_a_killed_process() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await filled(host)
        plog = await host.crash()
        assert await offsets(plog) == list(range(20))
        assert plog.flushed_offset == 20

    run_virtual(scenario)


def test_a_zero_filled_preallocated_tail_is_neither_data_nor_torn() -> None:
    """Zeros are known by what no head lacks; their checksum is not even looked at."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        assert len(content(directory)) >= 65536 > end
        plog = await host.open()
        assert await offsets(plog) == list(range(20))
        assert plog.size_bytes == end
        assert plog.active.space.allocated_end >= 65536
        await fill(plog, 3)
        assert await offsets(await host.crash()) == list(range(23))

    run_virtual(scenario)


def of_another_batch(batch: bytes) -> bytes:
    """Return a batch whose records are what these blocks of the disk held before."""
    return batch[:HEADER_BYTES] + raw_batch(20, b"what another file had here")[HEADER_BYTES:]


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(lambda batch: batch[:HEADER_BYTES], id="a head before zeros"),
        pytest.param(of_another_batch, id="a head before old bytes"),
        pytest.param(lambda batch: bytes([*batch[:-2], batch[-2] ^ 1, batch[-1]]), id="one bit"),
    ],
)
def test_h16_a_plausible_head_in_a_preallocated_tail_is_not_data(
    left: Callable[[bytes], bytes],
) -> None:
    """H16: the head is the one that comes next, and all that it claims lies within the file: only
    the checksum tells that these records were never written.
    """

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        written = raw_batch(20, b"what never reached the disk")
        overwrite(directory, LOG_0, end, left(written))
        assert len(content(directory)) >= 65536 > end + len(written)
        plog = await host.open()
        assert await offsets(plog) == list(range(20))
        assert (plog.log_end_offset, plog.size_bytes) == (20, end)
        await append_waiting(plog, b"new")
        await plog.flush()
        assert (await values_of(await host.crash(), 20)) == [(20, b"new")]

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
        assert LOG_0 in text and "flushed records reach to" in text and "out of service" in text

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


def test_no_write_is_larger_than_what_recovery_expects_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of a log whose index has hardly an entry."""
    for module in (partition_log, flusher, log_recovery):
        monkeypatch.setattr(module, "FLUSH_BYTES_MAX", 16_384)

    async def scenario() -> None:
        for seed in range(5):
            config = LogConfig(index_interval_bytes=1 << 30, max_message_bytes=1_200)
            host = LogHost(seed, config)
            plog = await host.open()
            append(plog, b"promised")
            await plog.flush()
            await settle()
            host.machine.disks["/data"].latency = Latency(fixed=0.1)
            for _ in range(60):
                append(plog, b"x" * 1_000)
            await asyncio.sleep(0.05)
            plog = await host.power_cut(keep=0.5)
            assert (await values_of(plog))[0] == (0, b"promised")

    run_virtual(scenario)


def test_file_cut_below_the_flushed_mark() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        end = await filled(host)
        directory = await host.kill()
        file = directory.open(LOG_0)
        file.truncate(end - 40)
        file.sync()
        assert "flushed records reach to" in await refused(host)

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
