"""Reads are given to each disk a little at a time, less while there are writes."""

from types import SimpleNamespace
from typing import Any

from dlogd.storage.io import read_pool
from dlogd.storage.io.read_pool import PooledRead, ReadPool

KIB = 1024


class Disk:
    """Reads that were submitted, ended by the test."""

    def __init__(self, memory_bytes: int = 8 << 20) -> None:
        self.now = 10.0
        self.later: list[Any] = []
        self.pool = ReadPool(memory_bytes, self.later.append, lambda: self.now)
        self.submitted: list[PooledRead] = []
        self.done: list[Any] = []

    def read(self, path: str, length: int) -> None:
        file: Any = SimpleNamespace(path=path)
        self.pool.start(file, 0, length, self.done.append, self.submitted.append)

    def end(self, number: int = 0) -> None:
        read = self.submitted.pop(number)
        read.succeed(read.span)
        read.release()
        while self.later:
            self.later.pop(0)()


def test_a_disk_is_given_two_mebibytes_at_a_time() -> None:
    disk = Disk()
    for _ in range(10):
        disk.read("/data/t-0/0.log", disk.pool.length_best)
    assert [read.span for read in disk.submitted] == [508 * KIB] * 4
    disk.read("/other/t-1/0.log", disk.pool.length_best)
    disk.read("/data/t-1/0.log", read_pool.PEEK_BYTES)
    assert len(disk.submitted) == 6  # neither the other disk nor a peek waits
    while disk.submitted:
        disk.end()
    assert len(disk.done) == 12 and disk.pool.taken_bytes == 0


def test_less_is_in_flight_while_there_are_writes() -> None:
    disk = Disk()
    disk.pool.write_count += 1
    assert disk.pool.length_best < 256 * KIB
    for _ in range(6):
        disk.read("/data/t-0/0.log", disk.pool.length_best)
    assert [read.span for read in disk.submitted] == [252 * KIB] * 2
    disk.end()
    assert len(disk.submitted) == 2
    disk.now += read_pool.CALM_S
    assert disk.pool.length_best == disk.pool.length_max
    disk.end()
    assert len(disk.submitted) == 4


def test_a_large_read_goes_alone_rather_than_never() -> None:
    disk = Disk()
    disk.pool.write_count += 1
    disk.read("/data/t-0/0.log", 100 * KIB)
    disk.read("/data/t-0/0.log", disk.pool.length_max)
    disk.read("/data/t-0/0.log", 100 * KIB)
    assert len(disk.submitted) == 1
    disk.end()
    assert [read.length for read in disk.submitted] == [disk.pool.length_max]
    disk.end()
    disk.end()
    assert len(disk.done) == 3


def test_what_waits_for_memory_goes_on_in_its_order() -> None:
    disk = Disk(512 * KIB)
    for length in (400, 300, 200):
        disk.read("/data/t-0/0.log", length * KIB)
    assert len(disk.submitted) == 1
    for length in (400, 300, 200):
        assert disk.submitted[0].length == length * KIB
        disk.end()
    assert not disk.submitted and disk.pool.taken_bytes == 0


def test_a_failed_read_makes_room_too() -> None:
    disk = Disk()
    for _ in range(5):
        disk.read("/data/t-0/0.log", disk.pool.length_best)
    disk.submitted.pop(0).fail(OSError(5, "broken"))
    assert len(disk.submitted) == 4 and isinstance(disk.done[0], OSError)


def test_a_disk_that_hangs_leaves_the_others_their_share_of_the_memory() -> None:
    disk = Disk()
    for _ in range(3):
        disk.pool.add_directory()
    for _ in range(1000):
        disk.read("/bad/topics/t-0/0.log", read_pool.PEEK_BYTES)
        disk.read("/bad/topics/t-0/0.log", 100 * KIB)
        disk.read("/worse/topics/t-0/0.log", read_pool.PEEK_BYTES)
    stuck = len(disk.submitted)
    assert stuck > 10
    for _ in range(4):
        disk.read("/good/topics/t-1/0.log", read_pool.PEEK_BYTES)
        disk.read("/good/topics/t-1/0.log", disk.pool.length_best)
        assert len(disk.submitted) == stuck + 2
        disk.end(stuck)
        disk.end(stuck)
    while disk.submitted:
        disk.end()
    assert len(disk.done) == 3008 and disk.pool.taken_bytes == 0


def test_each_directory_may_read_however_small_its_share_is() -> None:
    disk = Disk(512 * KIB)
    for _ in range(4):
        disk.pool.add_directory()
    for number in range(4):
        disk.read(f"/data{number}/topics/t-0/0.log", read_pool.PEEK_BYTES)
        disk.read(f"/data{number}/topics/t-0/0.log", disk.pool.length_best)
    while disk.submitted:
        disk.end()
    assert len(disk.done) == 8 and disk.pool.taken_bytes == 0
