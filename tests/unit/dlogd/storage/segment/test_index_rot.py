"""A bit that rots in an index: nobody is led past a record, none is lost, the index is mended."""

import errno
import logging
import random
from collections.abc import Awaitable, Callable

import pytest

from dlog.errors import CorruptMessageError, KafkaStorageError
from dlogd.config.choices import FlushPolicy
from dlogd.storage.io.files import Directory
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment import offset_index, time_index
from dlogd.storage.segment.index_files import load_entries
from dlogd.storage.segment.segment_names import IDX, LOG, TDX, file_name
from dlogd.storage.segment.sparse_index import EntryHeader
from tests.fakes.logs import LogHost, append_waiting, run_virtual, settle, values_of

CONFIG = LogConfig(segment_bytes=4000, preallocate_bytes=0, index_interval_bytes=256)
COUNT = 60
WARNING = "Rebuilt indexes"


def flip(directory: Directory, name: str, position: int, bit: int = 0) -> None:
    file = directory.open(name)
    file.pwrite(bytes([file.pread(1, position)[0] ^ 1 << bit]), position)
    file.sync()
    file.close()


def is_good(directory: Directory, base_offset: int = 0) -> bool:
    """Whether both indexes of a closed segment are whole."""
    for suffix, table in ((IDX, offset_index), (TDX, time_index)):
        header = EntryHeader(magic=table.MAGIC, base_offset=base_offset, durable=True)
        found = load_entries(directory, file_name(base_offset, suffix), header, table.ENTRY)
        if found is None or not found.is_whole:
            return False
    return True


async def fill(plog: PartitionLog, count: int = COUNT, start: int = 0) -> None:
    for number in range(start, start + count):
        await append_waiting(plog, b"%03d" % number + b"x" * 97, timestamp_ms=1000 + number)


async def stopped(host: LogHost) -> Directory:
    plog = await host.open()
    await fill(plog)
    await plog.close()
    await settle()
    return await host.kill()


async def check(plog: PartitionLog, end: int = COUNT) -> None:
    for offset in (0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 40):
        found = await values_of(plog, offset)
        assert [each for each, _ in found] == list(range(offset, end))
    for number in (0, 3, 9, 30, end - 1):
        place = await plog.offset_for_timestamp(1000 + number)
        assert place is not None and (place.offset, place.timestamp_ms) == (number, 1000 + number)
    newest = await plog.offset_of_max_timestamp()
    assert newest is not None and newest.offset == end - 1


# Heads' checksums, counts and guards; the first entries, the last ones.
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [IDX, TDX])
@pytest.mark.parametrize("at", [*range(16, 24), *range(40, 72), -12, -8, -5, -4, -1])
def test_a_flipped_bit_in_the_index_of_a_closed_segment(at: int, suffix: str, clean: bool) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        directory = await stopped(host)
        size = directory.open(file_name(0, suffix)).size()
        flip(directory, file_name(0, suffix), at % size, random.Random(at).randrange(8))
        await check(await host.open(clean=clean))
        assert is_good(host.directory)

    run_virtual(scenario)


def test_an_index_that_rots_while_the_node_runs(caplog: pytest.LogCaptureFixture) -> None:
    """The segment was pushed out of the open ones: its files are read again when it is opened."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await stopped(host)
        plog = await host.open(clean=True)
        count = plog.segments[0].index.count
        flip(host.directory, file_name(0, IDX), 61, 3)
        flip(host.directory, file_name(0, TDX), 62, 3)
        await check(plog)
        assert is_good(host.directory)
        assert plog.segments[0].index.count == count
        await check(plog)

    with caplog.at_level(logging.WARNING):
        run_virtual(scenario)
    assert [record.message[: len(WARNING)] for record in caplog.records] == [WARNING]


def test_many_readers_at_once_mend_it_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await stopped(host)
        plog = await host.open(clean=True)
        flip(host.directory, file_name(0, IDX), 61, 3)
        tasks = host.services.tasks
        for offset in range(8):
            tasks.spawn(f"read {offset}", plog.locate(offset))
        await settle()
        await check(plog)

    with caplog.at_level(logging.WARNING):
        run_virtual(scenario)
    assert len(caplog.records) == 1


def test_an_index_of_a_closed_segment_that_vanishes_is_made_anew() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await stopped(host)
        plog = await host.open(clean=True)
        host.directory.unlink(file_name(0, TDX))
        await check(plog)
        assert is_good(host.directory)

    run_virtual(scenario)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("suffix", [IDX, TDX])
@pytest.mark.parametrize("at", [16, 20, 40, 44, 48, 52, 60, 65, 85])
def test_a_flipped_bit_in_the_index_of_the_active_segment(
    at: int, suffix: str, clean: bool, is_open: bool
) -> None:
    """Found by the start, or after it when the segment is read or appended to again."""

    async def scenario() -> None:
        host = LogHost(config=LogConfig(preallocate_bytes=0, index_interval_bytes=256))
        plog = await host.open()
        await fill(plog, COUNT // 2)
        await settle()  # leader epochs come before entries
        await fill(plog, COUNT // 2, COUNT // 2)
        if clean:
            await plog.close()
        await settle()
        directory = await host.kill()
        if not is_open:
            flip(directory, file_name(0, suffix), at, 2)
        plog = await host.open(clean=clean)
        if is_open:
            flip(host.directory, file_name(0, suffix), at, 2)
            await fill(plog, 20, COUNT)
        await settle()
        await check(plog, plog.log_end_offset)
        await fill(plog, 20, plog.log_end_offset)
        await settle()
        await check(plog, plog.log_end_offset)
        plog = await host.crash()
        await check(plog, plog.log_end_offset)

    run_virtual(scenario)


async def _cut(plog: PartitionLog) -> int:
    await plog.truncate_to(7)
    return 7


async def _trimmed(plog: PartitionLog) -> int:
    await plog.trim_to(plog.segments[1].base_offset)
    return COUNT


@pytest.mark.parametrize("act", [_cut, _trimmed])
def test_a_log_with_a_rotten_index_is_cut(act: Callable[[PartitionLog], Awaitable[int]]) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await stopped(host)
        plog = await host.open(clean=True)
        flip(host.directory, file_name(0, IDX), 61, 3)
        end = await act(plog)
        await fill(plog, 5, end)
        await plog.flush()
        for _ in range(2):
            found = await values_of(plog)
            assert [each for each, _ in found] == list(range(plog.log_start_offset, end + 5))
            plog = await host.crash()

    run_virtual(scenario)


def test_damaged_batches_stay_damage_and_the_rest_is_served() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await stopped(host)
        plog = await host.open(clean=True)
        flip(host.directory, file_name(0, IDX), 61, 3)
        segment = plog.segments[0]
        size = segment.tail.end // segment.end_offset
        flip(host.directory, file_name(0, LOG), 10 * size + 8, 4)  # the length of batch 10
        for _ in range(2):
            served = set()
            for offset in range(COUNT):
                try:
                    await plog.locate(offset)
                    found = plog.read(offset, 1, COUNT)
                except CorruptMessageError:
                    continue
                assert found is not None and found.base_offset == offset
                served.add(offset)
            assert {*range(10), *range(11, COUNT)} <= served
            plog = await host.reopen()
        assert is_good(host.directory)

    run_virtual(scenario)


def test_a_disk_that_fails_while_an_index_is_made_anew_fails_the_log() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await stopped(host)
        plog = await host.open(clean=True)
        flip(host.directory, file_name(0, IDX), 61, 3)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dlogd.storage.segment.segment_examination.store_entries", refuse)
            with pytest.raises(KafkaStorageError):
                await plog.locate(1)
        assert plog.failed is not None

    run_virtual(scenario)


def test_a_full_disk_while_an_index_is_made_anew_costs_one_answer() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await stopped(host)
        plog = await host.open(clean=True)
        flip(host.directory, file_name(0, IDX), 61, 3)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dlogd.storage.segment.segment_examination.store_entries", refuse)
            with pytest.raises(KafkaStorageError):
                await plog.locate(1)
        assert plog.failed is None
        await check(plog)

    run_virtual(scenario)


def test_a_power_cut_among_index_writes_never_misleads() -> None:
    """Sectors of an index reach the disk in any order: head and entries need not fit then."""

    async def scenario(seed: int) -> None:
        host = LogHost(seed=seed, config=LogConfig(preallocate_bytes=0, index_interval_bytes=256))
        plog = await host.open()
        for start in range(0, 200, 50):
            await fill(plog, 50, start)
            await plog.flush()
        plog = await host.power_cut()
        await check(plog, plog.log_end_offset)
        assert plog.log_end_offset == 200

    for seed in range(10):
        run_virtual(lambda seed=seed: scenario(seed))  # type: ignore[misc]


def test_a_disk_that_refuses_a_new_policy_fails_the_log() -> None:
    """Settings come from the cluster's metadata: whoever hands them on is not to be stopped."""

    async def scenario() -> None:
        host = LogHost(config=LogConfig(preallocate_bytes=0, index_interval_bytes=256))
        plog = await host.open()
        await fill(plog, 20)
        await plog.flush()
        await plog.truncate_to(0)
        assert plog.active.index.is_open
        file = plog.active.index.file
        failures: list[OSError] = []
        plog.on_failure = lambda _, error: failures.append(error)

        class Dead:
            def pwrite(self, *_: object) -> None:
                raise OSError(errno.EIO, "Input/output error")

            def close(self) -> None:
                assert file is not None
                file.close()

        plog.active.index._file = Dead()  # type: ignore[assignment]
        plog.reconfigure(
            LogConfig(preallocate_bytes=0, index_interval_bytes=256, flush_policy=FlushPolicy.NEVER)
        )
        assert plog.failed is not None and [error.errno for error in failures] == [errno.EIO]
        await settle()
        await plog.close(clean=False)

    run_virtual(scenario)
