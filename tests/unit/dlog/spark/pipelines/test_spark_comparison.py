"""What an audit makes of sums and offsets, against the plain comparison of two lists."""

import random
from collections import Counter
from collections.abc import Sequence

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.spark.pipelines import comparison
from dlog.spark.pipelines.comparison import (
    DIFFERS,
    DUPLICATE,
    DUPLICATE_RIGHT,
    GAP,
    ONLY_LEFT,
    ONLY_RIGHT,
    Bucket,
    Finding,
    Offsets,
    Side,
    Span,
    compare_offsets,
    joined,
    suspects,
    without,
)

Records = Sequence[tuple[int, int]]
"""(offset, hash) each."""


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "BUCKET_OFFSETS", 16)


def sums(records: Records, *, distinct: bool = False) -> Side:
    """What Spark computes."""
    found: dict[tuple[int, int], Bucket] = {}
    seen: dict[tuple[int, int], set[int]] = {}
    for offset, record in records:
        key, place = (0, offset // 16), offset % 16
        old = found.get(key, comparison.EMPTY)
        places = seen.setdefault(key, set())
        places.add(place)
        found[key] = Bucket(
            old.rows + 1,
            old.total + place,
            old.squares + place * place,
            old.checksum ^ record,
            len(places) if distinct else None,
        )
    return found


def offsets(records: Records, span: Span) -> Offsets:
    counts: Counter[int] = Counter()
    hashes: Counter[int] = Counter()
    for offset, record in records:
        if span.start <= offset < span.end:
            counts[offset] += 1
            hashes[offset] ^= record
    keys = sorted(counts)
    columns = (keys, [counts[key] for key in keys], [hashes[key] for key in keys])
    return Offsets(*(numpy.array(column, numpy.int64) for column in columns))


def found_by(
    span: Span, left: Records, right: Records | None, lost: Sequence[tuple[int, int]] = ()
) -> list[Finding]:
    spans = without(span, lost)
    doubtful = suspects(spans, sums(left), None if right is None else sums(right))
    found: list[Finding] = []
    for each in doubtful:
        other = None if right is None else offsets(right, each)
        found += compare_offsets(each, offsets(left, each), other)
    return joined(found)


def whole(start: int, end: int) -> list[tuple[int, int]]:
    rng = random.Random(11)
    hashes = [rng.getrandbits(62) for _ in range(end)]
    return [(offset, hashes[offset]) for offset in range(start, end)]


def test_what_is_whole_is_not_looked_at_twice() -> None:
    span = Span(0, 5, 90)
    assert suspects([span], sums(whole(5, 90)), None) == []
    assert suspects([span], sums(whole(5, 90)), sums(whole(5, 90))) == []
    assert suspects([Span(0, 5, 5)], {}, None) == []


def test_gaps_and_duplicates_are_named() -> None:
    records = [each for each in whole(0, 100) if not 30 <= each[0] < 35]
    records += [records[50], records[50], records[80]]
    places = sorted((records[50][0], records[80][0]))
    assert found_by(Span(0, 0, 100), records, None) == [
        Finding(0, 30, 35, GAP),
        Finding(0, places[0], places[0] + 1, DUPLICATE),
        Finding(0, places[1], places[1] + 1, DUPLICATE),
    ]


def test_a_gap_over_many_buckets_is_one_finding() -> None:
    records = [each for each in whole(0, 200) if not 20 <= each[0] < 150]
    assert found_by(Span(0, 0, 200), records, None) == [Finding(0, 20, 150, GAP)]


def test_a_gap_that_a_duplicate_makes_up_for_is_seen() -> None:
    records = [each for each in whole(0, 32) if each[0] != 3]
    records.append(records[8])
    kinds = {each.kind for each in found_by(Span(0, 0, 32), records, None)}
    assert kinds == {GAP, DUPLICATE}


def test_differences_of_two_sides_are_named_from_the_left() -> None:
    left, right = whole(0, 64), whole(0, 64)
    del left[60], right[10:12]
    right[20] = (right[20][0], 4711)
    right.append(right[30])
    left.append(left[40])
    assert found_by(Span(0, 0, 64), left, right) == [
        Finding(0, 10, 12, ONLY_LEFT),
        Finding(0, 22, 23, DIFFERS),
        Finding(0, 32, 33, DUPLICATE_RIGHT),
        Finding(0, 40, 41, DUPLICATE),
        Finding(0, 60, 61, ONLY_RIGHT),
    ]


def test_gaps_on_both_sides_are_no_difference() -> None:
    sparse = [each for each in whole(0, 64) if each[0] % 3]
    assert found_by(Span(0, 0, 64), sparse, sparse) == []


def test_where_gaps_may_be_only_duplicates_count() -> None:
    sparse = [each for each in whole(0, 64) if each[0] % 3]
    assert suspects([Span(0, 0, 64)], sums(sparse, distinct=True), None) == []
    twice = [*sparse, sparse[0]]
    assert suspects([Span(0, 0, 64)], sums(twice, distinct=True), None) == [Span(0, 0, 16)]


def test_several_spans_of_one_bucket_are_no_suspects_when_they_are_whole() -> None:
    spans = [Span(0, 0, 5), Span(0, 8, 10), Span(0, 12, 40)]
    records = [each for span in spans for each in whole(span.start, span.end)]
    assert suspects(spans, sums(records), None) == []
    assert suspects(spans, sums(records), sums(records)) == []
    # Where one has harm, each part of the bucket is looked at, and nothing else.
    assert suspects(spans, sums(records[1:]), None) == [*spans[:2], Span(0, 12, 16)]


@settings(deadline=None)
@given(
    removed=st.sets(st.integers(0, 99), max_size=8),
    repeated=st.lists(st.integers(0, 99), max_size=4),
    lost=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), max_size=4),
    start=st.integers(0, 40),
    size=st.integers(1, 60),
)
def test_every_gap_and_every_duplicate_is_found_and_nothing_else(
    removed: set[int],
    repeated: list[int],
    lost: list[tuple[int, int]],
    start: int,
    size: int,
) -> None:
    span = Span(0, start, start + size)
    ranges = [(low, low + count) for low, count in lost]
    known = {offset for low, high in ranges for offset in range(low, high)}
    records = [each for each in whole(0, 100) if each[0] not in removed]
    records += [each for offset in repeated for each in records if each[0] == offset][:6]
    places = [offset for offset in range(span.start, span.end) if offset not in known]
    inside = [each for each in records if each[0] in places]
    counts = Counter(offset for offset, _ in inside)
    wanted = {(offset, GAP) for offset in places if not counts[offset]}
    wanted |= {(offset, DUPLICATE) for offset, count in counts.items() if count > 1}
    found = {
        (offset, each.kind)
        for each in found_by(span, inside, None, ranges)
        for offset in range(each.start_offset, each.end_offset)
    }
    assert found == wanted
    if not wanted:
        assert suspects(without(span, ranges), sums(inside), None) == []


def test_what_is_lost_is_cut_out_of_a_span() -> None:
    span = Span(3, 10, 20)
    assert without(span, []) == [span]
    assert without(span, [(12, 14), (18, 30)]) == [Span(3, 10, 12), Span(3, 14, 18)]
    assert without(span, [(0, 11), (10, 12)]) == [Span(3, 12, 20)]
    assert without(span, [(0, 40)]) == []
    assert without(span, [(25, 30), (1, 2)]) == [span]
