"""A torn write of a batch larger than a flush, of a topic that takes no such batches any more.

A follower takes what its leader has, whatever the limit is by now, and a limit may be lowered just
before the power goes. All sizes by 1/128: a flush has 64 KiB, the batch 88 KiB.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.batch.header import patch
from dlogd.storage.log import flusher, log_recovery, partition_log
from tests.fakes.damaged_logs import LOG_0, filled, overwrite, refused
from tests.fakes.faults import Latency
from tests.fakes.filled_logs import CONFIG, offsets
from tests.fakes.logs import LogHost, append, batch_of, run_virtual, settle, values_of

FLUSH = 64 << 10
LARGE = FLUSH + (24 << 10)
PRESENT = replace(CONFIG, max_message_bytes=8 << 10)
COUNT = 20
"""Records that were promised."""


@pytest.fixture(autouse=True)
def small_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (partition_log, flusher, log_recovery):
        monkeypatch.setattr(module, "FLUSH_BYTES_MAX", FLUSH)


def write_of(*values: bytes) -> tuple[bytearray, list[int]]:
    """Return what one write brings behind the promised records, and where its batches begin."""
    data, starts = bytearray(), []
    for number, value in enumerate(values):
        batch = batch_of(value)
        patch(batch, 0, COUNT + number, 0)
        starts.append(len(data))
        data += batch
    return data, starts


def lose_sector(data: bytearray, end: int, position: int) -> None:
    """Let the sector that holds this position of a write, which begins at `end`, not arrive."""
    start = (end + position) // 512 * 512 - end
    for index in range(max(start, 0), min(start + 512, len(data))):
        data[index] = 0


Harm = Callable[[bytearray, list[int], int], None]


def lose_first_sector(data: bytearray, starts: list[int], end: int) -> None:
    lose_sector(data, end, 0)


def lose_last_head(data: bytearray, starts: list[int], end: int) -> None:
    lose_sector(data, end, starts[-1])


def lose_middle(data: bytearray, starts: list[int], end: int) -> None:
    lose_sector(data, end, len(data) // 2)


def lose_end(data: bytearray, starts: list[int], end: int) -> None:
    del data[-5_000:]


@pytest.mark.parametrize("harm", [lose_first_sector, lose_last_head, lose_middle, lose_end])
@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_torn_write_of_a_batch_larger_than_is_allowed_now(before: int, harm: Harm) -> None:
    """`before`: small batches of the same write."""

    async def scenario() -> None:
        host = LogHost(config=PRESENT)
        end = await filled(host, COUNT)
        data, starts = write_of(*[b"s" * 700] * before, b"\1" * LARGE)
        harm(data, starts, end)
        overwrite(await host.kill(), LOG_0, end, bytes(data))
        plog = await host.open()
        found = await offsets(plog)
        assert found[:COUNT] == list(range(COUNT)) and plog.log_end_offset <= COUNT + before

    run_virtual(scenario)


def test_what_power_cuts_leave_of_large_batches_is_no_damage() -> None:
    async def scenario() -> None:
        for seed in range(12):
            host = LogHost(seed, replace(PRESENT, max_message_bytes=256 << 10))
            plog = await host.open()
            append(plog, b"promised")
            await plog.flush()
            await settle()
            host.machine.disks["/data"].latency = Latency(fixed=0.1)
            for size in (1_000, LARGE, 1_000, 1_000, 2 * LARGE, 1_000):
                append(plog, b"\1" * size)
            await asyncio.sleep(0.05 + 0.1 * (seed % 4))  # in the midst of one of the writes
            host.config = PRESENT
            plog = await host.power_cut(keep=0.5)
            assert (await values_of(plog))[0] == (0, b"promised")

    run_virtual(scenario)


def test_batches_in_the_record_of_a_torn_batch_are_not_of_later_writes() -> None:
    async def scenario() -> None:
        host = LogHost(config=PRESENT)
        end = await filled(host, COUNT)
        inner, _ = write_of(*[b"i" * 500] * 4)
        data, _ = write_of(bytes(LARGE) + bytes(inner))
        overwrite(await host.kill(), LOG_0, end, bytes(data[:-10]) + b"torn")
        assert await offsets(await host.open()) == list(range(COUNT))

    run_virtual(scenario)


async def damaged(data: bytes) -> str:
    """Return why a log is out of service that has this behind what was promised."""
    host = LogHost(config=CONFIG)
    end = await filled(host, COUNT)
    overwrite(await host.kill(), LOG_0, end, data)
    return await refused(host)


def test_more_than_the_heads_of_a_write_claim_is_damage() -> None:
    """Also with a sector of zeros in the batch that is bad, and no good one behind it."""

    async def scenario() -> None:
        data, _ = write_of(*[b"s" * 700] * 3, b"\1" * LARGE)
        lose_sector(data, 0, len(data) - LARGE // 2)  # so that its checksum does not fit
        assert "more than one write" in await damaged(bytes(data) + b"\1" * 100)

    run_virtual(scenario)


def test_a_head_that_is_neither_there_nor_missing_is_damage() -> None:
    """More than a flush has, and all of it is rubbish: no write leaves that."""

    async def scenario() -> None:
        assert "more than one write" in await damaged(b"\1" * LARGE)
        data, _ = write_of(b"s" * 700)
        assert "more than one write" in await damaged(b"\1" + bytes(data[1:]) + b"\1" * LARGE)

    run_virtual(scenario)


def test_a_good_batch_that_begins_where_no_write_has_one_is_damage() -> None:
    async def scenario() -> None:
        data, starts = write_of(b"s" * 700, b"\1" * FLUSH, b"t" * 700)
        lose_sector(data, 0, 0)
        assert starts[-1] >= FLUSH
        assert "more than one write" in await damaged(bytes(data))

    run_virtual(scenario)
