"""Retention by time goes by the records, whatever the heads of their batches claim."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dlog.compression import Codec
from dlogd.storage.log.log_config import LogConfig
from tests.fakes.lies import append_batch, lying, with_body
from tests.fakes.logs import run_virtual
from tests.fakes.retained_log import CONFIG, RETENTION_MS, Retained

DAY_MS = 86_400_000


def retained(scenario: Callable[[Retained], Awaitable[Any]], config: LogConfig = CONFIG) -> None:
    async def run() -> None:
        log = Retained(config)
        await log.start()
        await scenario(log)
        await log.host.stop()

    run_virtual(run)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("head_ms", [-1, 0, 1000])
def test_a_head_that_is_too_small_deletes_nothing_early(
    head_ms: int, is_closed: bool, codec: Codec
) -> None:
    async def scenario(log: Retained) -> None:
        for _ in range(4):
            await log.append([5000, 0, 5000], head_ms, codec)
        if is_closed:
            await log.close_segments()
        await log.wait(RETENTION_MS - 500)
        assert log.log.log_start_offset == 0
        assert await log.gone_by(2000)

    retained(scenario)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("head_ms", [-1, 0, 1000])
def test_an_active_segment_whose_only_head_is_too_small_is_not_deleted_early(
    head_ms: int, codec: Codec
) -> None:
    async def scenario(log: Retained) -> None:
        await log.append([0, 0], head_ms, codec)
        await log.wait(RETENTION_MS - 500)
        assert log.log.log_start_offset == 0
        assert len(log.log.segments) == 1
        assert await log.gone_by(2000)

    retained(scenario)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("ahead_ms", [1000, DAY_MS, 10**15])
def test_a_head_in_the_future_keeps_nothing_for_ever(ahead_ms: int, is_closed: bool) -> None:
    """Once nothing was written for as long as records are kept, the records decide."""

    async def scenario(log: Retained) -> None:
        await log.append([0, 100], log.now_ms + ahead_ms)
        if is_closed:
            await log.close_segments()
        await log.wait(RETENTION_MS - 500)
        assert log.log.log_start_offset == 0
        assert await log.gone_by(2000)

    retained(scenario)


def test_a_segment_that_lies_keeps_younger_ones_and_is_kept_by_older_ones() -> None:
    async def scenario(log: Retained) -> None:
        await log.append([0], None)
        await log.close_segments()
        await log.append([10 * DAY_MS], 0)
        await log.close_segments()
        await log.append([0], 0)
        await log.wait(1000)
        assert log.log.log_start_offset == 0
        await log.wait(RETENTION_MS)
        assert log.log.log_start_offset == log.log.log_end_offset == 3

    retained(scenario)


def test_a_log_that_is_written_all_the_time_with_heads_of_zero_is_not_cut_into_bits() -> None:
    async def scenario(log: Retained) -> None:
        for _ in range(200):
            await log.append([0], 0)
            await log.wait(50)
        assert log.log.log_start_offset == 0
        assert len(log.log.segments) == 1

    retained(scenario, LogConfig(preallocate_bytes=0, retention_ms=RETENTION_MS))


@pytest.mark.parametrize("is_closed", [False, True])
def test_records_without_a_timestamp_are_as_old_as_the_last_write(is_closed: bool) -> None:
    async def scenario(log: Retained) -> None:
        now_ms = log.now_ms
        await log.append([now_ms + 1, now_ms + 1], None)
        if is_closed:
            await log.close_segments()
        await log.wait(RETENTION_MS - 500)
        assert log.log.log_start_offset == 0
        assert await log.gone_by(2000)

    retained(scenario)


def test_records_that_nobody_can_decode_are_kept_since_the_last_write() -> None:
    async def scenario(log: Retained) -> None:
        broken = with_body(lying([5, 7], 9, Codec.ZSTD), b"nonsense")
        assert append_batch(log.log, broken) is not None
        await log.log.flush()
        await log.close_segments()
        await log.wait(RETENTION_MS - 500)
        assert log.log.log_start_offset == 0
        assert await log.gone_by(2000)

    retained(scenario)


def test_what_was_learned_before_a_restart_counts_after_it() -> None:
    async def scenario(log: Retained) -> None:
        for _ in range(3):
            await log.append([0], 0)
            await log.close_segments()
        await log.wait(RETENTION_MS // 2)
        assert all(each.known_times.is_true for each in log.log.segments[:3])
        await log.host.crash()
        await log.start(0)
        assert log.log.segments[0].known_times.is_true
        assert log.log.log_start_offset == 0
        assert await log.gone_by(RETENTION_MS)

    retained(scenario)
