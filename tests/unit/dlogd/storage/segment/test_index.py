"""Sparse indexes: what is found, what settles when, what the file keeps and what is believed."""

import errno
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlogd.storage.io.files import Directory, File
from dlogd.storage.segment import offset_index, sparse_index
from dlogd.storage.segment.index_files import load_entries, open_entries, store_entries
from dlogd.storage.segment.offset_index import OffsetIndex
from dlogd.storage.segment.sparse_index import EntryHeader
from dlogd.storage.segment.time_index import TimeIndex
from tests.fakes.disk import Machine

HEADER = EntryHeader(magic=offset_index.MAGIC, base_offset=1000, durable=True)
NAME = "1.idx"


def directory() -> Directory:
    return Machine(random.Random(1)).boot().open_directory("/data/a")


def attached(place: Directory, table: OffsetIndex) -> OffsetIndex:
    table.attach(open_entries(place, NAME, HEADER, table.settled, writable=True))
    return table


def filled(table: OffsetIndex, count: int, first: int = 1) -> OffsetIndex:
    """Add entries: batch number n begins with offset 1000 + 10 n at position 100 n."""
    for number in range(first, first + count):
        table.add(10 * number, 100 * number, 100 * number + 100)
    return table


def loaded(place: Directory) -> list[tuple[int, int]]:
    found = load_entries(place, NAME, HEADER, offset_index.ENTRY)
    return [] if found is None else found.entries


def test_floor_and_next_of_offsets_and_positions() -> None:
    table = filled(OffsetIndex(1000), 3)
    assert [table.floor_offset(o) for o in (1000, 1009, 1010, 1029, 1030, 9999)] == [
        (1000, 0),
        (1000, 0),
        (1010, 100),
        (1020, 200),
        (1030, 300),
        (1030, 300),
    ]
    assert [table.floor_position(p) for p in (0, 99, 100, 250, 10**9)] == [
        (1000, 0),
        (1000, 0),
        (1010, 100),
        (1020, 200),
        (1030, 300),
    ]
    assert table.after_position(100) == (1020, 200)
    after_all = table.after_position(300)
    assert after_all is not None and after_all[1] > 1 << 60


def test_entries_settle_when_their_batch_is_on_stable_storage() -> None:
    place = directory()
    table = attached(place, filled(OffsetIndex(1000), 5))
    assert table.due == 200
    table.settle(199)
    assert loaded(place) == []
    table.settle(200)
    assert loaded(place) == [(10, 100)]
    table.settle(499)
    assert loaded(place) == [(10, 100), (20, 200), (30, 300)]
    assert (table.settled, table.count, table.due) == (3, 5, 500)


def test_without_a_file_entries_wait_in_memory() -> None:
    table = filled(OffsetIndex(1000), 5)
    table.settle(10**9)
    assert (table.settled, table.count) == (0, 5)
    assert table.floor_offset(1039) == (1030, 300)


def test_only_the_newest_settled_entries_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_index, "RECENT_COUNT_MAX", 8)
    table = attached(directory(), OffsetIndex(1000))
    for number in range(1, 100):
        filled(table, 1, number)
        table.settle(100 * number + 100)
        for offset in (1000, 1005, 1010 * 1, 1000 + 10 * (number // 2) + 3, 1000 + 10 * number):
            expected = min((offset - 1000) // 10, number)
            assert table.floor_offset(offset) == (1000 + 10 * expected, 100 * expected)
    table.detach()
    assert table.floor_offset(1005) is None, "that needs the file"
    assert table.floor_offset(1990) == (1990, 9900)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(0, 60), st.integers(0, 4000))
def test_search_agrees_with_a_list(steps: list[int], settled: int, value: int) -> None:
    place = directory()
    table = attached(place, OffsetIndex(0))
    known = [(0, 0)]
    for step in steps:
        known.append((known[-1][0] + step, known[-1][1] + 61 * step))
        table.add(*known[-1], known[-1][1] + 61)
    if settled < len(steps):
        table.settle(known[settled][1] + 61)
    if settled % 2:
        table.forget_recent()
    assert table.floor_offset(value) == max(k for k in known if k[0] <= value)
    assert table.floor_position(value) == max(k for k in known if k[1] <= value)


def test_a_cut_leaves_zeros_in_the_file() -> None:
    place = directory()
    table = attached(place, filled(OffsetIndex(1000), 9))
    table.settle(700)
    table.cut(3)
    assert loaded(place) == [(10, 100), (20, 200), (30, 300)]
    assert (table.settled, table.count) == (3, 3)
    filled(table, 1, 4)
    table.settle(10**6)
    assert loaded(place)[-1] == (40, 400)
    table.cut(0)
    assert loaded(place) == []


@pytest.mark.parametrize("page_count", [1, 2, 7, 340])
def test_the_file_is_searched_by_pages(monkeypatch: pytest.MonkeyPatch, page_count: int) -> None:
    monkeypatch.setattr(sparse_index, "PAGE_COUNT", page_count)
    table = attached(directory(), filled(OffsetIndex(1000), 400))
    table.settle(10**9)
    table.forget_recent()
    rng = random.Random(page_count)
    for _ in range(3):
        for value in rng.sample(range(4100), 500):
            number = min(value // 10, 400)
            assert table.floor_offset(1000 + value) == (1000 + 10 * number, 100 * number)
            assert table.count_below(value, column=0) == min(400, max(0, (value - 1) // 10))
            following = table.after_position(10 * value)
            assert following is not None
            assert following[1] == (100 * (number + 1) if number < 400 else (1 << 63) - 1)
        # Entries that leave memory later are found as well.
        filled(table, 10, 401)
        table.settle(10**9)
        assert table.floor_position(10**9) == (5100, 41000)
        table.forget_recent()
        assert table.floor_position(10**9) == (5100, 41000)
        table.cut(400)


def test_an_index_that_lost_its_end_says_so() -> None:
    place = directory()
    table = attached(place, filled(OffsetIndex(1000), 400))
    table.settle(10**9)
    table.forget_recent()
    place.open(NAME).truncate(1000)
    with pytest.raises(OSError) as raised:
        table.floor_offset(9999)
    assert raised.value.errno == errno.EINVAL


def test_opening_clears_what_is_not_trusted() -> None:
    place = directory()
    store_entries(
        place, NAME, HEADER, offset_index.ENTRY, [(1, 61), (2, 122), (3, 183)], durable=True
    )
    attached(place, OffsetIndex(1000, settled=1))
    assert loaded(place) == [(1, 61)]


def test_the_mark_is_kept_and_garbage_is_not_believed() -> None:
    place = directory()
    table = attached(place, OffsetIndex(1000))
    table.mark(123_456)
    found = load_entries(place, NAME, HEADER, offset_index.ENTRY)
    assert found is not None and found.header == replace(HEADER, mark=123_456)
    for position in range(24, 40):
        head = bytearray(sparse_index.encode_header(replace(HEADER, mark=123_456)))
        head[position] ^= 4
        damaged = sparse_index.decode_header(bytes(head), offset_index.MAGIC)
        assert damaged is not None and damaged.mark == 0


def test_a_damaged_or_foreign_head_is_no_index() -> None:
    good = sparse_index.encode_header(HEADER)
    assert sparse_index.decode_header(good, offset_index.MAGIC) == HEADER
    assert sparse_index.decode_header(good, b"DLTX") is None
    assert sparse_index.decode_header(good[:40], offset_index.MAGIC) is None
    for position in range(20):
        head = bytearray(good)
        head[position] ^= 1
        assert sparse_index.decode_header(bytes(head), offset_index.MAGIC) is None


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ([(1, 61), (2, 122), (2, 122), (3, 200)], 2),
        ([(1, 61), (0, 0), (3, 200)], 1),
        ([(5, 61), (4, 122)], 1),
        ([(5, 61), (6, 60)], 1),
        ([(0, 0)], 0),
    ],
)
def test_entries_are_read_up_to_the_first_impossible_one(
    stored: list[tuple[int, int]], kept: int
) -> None:
    place = directory()
    store_entries(place, NAME, HEADER, offset_index.ENTRY, stored, durable=False)
    found = load_entries(place, NAME, HEADER, offset_index.ENTRY)
    assert found is not None
    assert found.entries == stored[:kept]
    assert not found.is_whole


def test_index_of_another_segment_is_none() -> None:
    place = directory()
    other = replace(HEADER, base_offset=2000)
    store_entries(place, NAME, other, offset_index.ENTRY, [(1, 61)], durable=False)
    assert load_entries(place, NAME, HEADER, offset_index.ENTRY) is None


def test_time_index_tells_where_to_begin() -> None:
    table = TimeIndex(1000)
    for timestamp_ms, relative in ((-1, 5), (50, 10), (50, 20), (80, 30)):
        table.add(timestamp_ms, relative, 100 * relative)
    assert [table.older_than(t) for t in (-1, 0, 50, 51, 80, 81)] == [
        1000,
        1005,
        1005,
        1020,
        1020,
        1030,
    ]


class FailingFile:
    """An index file on a disk that takes nothing any more."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.is_broken = True

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, "Input/output error")
        self.file.pwrite(data, position)


def test_a_disk_that_fails_makes_entries_wait_and_ends_nothing() -> None:
    place = directory()
    table = attached(place, OffsetIndex(1000))
    file = table.file
    assert file is not None
    broken = FailingFile(file)
    table._file = broken  # type: ignore[assignment]
    filled(table, 2)
    table.settle(1000)
    table.mark(1000)
    assert (table.settled, table.count, table.floor_offset(1025)) == (0, 2, (1020, 200))
    broken.is_broken = False
    table.settle(1000)
    assert table.settled == 2
    assert loaded(place) == [(10, 100), (20, 200)]
