"""The disk that tests of clusters put logs on: it keeps what was flushed, and may lose the rest.

Needs root and FUSE.
"""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.fault_disks import FaultDisk, fault_disk
from tests.crash.fuse_disk import SECTOR_BYTES, WHOLE_SECTORS, Disk

pytestmark = pytest.mark.root

SIZE_BYTES = 48 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultDisk]:
    with fault_disk(tmp_path, SIZE_BYTES) as found:
        yield found


def write(path: Path, content: bytes, *, flush: bool) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        if flush:
            os.fsync(file.fileno())


def test_what_is_flushed_survives_power_cuts(disk: FaultDisk) -> None:
    contents: dict[Path, bytes] = {}
    for seed in range(4):
        for number in range(5):
            path = disk.path / f"flushed-{seed}-{number}"
            contents[path] = os.urandom(50_000)
            write(path, contents[path], flush=True)
            write(disk.path / f"other-{seed}-{number}", os.urandom(50_000), flush=False)
        answer = disk.lose_power(seed)
        assert answer.startswith("kept "), answer
        disk.remount()
        for path, content in contents.items():
            assert path.read_bytes() == content, path


def test_a_failing_disk_says_so(disk: FaultDisk) -> None:
    write(disk.path / "before", b"b" * 9000, flush=True)
    disk.fail("flush")
    with pytest.raises(OSError) as caught:
        write(disk.path / "after", b"a" * 9000, flush=True)
    assert caught.value.errno in (errno.EIO, errno.EROFS)
    disk.remount()
    assert (disk.path / "before").read_bytes() == b"b" * 9000


def test_a_slow_disk_takes_its_time(disk: FaultDisk) -> None:
    disk.slow(0.3)
    begun_s = time.monotonic()
    write(disk.path / "slow", b"s", flush=True)
    assert time.monotonic() - begun_s >= 0.3
    disk.slow(0)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_keeps_any_sectors_that_were_not_flushed(tmp_path: Path, seed: int) -> None:
    disk = Disk(tmp_path / "sectors", 100 * SECTOR_BYTES)
    disk.write(0, b"1" * 100 * SECTOR_BYTES)
    disk.flush()
    disk.write(10 * SECTOR_BYTES, b"2" * 20 * SECTOR_BYTES)
    assert disk.read(9 * SECTOR_BYTES + 500, 24) == b"1" * 12 + b"2" * 12
    kept = int(disk.command(f"power-cut {seed}").split()[1])
    with pytest.raises(OSError, match="read"):
        disk.read(0, SECTOR_BYTES)
    disk.command("power-on")
    found = disk.read(0, 100 * SECTOR_BYTES)
    sectors = [found[n : n + SECTOR_BYTES] for n in range(0, len(found), SECTOR_BYTES)]
    assert all(set(each) in ({ord("1")}, {ord("2")}) for each in sectors)
    assert sum(each[0] == ord("2") for each in sectors) == kept
    assert not any(each[0] == ord("2") for each in (*sectors[:10], *sectors[30:]))


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_does_not_tear_the_superblock(tmp_path: Path, seed: int) -> None:
    disk = Disk(tmp_path / "sectors", 100 * SECTOR_BYTES)
    disk.write(0, b"1" * 100 * SECTOR_BYTES)
    disk.flush()
    for sector in range(30):
        disk.write(sector * SECTOR_BYTES, b"2" * SECTOR_BYTES)
    disk.command(f"power-cut {seed}")
    disk.command("power-on")
    assert len(set(disk.read(0, WHOLE_SECTORS * SECTOR_BYTES))) == 1
