"""Comparison of sums over buckets of offsets: gaps, duplicates, differences. Pure.

First each side is reduced to some numbers per bucket; only buckets whose numbers are not as they
should be are looked at offset by offset. Offsets are relative to each side's `shift`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dlog.batch.columns import library

BUCKET_OFFSETS = 65_536
EXACT_MAX = 32
"""So many buckets are looked at offset by offset; further ones are named as a whole."""

GAP = "gap"
DUPLICATE, DUPLICATE_RIGHT = "duplicate", "duplicate in the other"
ONLY_LEFT, ONLY_RIGHT = "missing in the other", "missing here"
DIFFERS = "differs"
KINDS = (GAP, DUPLICATE, DUPLICATE_RIGHT, ONLY_LEFT, ONLY_RIGHT, DIFFERS)
SOMEWHERE = "differs somewhere"


class Bucket(NamedTuple):
    """What a side has of `BUCKET_OFFSETS` offsets of a partition.

    `total` and `squares` are sums of places in the bucket and of their squares: with the count
    they tell whether each place is there once. Where there may be gaps, `distinct` says how many
    offsets there are; elsewhere it is None.
    """

    rows: int
    total: int
    squares: int
    checksum: int
    distinct: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Offsets of a partition, up to `end_offset`, exclusive, that are not as they should be."""

    partition: int
    start_offset: int
    end_offset: int
    kind: str


class Span(NamedTuple):
    """Relative offsets of a partition that both sides must have: up to `end`, exclusive."""

    partition: int
    start: int
    end: int


Side = Mapping[tuple[int, int], Bucket]
"""By (partition, number of the bucket)."""
EMPTY = Bucket(0, 0, 0, 0)


def buckets_of(span: Span) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, end) of each bucket in a span; start and end are clipped to it."""
    if span.end <= span.start:
        return
    for number in range(span.start // BUCKET_OFFSETS, (span.end - 1) // BUCKET_OFFSETS + 1):
        first = number * BUCKET_OFFSETS
        yield number, max(span.start, first), min(span.end, first + BUCKET_OFFSETS)


def _whole(start: int, end: int) -> dict[str, int]:
    """Return the sums of a bucket that has each offset from start to end once."""
    first, last = start % BUCKET_OFFSETS, (end - 1) % BUCKET_OFFSETS

    def total(n: int) -> int:
        return n * (n + 1) // 2

    def squares(n: int) -> int:
        return n * (n + 1) * (2 * n + 1) // 6

    return {
        "rows": end - start,
        "total": total(last) - total(first - 1),
        "squares": squares(last) - squares(first - 1),
    }


def without(span: Span, lost: Sequence[tuple[int, int]]) -> list[Span]:
    """Return what is left of a span without these ranges."""
    found, start = [], span.start
    for low, high in sorted(lost):
        if start < min(low, span.end):
            found.append(Span(span.partition, start, min(low, span.end)))
        start = max(start, high)
    if start < span.end:
        found.append(Span(span.partition, start, span.end))
    return found


def _sums(parts: Sequence[Span]) -> dict[str, int]:
    """Return the sums of a bucket that has each offset of these parts of it once."""
    each = [_whole(part.start, part.end) for part in parts]
    return {name: sum(sums[name] for sums in each) for name in ("rows", "total", "squares")}


def suspects(spans: Sequence[Span], left: Side, right: Side | None) -> list[Span]:
    """Return the parts of spans in buckets that have to be looked at offset by offset.

    A bucket has the sums of all spans that reach into it: it is good or bad as a whole.
    """
    parts: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        for number, start, end in buckets_of(span):
            part = Span(span.partition, start, end)
            parts.setdefault((span.partition, number), []).append(part)
    found = []
    for key, inside in parts.items():
        ours, whole = left.get(key, EMPTY), _sums(inside)
        if right is not None:
            # Gaps that both sides have are none between them.
            good = ours == right.get(key, EMPTY) and ours.rows <= whole["rows"]
        elif ours.distinct is not None:
            good = ours.distinct == ours.rows
        else:
            good = ours == EMPTY._replace(**whole, checksum=ours.checksum)
        if not good:
            found += inside
    return found


class Offsets(NamedTuple):
    """Offsets that a side has, how often, and the XOR of their records: numpy arrays."""

    offsets: Any
    counts: Any
    hashes: Any


def no_offsets() -> Offsets:
    """Return those of a side that has nothing."""
    numpy = library("numpy")
    return Offsets(*(numpy.empty(0, numpy.int64) for _ in range(3)))


def compare_offsets(span: Span, left: Offsets, right: Offsets | None) -> list[Finding]:
    """Return what is wrong in a span, neighbouring offsets put together; offsets relative."""
    numpy = library("numpy")
    size = span.end - span.start
    kinds = numpy.zeros(size, numpy.int8)  # 0: nothing; else the place in KINDS, from 1
    ours = _spread(left, span)
    if right is None:
        kinds[ours[0] == 0] = 1 + KINDS.index(GAP)
        kinds[ours[0] > 1] = 1 + KINDS.index(DUPLICATE)
        return _runs(span, kinds)
    theirs = _spread(right, span)
    kinds[ours[1] != theirs[1]] = 1 + KINDS.index(DIFFERS)
    kinds[(ours[0] > 0) & (theirs[0] == 0)] = 1 + KINDS.index(ONLY_LEFT)
    kinds[(ours[0] == 0) & (theirs[0] > 0)] = 1 + KINDS.index(ONLY_RIGHT)
    kinds[theirs[0] > 1] = 1 + KINDS.index(DUPLICATE_RIGHT)
    kinds[ours[0] > 1] = 1 + KINDS.index(DUPLICATE)
    return _runs(span, kinds)


def _spread(side: Offsets, span: Span) -> tuple[Any, Any]:
    """Return counts and hashes of each offset of the span."""
    numpy = library("numpy")
    counts = numpy.zeros(span.end - span.start, numpy.int64)
    hashes = numpy.zeros(span.end - span.start, numpy.int64)
    counts[side.offsets - span.start] = side.counts
    hashes[side.offsets - span.start] = side.hashes
    return counts, hashes


def _runs(span: Span, kinds: Any) -> list[Finding]:
    numpy = library("numpy")
    cuts = [0, *(numpy.flatnonzero(numpy.diff(kinds)) + 1).tolist(), len(kinds)]
    return [
        Finding(span.partition, span.start + start, span.start + end, KINDS[kinds[start] - 1])
        for start, end in itertools.pairwise(cuts)
        if start < end and kinds[start]
    ]


def joined(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in order, those that touch and are of one kind put together."""
    found: list[Finding] = []
    for each in sorted(findings):
        before = found[-1] if found else None
        touches = before is not None and before.end_offset == each.start_offset
        if before and touches and (before.partition, before.kind) == (each.partition, each.kind):
            found[-1] = Finding(each.partition, before.start_offset, each.end_offset, each.kind)
        else:
            found.append(each)
    return found
