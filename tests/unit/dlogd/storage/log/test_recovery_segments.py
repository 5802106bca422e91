"""What recovery makes of closed segments that are damaged or missing, and of leader epochs."""

import asyncio

import pytest

from dlog.errors import KafkaStorageError
from dlog.types import LeaderEpoch
from dlogd.config.choices import FlushPolicy
from dlogd.storage.segment.segment_names import IDX, TDX, file_name
from tests.fakes.damaged_logs import (
    content,
    fill,
    filled,
    flip,
    overwrite,
    refused,
    segments_config,
    several_segments,
)
from tests.fakes.filled_logs import CONFIG, offsets
from tests.fakes.logs import LogHost, append_waiting, run_virtual, settle


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


@pytest.mark.parametrize("damage", ["raised", "lowered", "lowered, nothing saved"])
def test_leader_epochs_that_fall_are_damage(damage: str) -> None:
    """No checksum is over the epoch in a batch; a history made of it would cut what others have."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        for epoch in (1, 2):
            await fill(plog, 10, epoch=epoch)
        expected = plog.epochs.entries
        size = plog.active.tail.end // 20
        directory = await host.kill()
        if damage.endswith("saved"):
            directory.unlink("leader-epochs")
        for suffix in (IDX, TDX):  # so that all is scanned
            if directory.exists(file_name(0, suffix)):
                directory.unlink(file_name(0, suffix))
        number, value = (5, 0x40) if damage == "raised" else (15, 0)
        overwrite(directory, file_name(0), size * number + (12 if value else 15), bytes([value]))
        with pytest.raises(KafkaStorageError, match="leader epoch"):
            await host.open()
        at = size * number + (12 if value else 15)
        overwrite(directory, file_name(0), at, bytes([0 if value else 2]))
        assert (await host.open()).epochs.entries == expected

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
