"""Audit job: a topic or an archive by itself, or two of them against each other.

By itself: is each offset there once? Against another: are the same records at the same offsets?
Only what both should have is compared. Names the ranges that differ. What retention deletes from a
topic while it is read is no difference: it is left out, and named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from dlog.batch.columns import library
from dlog.spark.pipelines.archives.hashes import FIELDS, record_hash
from dlog.spark.pipelines.comparison import (
    BUCKET_OFFSETS,
    EXACT_MAX,
    GAP,
    SOMEWHERE,
    Bucket,
    Finding,
    Offsets,
    Span,
    compare_offsets,
    joined,
    no_offsets,
    suspects,
    without,
)
from dlog.spark.pipelines.events import Found, Observer, Phase, nobody
from dlog.spark.pipelines.sides import Extent, Side

Buckets = dict[tuple[int, int], Bucket]
GONE = "deleted while it was read"
NO_RECORD = "no record when it was archived"
PROBLEM = "problem"
"""What is told of findings that have no offsets."""
NOTHING_COMPARED = "nothing was compared: the two have no offsets in common"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRules:
    """What counts. `align`: offsets are counted from where each side begins."""

    fields: tuple[str, ...] = FIELDS
    align: bool = False
    may_have_gaps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was compared and found; offsets are those of the left side."""

    offsets: int
    records: int
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    not_compared: tuple[Finding, ...]
    """Offsets that only one side should have, or none has, with the kind of why."""

    @property
    def good(self) -> bool:
        """Whether all is as it should be."""
        return not self.findings and not self.problems


def audit(left: Side, right: Side | None, rules: AuditRules, observe: Observer = nobody) -> Audited:
    """Compare, and return what differs."""
    run = _Run(left, right, rules)
    observe(Phase(name="planned", batch=0))
    buckets = run.buckets(left, run.left_shifts)
    others = None if right is None else run.buckets(right, run.right_shifts)
    run.cut()
    observe(Phase(name="counted", batch=0))
    findings = run.examine(suspects(run.spans, buckets, others))
    run.cut()
    kept = [each for each in run.shown(run.still(findings)) if not run.is_excused(each)]
    problems = left.problems() + ([] if right is None else right.problems())
    not_compared = (*run.not_compared, *run.shown(run.gone), *run.holes())
    offsets = sum(each.end - each.start for each in run.spans)
    if right is not None and not offsets and not_compared:
        # Whoever only looks at the exit code must not take that for equal.
        problems.append(NOTHING_COMPARED)
    for kind in sorted({each.kind for each in kept}):
        count = sum(each.end_offset - each.start_offset for each in kept if each.kind == kind)
        observe(Found(kind=kind, count=count))
    if problems:
        observe(Found(kind=PROBLEM, count=len(problems)))
    return Audited(
        offsets=offsets,
        records=sum(each.rows for each in buckets.values()),
        findings=tuple(kept),
        problems=tuple(problems),
        not_compared=not_compared,
    )


def _bucket(partition: int, offset: int) -> tuple[int, int]:
    return partition, offset // BUCKET_OFFSETS


class _Run:
    """One audit. Spans and buckets have relative offsets: less each side's shift."""

    def __init__(self, left: Side, right: Side | None, rules: AuditRules) -> None:
        self._left = left
        self._right = right
        self._rules = rules
        ours = left.extents()
        theirs = ours if right is None else right.extents()
        self.left_shifts = self._shifts(ours)
        self.right_shifts = self._shifts(theirs)
        self.not_compared: list[Finding] = []
        self.spans = self._common(ours, theirs)
        self.gone: list[Finding] = []
        """What was deleted since then, by relative offsets."""
        self._moved: set[tuple[int, int]] = set()
        """Partition and bucket of the new start of each span that was cut."""

    def _shifts(self, extents: Mapping[int, Extent]) -> dict[int, int]:
        return {
            partition: each.start if self._rules.align else 0 for partition, each in extents.items()
        }

    def _common(self, ours: Mapping[int, Extent], theirs: Mapping[int, Extent]) -> list[Span]:
        spans = []
        for partition in sorted({*ours, *theirs}):
            if partition not in ours or partition not in theirs:
                extent = ours.get(partition) or theirs[partition]
                why = "only here" if partition in ours else "only in the other"
                if extent.end > extent.start:
                    self.not_compared.append(Finding(partition, extent.start, extent.end, why))
                continue
            left, right = ours[partition], theirs[partition]
            shift, other = self.left_shifts[partition], self.right_shifts[partition]
            low = max(left.start - shift, right.start - other)
            high = min(left.end - shift, right.end - other)
            common = Span(partition, low, max(low, high))
            ours_here = Span(partition, left.start - shift, left.end - shift)
            theirs_here = Span(partition, right.start - other, right.end - other)
            self._note_rest(ours_here, common, shift, "only here")
            self._note_rest(theirs_here, common, shift, "only in the other")
            lost = [(start - shift, end - shift) for start, end in left.lost]
            lost += [(start - other, end - other) for start, end in right.lost]
            self.not_compared += [
                Finding(partition, start + shift, end + shift, "lost before it was archived")
                for start, end in sorted({*lost})
            ]
            spans += without(common, lost)
        return spans

    def _note_rest(self, whole: Span, common: Span, shift: int, why: str) -> None:
        """Note what a side has before and behind what both have."""
        before = whole.start, min(common.start, whole.end)
        behind = max(common.end, whole.start), whole.end
        for start, end in (before, behind):
            if start < end:
                found = Finding(whole.partition, start + shift, end + shift, why)
                self.not_compared.append(found)

    def holes(self) -> list[Finding]:
        """Return what archives have noted as empty; a gap that is not among it came later.

        They are looked at like all others: a record that the other side has there is told.
        """
        found = set()
        sides = (self._left, self.left_shifts), (self._right, self.right_shifts)
        for side, shifts in sides:
            for each in [] if side is None else side.holes():
                if each.partition in self.left_shifts and each.partition in shifts:
                    moved = self.left_shifts[each.partition] - shifts[each.partition]
                    start, end = each.start_offset + moved, each.end_offset + moved
                    found.add(Finding(each.partition, start, end, NO_RECORD))
        return sorted(found)

    # What goes meanwhile

    def cut(self) -> None:
        """Leave out of the spans what a side has no more."""
        begins = self._begins(self._left, self.left_shifts)
        if self._right is not None:
            for partition, start in self._begins(self._right, self.right_shifts).items():
                begins[partition] = max(start, begins.get(partition, start))
        spans = []
        for each in self.spans:
            start = min(max(each.start, begins.get(each.partition, each.start)), each.end)
            if start > each.start:
                self.gone.append(Finding(each.partition, each.start, start, GONE))
                self._moved.add(_bucket(each.partition, start))
            spans.append(Span(each.partition, start, each.end))
        self.spans = spans

    def _begins(self, side: Side, shifts: Mapping[int, int]) -> dict[int, int]:
        starts = side.starts()
        return {key: start - shifts[key] for key, start in starts.items() if key in shifts}

    def still(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return what of these is not about records that are gone."""
        kept = []
        for each in findings:
            start = max(
                (one.end_offset for one in self.gone if one.partition == each.partition),
                default=each.start_offset,
            )
            if start < each.end_offset:
                kept.append(replace(each, start_offset=max(start, each.start_offset)))
        return kept

    # Sums

    def _wanted(
        self, spans: Sequence[Span], shifts: Mapping[int, int]
    ) -> dict[int, tuple[int, int]]:
        """Return the absolute range that covers all spans of each partition."""
        found: dict[int, tuple[int, int]] = {}
        for each in spans:
            start, end = each.start + shifts[each.partition], each.end + shifts[each.partition]
            low, high = found.get(each.partition, (start, end))
            found[each.partition] = (min(low, start), max(high, end))
        return {partition: each for partition, each in found.items() if each[0] < each[1]}

    def _relative(self, shifts: Mapping[int, int]) -> Column:
        if not any(shifts.values()):
            return sf.col("offset")
        pairs = [sf.lit(each) for pair in sorted(shifts.items()) for each in pair]
        return sf.col("offset") - sf.element_at(sf.create_map(*pairs), sf.col("partition"))

    def _prepared(self, side: Side, spans: Sequence[Span], shifts: Mapping[int, int]) -> DataFrame:
        """Return the partition, the relative offset and the hash of all records in these spans."""
        relative = self._relative(shifts)
        lies = sf.lit(False)
        for each in spans:
            between = sf.col("place").between(each.start, each.end - 1)
            lies |= (sf.col("partition") == each.partition) & between
        prepared = side.records(self._wanted(spans, shifts)).select(
            "partition",
            relative.alias("place"),
            record_hash(relative, self._rules.fields).alias("hash"),
        )
        # A range of each partition is what was asked for; more of them leave something between.
        return (
            prepared.where(lies)
            if len(spans) > len({each.partition for each in spans})
            else prepared
        )

    def buckets(self, side: Side, shifts: Mapping[int, int]) -> Buckets:
        """Return the sums of a side."""
        if not self._wanted(self.spans, shifts):
            return {}
        inside = sf.pmod("place", sf.lit(BUCKET_OFFSETS))
        # Spark divides by `/` as doubles, which do not hold every offset beyond 2^53.
        bucket = sf.expr(f"place div {BUCKET_OFFSETS}")
        is_sparse = self._right is None and self._rules.may_have_gaps
        distinct = sf.count_distinct("place") if is_sparse else sf.lit(None)
        rows = (
            self._prepared(side, self.spans, shifts)
            .groupBy("partition", bucket.alias("bucket"))
            .agg(
                sf.count(sf.lit(1)).alias("rows"),
                sf.sum(inside).alias("total"),
                sf.sum(inside * inside).alias("squares"),
                sf.bit_xor("hash").alias("checksum"),
                distinct.alias("distinct"),
            )
            .collect()
        )
        return {
            (row["partition"], row["bucket"]): Bucket(
                row["rows"], row["total"], row["squares"], row["checksum"], row["distinct"]
            )
            for row in rows
        }

    # Offset by offset

    def examine(self, doubtful: Sequence[Span]) -> list[Finding]:
        """Return what is wrong in these parts of buckets; where many are bad, of some only that."""
        # Buckets with a start that moved have sums of records that are gone: no harm is known yet.
        moved = [each for each in doubtful if _bucket(each.partition, each.start) in self._moved]
        rest = [each for each in doubtful if _bucket(each.partition, each.start) not in self._moved]
        findings = self._exact(rest[:EXACT_MAX])
        for first in range(0, len(moved), EXACT_MAX):
            findings += self._exact(moved[first : first + EXACT_MAX])
        return findings + [Finding(*each, SOMEWHERE) for each in rest[EXACT_MAX:]]

    def _exact(self, spans: Sequence[Span]) -> list[Finding]:
        """Return what is wrong in these spans."""
        if not spans:
            return []
        ours = self._offsets(self._left, spans, self.left_shifts)
        right = self._right
        theirs = None if right is None else self._offsets(right, spans, self.right_shifts)
        found: list[Finding] = []
        for each in spans:
            other = None if theirs is None else theirs.get(each, no_offsets())
            found += compare_offsets(each, ours.get(each, no_offsets()), other)
        return found

    def _offsets(
        self, side: Side, spans: Sequence[Span], shifts: Mapping[int, int]
    ) -> dict[Span, Offsets]:
        table = (
            self._prepared(side, spans, shifts)
            .groupBy("partition", "place")
            .agg(sf.count(sf.lit(1)).alias("count"), sf.bit_xor("hash").alias("hash"))
            .sort("partition", "place")
            .toArrow()
        )
        numpy = library("numpy")
        names = ("partition", "place", "count", "hash")
        partitions, places, counts, hashes = (table.column(name).to_numpy() for name in names)
        found = {}
        for each in spans:
            rows = (partitions == each.partition) & (places >= each.start) & (places < each.end)
            at = numpy.flatnonzero(rows)
            found[each] = Offsets(places[at], counts[at], hashes[at])
        return found

    # What is told

    def shown(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return findings with the left side's own offsets."""
        moved = []
        for each in joined(findings):
            shift = self.left_shifts[each.partition]
            start, end = each.start_offset + shift, each.end_offset + shift
            moved.append(Finding(each.partition, start, end, each.kind))
        return moved

    def is_excused(self, finding: Finding) -> bool:
        """Whether a gap is one that may be."""
        return finding.kind == GAP and self._rules.may_have_gaps
