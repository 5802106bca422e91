"""Searches by time answer by the records, whatever the heads of their batches claim."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlog.batch import record_times
from dlog.compression import Codec
from dlogd.runtime.fair_lock import FairLock
from dlogd.storage.io.files import Directory
from dlogd.storage.log import timestamp_learner
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment import batch_times, time_index
from dlogd.storage.segment.index_files import load_entries, store_entries
from dlogd.storage.segment.segment_names import TDX, file_name
from dlogd.storage.segment.sparse_index import EntryHeader
from tests.fakes.lies import append_batch, lying, with_body
from tests.fakes.logs import LogHost, run_virtual, settle
from tests.fakes.true_times import CONFIG, NOW, first, learned, newest, sealed_all

HEADS = [None, -1, 0, NOW - 5000, NOW - 3500, NOW + 1000, NOW * 2]


async def append_all(
    plog: PartitionLog, batches: Sequence[Sequence[int]], head_ms: int | None, codec: Codec
) -> None:
    for timestamps_ms in batches:
        assert append_batch(plog, lying(timestamps_ms, head_ms, codec)) is not None
        await settle()
    await plog.flush()


def times_of(
    directory: Directory, base_offset: int = 0
) -> tuple[EntryHeader, list[tuple[int, int]]]:
    """Return the head and the entries of a time index."""
    header = EntryHeader(magic=time_index.MAGIC, base_offset=base_offset, durable=True)
    found = load_entries(directory, file_name(base_offset, TDX), header, time_index.ENTRY)
    assert found is not None and not found.is_wrong
    return found.header, found.entries


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("head_ms", HEADS)
def test_a_head_that_lies_changes_no_answer(head_ms: int | None, codec: Codec) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        batch = [NOW - 5000, NOW - 3000, NOW - 4000]
        await append_all(plog, [batch], head_ms, codec)
        for step in range(4):
            assert await first(plog, NOW - 6000) == (NOW - 5000, 0)
            assert await first(plog, NOW - 5000) == (NOW - 5000, 0)
            assert await first(plog, NOW - 4500) == (NOW - 3000, 1)
            assert await first(plog, NOW - 3500) == (NOW - 3000, 1)
            assert await first(plog, NOW - 2999) is None
            assert await newest(plog) == (NOW - 3000, 1)
            if step == 0:
                await sealed_all(plog)
            elif step == 1:
                plog = await host.reopen()
            else:
                plog = await host.crash()

    run_virtual(scenario)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("is_closed", [False, True])
def test_batches_that_lie_around_one_that_does_not(codec: Codec, is_closed: bool) -> None:
    async def scenario() -> None:
        plog = await LogHost(config=CONFIG).open()
        await append_all(plog, [[NOW, NOW + 9, NOW + 1]], -1, codec)
        await append_all(plog, [[NOW + 2, NOW + 4, NOW + 9]], None, codec)
        await append_all(plog, [[NOW + 5, NOW + 8, NOW + 10]], NOW + 5, codec)
        await append_all(plog, [[NOW + 10, NOW - 50, NOW + 10]], NOW + 99, codec)
        if is_closed:
            await sealed_all(plog)
        for _ in range(2):
            assert await first(plog, NOW) == (NOW, 0)
            assert await first(plog, NOW + 1) == (NOW + 9, 1)
            assert await first(plog, NOW + 10) == (NOW + 10, 8), "the first of three"
            assert await first(plog, NOW + 11) is None
            assert await newest(plog) == (NOW + 10, 8)

    run_virtual(scenario)


def test_what_was_learned_of_a_closed_segment_is_remembered_on_disk() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        await append_all(plog, [[NOW + n, NOW - n] for n in range(30)], -1, Codec.GZIP)
        await sealed_all(plog)
        assert len(plog.segments) > 2
        await learned(plog)
        for segment in plog.segments[:-1]:
            header, entries = times_of(host.directory, segment.base_offset)
            assert header.is_true and header.is_decoded
            expected = [
                (max([NOW + (segment.base_offset + at) // 2 - 1, -1]), at) for _, at in entries
            ]
            assert entries == expected
            assert segment.max_timestamp_ms == NOW + segment.end_offset // 2 - 1
        for reopen in (host.reopen, host.crash, host.power_cut):
            plog = await reopen()
            assert all(each.known_times.is_true for each in plog.segments[:-1])
            found = [each.max_timestamp_ms for each in plog.segments[:-1]]
            assert found == [NOW + each.end_offset // 2 - 1 for each in plog.segments[:-1]]
            assert await first(plog, NOW + 20) == (NOW + 20, 40)

    run_virtual(scenario)


@pytest.mark.parametrize("clean", [False, True])
def test_an_index_of_an_older_version_is_completed(clean: bool) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        await append_all(plog, [[NOW + n, NOW - n] for n in range(30)], -1, Codec.GZIP)
        await sealed_all(plog)
        await learned(plog)
        bases = [each.base_offset for each in plog.segments[:-1]]
        if clean:
            await plog.close()
        directory = await host.kill()
        for base in bases:
            head, entries = times_of(directory, base)
            old = EntryHeader(magic=head.magic, base_offset=base, durable=True)
            by_heads = [(-1, offset) for _, offset in entries]
            name = file_name(base, TDX)
            store_entries(directory, name, old, time_index.ENTRY, by_heads, durable=True)
        plog = await host.open(clean=clean)
        assert not any(each.known_times.is_true for each in plog.segments[:-1])
        assert await first(plog, NOW + 29) == (NOW + 29, 58)
        assert all(times_of(host.directory, base)[0].is_true for base in bases)
        assert await newest(plog) == (NOW + 29, 58)

    run_virtual(scenario)


def test_a_leader_of_plain_batches_reads_nothing_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their heads were corrected before the append."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        for number in range(60):
            append_batch(plog, lying([NOW + number, NOW], None), as_leader=True)
            await settle()
        await sealed_all(plog)
        for reopen in (host.reopen, None):
            assert all(each.known_times.is_true for each in plog.segments[:-1])
            assert await first(plog, NOW + 30) == (NOW + 30, 60)
            assert await newest(plog) == (NOW + 59, 118)
            plog = plog if reopen is None else await reopen()
        append_batch(plog, lying([NOW + 70], None), as_leader=True)
        assert await newest(plog) == (NOW + 70, 120)

    def refuse(*_: object) -> None:
        raise AssertionError("a batch was looked at")

    monkeypatch.setattr(timestamp_learner, "look", refuse)
    run_virtual(scenario)


def test_a_second_search_looks_only_at_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    async def scenario() -> None:
        host = LogHost(config=LogConfig(preallocate_bytes=0, index_interval_bytes=256))
        plog = await host.open()
        await append_all(plog, [[NOW + n] for n in range(100)], -1, Codec.GZIP)
        assert await first(plog, NOW + 1000) is None
        assert sum(looked) == plog.active.tail.end
        looked.clear()
        assert await first(plog, NOW + 1000) is None
        assert looked == []
        end = plog.active.tail.end
        await append_all(plog, [[NOW + 1000]], -1, Codec.GZIP)
        assert await first(plog, NOW + 1000) == (NOW + 1000, 100)
        assert sum(looked) == plog.active.tail.end - end

    original = timestamp_learner.look

    def counted(data: bytes, *arguments: object) -> object:
        looked.append(len(data))
        return original(data, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(timestamp_learner, "look", counted)
    run_virtual(scenario)


async def _deleted(host: LogHost, plog: PartitionLog) -> PartitionLog:
    """Delete an index by hand while the node is down."""
    await plog.close()
    await settle()
    directory = await host.kill()
    directory.unlink(file_name(0, TDX))
    return await host.open(clean=True)


async def _cut(host: LogHost, plog: PartitionLog) -> PartitionLog:
    """Cut the log back to before its largest timestamp."""
    await plog.truncate_to(4)
    assert not plog.active.known_times.is_true
    return plog


async def _cut_and_crashed(host: LogHost, plog: PartitionLog) -> PartitionLog:
    await plog.truncate_to(4)
    return await host.crash()


@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("act", [_deleted, _cut, _cut_and_crashed])
def test_what_happens_to_files_changes_no_answer(act, is_learned: bool) -> None:  # type: ignore[no-untyped-def]
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        values = [[NOW, NOW + 2], [NOW + 1, NOW - 1], [NOW + 5, NOW + 9]]
        await append_all(plog, values, 0, Codec.ZSTD)
        await sealed_all(plog)
        if is_learned:
            assert await newest(plog) == (NOW + 9, 5)
        plog = await act(host, plog)
        if act is _deleted:
            assert await newest(plog) == (NOW + 9, 5)
            assert times_of(host.directory)[0].is_true
        else:
            assert await newest(plog) == (NOW + 2, 1)
            assert await first(plog, NOW + 3) is None
            await append_all(plog, [[NOW + 3, NOW + 2]], NOW, Codec.ZSTD)
            assert await newest(plog) == (NOW + 3, 4)
            await sealed_all(plog)
            assert await newest(plog) == (NOW + 3, 4)
            plog = await host.crash()
            assert await first(plog, NOW + 3) == (NOW + 3, 4)

    run_virtual(scenario)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_log_whose_first_records_were_deleted(is_restarted: bool) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        values = [[NOW + 9, NOW + 2, NOW + 4], [NOW + 1, NOW + 4, NOW], [NOW, NOW, NOW]]
        await append_all(plog, values, NOW + 7, Codec.LZ4)
        if is_restarted:
            await sealed_all(plog)
            assert await newest(plog) == (NOW + 9, 0)
            plog = await host.reopen()
        await plog.trim_to(1)
        assert await newest(plog) == (NOW + 4, 2)
        assert await first(plog, NOW + 3) == (NOW + 4, 2)
        await plog.trim_to(3)
        assert await newest(plog) == (NOW + 4, 4)
        assert await first(plog, NOW + 5) is None

    run_virtual(scenario)


def test_records_that_nobody_can_decode_count_by_the_head_of_their_batch() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        append_batch(plog, with_body(lying([NOW, NOW], NOW + 5, Codec.GZIP), b"nonsense"))
        append_batch(plog, lying([NOW + 1, NOW + 2], -1, Codec.GZIP))
        await plog.flush()
        for _ in range(2):
            assert await first(plog, NOW + 3) == (NOW + 5, 0)
            assert await newest(plog) == (NOW + 5, 0)
            await sealed_all(plog)
        await plog.timestamps.learner.remember(plog.segments[0])
        assert await first(plog, NOW + 3) == (NOW + 5, 0)
        assert times_of(host.directory)[0].is_true
        assert not times_of(host.directory)[0].is_decoded
        plog = await host.reopen()
        info = plog.segment_infos()[0]
        assert (info.is_known, info.is_decoded, info.max_timestamp_ms) == (True, False, NOW + 5)

    run_virtual(scenario)


def test_times_before_1970_are_as_good_as_none() -> None:
    async def scenario() -> None:
        plog = await LogHost(config=CONFIG).open()
        await append_all(plog, [[-5000, -4000]], -4000, Codec.GZIP)
        assert await newest(plog) is None
        assert await first(plog, 0) is None
        await append_all(plog, [[-5000, 7]], -1, Codec.GZIP)
        await sealed_all(plog)
        assert await newest(plog) == (7, 3)
        assert await first(plog, 0) == (7, 3)

    run_virtual(scenario)


def count_unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count each batch that is decompressed, and how many steps of work there were."""
    counts = [0, 0]
    unpack, run = record_times.decompress, batch_times.Unpacked.__init__

    def decompress(*arguments: Any) -> Any:
        counts[0] += 1
        return unpack(*arguments)

    def begin(self: batch_times.Unpacked) -> None:
        counts[1] += 1
        run(self)

    monkeypatch.setattr(record_times, "decompress", decompress)
    monkeypatch.setattr(batch_times.Unpacked, "__init__", begin)
    return counts


def test_a_step_unpacks_little_and_no_search_unpacks_all_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of 4 KiB may hold 127 MiB: sixty of them cost each search eight seconds."""

    async def scenario() -> None:
        plog = await LogHost(config=replace(CONFIG, segment_bytes=100_000)).open()
        for number in range(20):
            await append_all(plog, [[NOW + number] * 300], -1, Codec.GZIP)
        assert len(plog.segments) == 1
        monkeypatch.setattr(batch_times, "STEP_BYTES", 5_000)
        counts = count_unpacked(monkeypatch)
        assert await first(plog, NOW + 19) == (NOW + 19, 19 * 300)
        assert counts[0] <= 23 and counts[1] >= 10
        counts[:] = [0, 0]
        for _ in range(3):
            assert await first(plog, NOW + 19) == (NOW + 19, 19 * 300)
        assert counts[0] <= 3 * 3

    run_virtual(scenario)


def test_searches_of_one_address_delay_another_by_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        hosts = [LogHost(config=CONFIG) for _ in range(2)]
        attacked, honest = [await each.open() for each in hosts]
        honest.services = attacked.services = replace(attacked.services, unpacking=FairLock())
        for number in range(20):
            await append_all(attacked, [[NOW + number] * 300], -1, Codec.GZIP)
        await append_all(honest, [[NOW]], -1, Codec.GZIP)
        monkeypatch.setattr(batch_times, "STEP_BYTES", 1)
        counts = count_unpacked(monkeypatch)
        crowd = [
            asyncio.create_task(attacked.offset_of_max_timestamp("198.51.100.1")) for _ in range(50)
        ]
        await asyncio.sleep(0)
        found = await honest.offset_for_timestamp(NOW, "192.0.2.1")
        assert found is not None and counts[0] <= 8 and not any(each.done() for each in crowd)
        await asyncio.gather(*crowd)

    run_virtual(scenario)
