"""What recovery makes of indexes that are missing, damaged or left over."""

import pytest

from dlogd.storage.segment.segment_names import IDX, TDX, file_name
from dlogd.storage.segment.sparse_index import HEADER_BYTES
from tests.fakes.damaged_logs import content, filled, overwrite, segments_config, several_segments
from tests.fakes.filled_logs import CONFIG, offsets
from tests.fakes.logs import LogHost, run_virtual


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
