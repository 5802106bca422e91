"""The simulated disk: what survives a crash, a power cut, an error, and what never does."""

import errno
import random
from collections.abc import Callable

import pytest

from dlogd.storage.io.files import Directory
from tests.fakes.disk import Machine, Process
from tests.fakes.faults import DiskFault, ProcessDied, read_only
from tests.fakes.rebooted import durable_file, reopen

SECTOR = 512


def boot(seed: int = 1, capacity_bytes: int = 1 << 40) -> tuple[Machine, Process, Directory]:
    """Return a machine, its first process and the open data directory."""
    machine = Machine(random.Random(seed), capacity_bytes=capacity_bytes)
    process = machine.boot()
    return machine, process, process.open_directory("/data/a")


def over_seeds(scenario: Callable[[int], object], count: int = 60) -> set[object]:
    """Return all results that a scenario has over many seeds."""
    return {scenario(seed) for seed in range(count)}


def test_reads_see_writes() -> None:
    _, process, directory = boot()
    file = directory.open("f", create=True)
    file.pwrite(b"abc", 1000)
    assert file.size() == 1003
    assert file.pread(10, 998) == b"\0\0abc"
    file.preallocate(0, 4096)
    assert file.pread(3, 1000) == b"\0\0\0"
    assert file.size() == 4096
    file.pwrite(b"x" * 600, 500)
    file.truncate(600)
    file.truncate(1200)
    assert file.pread(4096, 0) == bytes(500) + b"x" * 100 + bytes(600)
    file.close()
    with pytest.raises(AssertionError):
        file.size()
    assert process.misuses


def test_directory_operations() -> None:
    machine, _, directory = boot()
    with pytest.raises(FileNotFoundError):
        directory.open("missing")
    directory.open("b", create=True).close()
    directory.open("a", create=True).close()
    sub = directory.directory("s", create=True)
    sub.open("x", create=True).close()
    assert directory.names() == ["a", "b", "s"]
    directory.rename("a", "b")
    assert directory.names() == ["b", "s"]
    directory.remove_tree("s")
    assert not directory.exists("s")
    lock = directory.lock("lock")
    with pytest.raises(BlockingIOError):
        machine.boot().open_directory("/data/a").lock("lock")
    lock.release()
    directory.lock("lock")
    machine.crash()
    reopen(machine).lock("lock")


def test_crash_keeps_what_the_system_was_handed() -> None:
    machine, _, directory = boot()
    file = directory.open("f", create=True)
    file.pwrite(b"a" * 5000, 0)
    file.pwrite(b"xyz", 6000)
    file.truncate(8192)
    machine.crash()
    for operation in (lambda: file.pwrite(b"late", 0), directory.names, file.sync):
        with pytest.raises(ProcessDied):
            operation()
    again = reopen(machine).open("f")
    assert again.pread(9000, 0) == b"a" * 5000 + bytes(1000) + b"xyz" + bytes(8192 - 6003)


def test_power_cut_keeps_any_sectors_of_what_was_not_flushed() -> None:
    def scenario(seed: int) -> object:
        machine, _, directory = boot(seed)
        file = durable_file(directory, "f", b"o" * 2048)
        file.pwrite(b"n" * 1024, 512)
        machine.power_cut()
        data = reopen(machine).open("f").pread(4096, 0)
        assert len(data) == 2048
        assert data[:512] + data[1536:] == b"o" * 1024
        sectors = [data[start : start + SECTOR] for start in range(0, 2048, SECTOR)]
        assert all(len(set(sector)) == 1 for sector in sectors)
        return data[512:513] + data[1024:1025]

    assert over_seeds(scenario) == {b"oo", b"on", b"no", b"nn"}


def test_power_cut_may_keep_an_older_version() -> None:
    def scenario(seed: int) -> object:
        machine, _, directory = boot(seed)
        file = durable_file(directory, "f", b"1" * 512)
        file.pwrite(b"2", 0)
        file.pwrite(b"3", 0)
        machine.power_cut()
        return reopen(machine).open("f").pread(1, 0)

    assert over_seeds(scenario, 200) == {b"1", b"2", b"3"}


def test_power_cut_keeps_what_was_flushed() -> None:
    for seed in range(40):
        machine, _, directory = boot(seed)
        file = durable_file(directory, "f", b"a" * 3000)
        file.pwrite(b"end", 3500)
        file.truncate(4096)
        file.sync()
        machine.power_cut()
        expected = b"a" * 3000 + bytes(500) + b"end" + bytes(593)
        assert reopen(machine).open("f").pread(5000, 0) == expected


def test_power_cut_loses_writes_and_sizes() -> None:
    def scenario(seed: int) -> object:
        machine, _, directory = boot(seed)
        file = durable_file(directory, "f", b"")
        file.preallocate(0, 1024)
        file.pwrite(b"abc", 0)
        machine.power_cut()
        again = reopen(machine).open("f")
        return again.size() in (0, 1024), again.pread(3, 0)

    results = over_seeds(scenario, 100)
    assert {(True, b""), (True, b"abc"), (True, bytes(3))} <= results


def test_power_cut_undoes_a_truncation_whole_or_not() -> None:
    def scenario(seed: int) -> object:
        machine, _, directory = boot(seed)
        file = durable_file(directory, "f", b"o" * 4096)
        file.truncate(0)
        file.pwrite(b"n" * 4096, 0)
        machine.power_cut()
        data = reopen(machine).open("f").pread(5000, 0)
        return "".join(sorted(set(data.decode().replace("\0", "z"))))

    results = over_seeds(scenario, 300)
    assert "o" in results and "n" in results
    assert not any("o" in str(result) and "n" in str(result) for result in results)


def test_power_cut_loses_entries() -> None:
    def scenario(seed: int) -> object:
        machine, _, directory = boot(seed)
        durable_file(directory, "old", b"old")
        durable_file(directory, "gone", b"gone")
        temporary = directory.open("new", create=True)
        temporary.pwrite(b"new", 0)
        temporary.sync()
        directory.rename("new", "old")
        directory.unlink("gone")
        machine.power_cut()
        again = reopen(machine)
        return tuple((name, again.open(name).pread(9, 0)) for name in again.names())

    gone, old, new = ("gone", b"gone"), ("old", b"old"), ("old", b"new")
    results = over_seeds(scenario, 300)
    assert {(gone, old), (old,), (gone, new), (new,), (gone, ("new", b"new"), old)} <= results


def test_a_move_is_atomic_and_flushed_by_either_directory() -> None:
    def scenario(seed: int) -> object:
        machine, process, directory = boot(seed)
        other = process.open_directory("/data/b")
        durable_file(directory, "f", b"1")
        directory.move("f", other, "g")
        if seed % 3 == 0:
            random.Random(seed).choice((directory, other)).sync()
        machine.power_cut()
        again = machine.boot()
        names = [again.open_directory(path).names() for path in ("/data/a", "/data/b")]
        assert seed % 3 or names == [[], ["g"]]
        return str(names)

    assert over_seeds(scenario) == {"[['f'], []]", "[[], ['g']]"}


def test_flushed_entries_survive() -> None:
    for seed in range(30):
        machine, _, directory = boot(seed)
        durable_file(directory, "a", b"1")
        directory.rename("a", "b")
        directory.sync()
        machine.power_cut()
        assert reopen(machine).names() == ["b"]


def test_failed_flush_is_never_made_good_by_the_next() -> None:
    def scenario(seed: int) -> object:
        machine, _, directory = boot(seed)
        file = durable_file(directory, "f", b"o" * 512)
        machine.disks["/data"].faults.append(DiskFault(operations=("sync",), count=1))
        file.pwrite(b"n" * 512, 0)
        with pytest.raises(OSError, match="error"):
            file.sync()
        file.sync()
        assert file.pread(1, 0) == b"n"
        machine.power_cut()
        return reopen(machine).open("f").pread(1, 0)

    assert over_seeds(scenario) == {b"o", b"n"}


def test_errors_by_path_and_count_and_space() -> None:
    machine, _, directory = boot(capacity_bytes=64 * 1024)
    disk = machine.disks["/data"]
    file = directory.open("f", create=True)
    disk.faults.append(DiskFault(operations=("read",), count=1, path_part="/f"))
    with pytest.raises(OSError, match="error"):
        file.pread(1, 0)
    file.pread(1, 0)
    file.preallocate(0, 60 * 1024)
    with pytest.raises(OSError, match="space") as full:
        file.pwrite(bytes(8192), 60 * 1024)
    assert full.value.errno == errno.ENOSPC
    assert directory.usage().free_bytes == 4096
    directory.unlink("f")
    assert directory.usage().free_bytes == 4096
    file.close()
    assert directory.usage().free_bytes == 64 * 1024
    disk.faults.append(read_only())
    with pytest.raises(OSError, match="ead-only"):
        directory.open("g", create=True)
    machine.heal()
    directory.open("g", create=True)


def test_bit_flips_are_at_rest() -> None:
    machine, _, directory = boot()
    durable_file(directory, "1.log", bytes(512))
    assert machine.disks["/data"].flip_bit() is not None
    machine.power_cut()
    data = reopen(machine).open("1.log").pread(512, 0)
    assert sum(byte.bit_count() for byte in data) == 1
