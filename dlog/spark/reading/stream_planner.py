"""Planner of a streaming query: what each micro-batch reads. One per query, on the driver.

All that must survive a restart is in the offsets that Spark keeps: where batches end. Where the
first one begins it does not keep: a query that ends before that batch is committed asks for it
again, and gets another answer where the logs' ends were meant, or something was added or trimmed.
So the first batch reads nothing of what begins at the end of a log, and its own end is believed.

What is remembered here beside the offsets makes checks sharper while the query runs: which life of
a topic it reads, how far it knew the logs to go.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from dlog.spark.options.offsets import PartitionOffsets
from dlog.spark.options.options import ReadOptions
from dlog.spark.reading.bounds import Beginning, existing, starting_offsets
from dlog.spark.reading.limits import BatchGate, backlog, limit_bytes, limit_offsets
from dlog.spark.reading.lookup import Assigned, Lookup
from dlog.spark.reading.loss import (
    on_loss,
    plan_stream,
    report_change,
    report_deleted,
    report_recreated,
)
from dlog.spark.reading.ranges import OffsetRange, split_ranges
from dlog.types import ZERO_TOPIC_ID, TopicPartition

Offsets = dict[TopicPartition, int]

MEAN_BYTES = 1024.0
"""What a record is taken to have while nobody can say how large a partition is."""


class StreamPlanner:
    """Plans the batches of one query. Owner: one thread. Life: until `close`."""

    def __init__(self, options: ReadOptions, lookup: Lookup, now_s: Callable[[], float]) -> None:
        self.latest: Offsets | None = None
        """Where the logs ended when they were looked at last."""
        self._options = options
        self._lookup = lookup
        self._now_s = now_s
        self._lose = on_loss(options.fail_on_data_loss)
        self._initial: Beginning | None = None
        self._first: Offsets | None = None
        """Where the first batch of a new query ends, once that was asked for."""
        self._has_planned = False
        self._is_frozen = False
        self._target: Offsets | None = None
        # Of each topic the ids that it had, the present one last.
        self._topic_ids: dict[str, list[UUID]] = {}
        self._missing: tuple[TopicPartition | str, ...] = ()
        # The mean sizes of records as they were known last.
        self._means: dict[TopicPartition, float] = {}
        self._gate = BatchGate(options.min_offsets_per_trigger or 0, options.max_trigger_delay_s)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._lookup.close()

    def freeze(self) -> None:
        """Read no more than there is when the first end is asked for: `availableNow`."""
        self._is_frozen = True

    # Where a query begins

    def initial(self) -> Offsets:
        """Return where a new query begins; the same whenever this process is asked for it."""
        if self._initial is None:
            assigned = existing(self._lookup, self._options)
            self._note_topics(assigned, {})
            self._initial = starting_offsets(self._lookup, self._options, assigned.partitions)
        return self._initial.offsets

    def _is_initial(self, start: PartitionOffsets) -> bool:
        return self._initial is not None and start == self._initial.offsets

    def _is_first(self, start: PartitionOffsets, end: PartitionOffsets) -> bool:
        """Return whether that is the first batch; the next begins there, too, if it is empty.

        Before any end was asked for here, it is one that was planned before a restart.
        """
        return self._is_initial(start) and (self.latest is None or end == self._first)

    def _first_end(self, start: PartitionOffsets, ends: Offsets) -> Offsets:
        """Return where the first batch ends, so that its beginning need not be known to repeat it.

        Spark runs it even when nothing is in it, with `availableNow` too, and then the next.
        """
        passing = self._initial.passing if self._initial is not None else ()
        return {
            key: min(end, start[key]) if key in passing else end
            for key, end in ends.items()
            if key in start  # what was added meanwhile begins at 0: in the next batch
        }

    def _first_start(
        self, start: PartitionOffsets, end: PartitionOffsets, earliest: PartitionOffsets
    ) -> PartitionOffsets:
        """Return where the batch begins that begins where a new query would."""
        if self.latest is None:
            # It was planned before a restart: what is not in it is for the next one.
            start = {key: min(offset, end[key]) for key, offset in start.items() if key in end}
        whole = self._initial.whole if self._initial is not None else ()
        # What retention took before the first batch was never promised.
        return {
            key: min(max(offset, earliest.get(key, offset)), end.get(key, offset))
            if key in whole
            else offset
            for key, offset in start.items()
        }

    # Where a batch ends

    def next_end(self, start: PartitionOffsets, *, is_limited: bool) -> Offsets:
        """Return where the batch that begins at `start` ends; `start` itself when there is none.

        Partitions that are gone are left out, added ones are in it, but for the first batch. Raises
        DataLossError where something is gone and that is to end the query.
        """
        ends = self._available(start)
        is_first = not self._has_planned and self._is_initial(start)
        if is_first:
            ends = self._first_end(start, ends)
        self._has_planned = True
        if is_limited:
            ends = self._limited(start, ends)
        if is_first:
            self._first = ends
        if self._options.fail_on_data_loss:
            self._refuse_loss(start, ends)
        return ends

    def _refuse_loss(self, start: PartitionOffsets, ends: PartitionOffsets) -> None:
        """Raise DataLossError before Spark writes down an end that lacks something.

        Written down, it would fail for ever, even if only the address of the cluster or the name of
        a topic was wrong for one start.
        """
        report_deleted((key for key in start if key not in ends), self._lose)
        for key, end in sorted(ends.items()):
            if end < start.get(key, end):
                report_change(key, start[key], end, self._lose)

    def _limited(self, start: PartitionOffsets, ends: Offsets) -> Offsets:
        """Return how much of that the options let a batch have."""
        options = self._options
        if options.min_offsets_per_trigger is not None and not self._is_frozen:
            count = sum(max(end - start.get(key, 0), 0) for key, end in ends.items())
            if any(end < start.get(key, end) for key, end in ends.items()):
                # A new life of a topic is told once: the next batch must begin where it does.
                count = options.min_offsets_per_trigger
            if not self._gate.is_open(count, self._now_s()):
                return dict(start)
        if options.max_offsets_per_trigger is None and options.max_bytes_per_trigger is None:
            return ends
        added = [key for key in ends if key not in start]
        begins = {**start, **(self._lookup.earliest(added) if added else {})}
        limited = ends
        if options.max_offsets_per_trigger is not None:
            limited = limit_offsets(options.max_offsets_per_trigger, begins, ends)
        if options.max_bytes_per_trigger is not None:
            means = self._mean_bytes(begins, ends)
            by_bytes = limit_bytes(options.max_bytes_per_trigger, begins, ends, means)
            limited = {key: min(end, by_bytes[key]) for key, end in limited.items()}
        return limited

    def _available(self, start: PartitionOffsets) -> Offsets:
        """Return how far the logs go now, or, frozen, went at the first question.

        Of topics that were made anew, where they begin: up to their end it goes the next time.
        """
        assigned = self._lookup.assigned(self._options.subscription, start, self._missing)
        self._missing = assigned.missing
        anew = self._note_topics(assigned, start)
        if self._target is not None and not anew:
            return dict(self._target)
        known = {key: offset for key, offset in start.items() if key.topic not in anew}
        self.latest = self._lookup.latest(
            assigned.partitions,
            known,
            attempt_count=self._options.attempt_count,
            retry_interval_s=self._options.retry_interval_s,
        )
        ends = dict(self.latest)
        if self._target is not None:
            ends = {key: end for key, end in ends.items() if key.topic in anew}
            ends.update((key, end) for key, end in self._target.items() if key.topic not in anew)
        if self._is_frozen:
            self._target = dict(ends)
        # The next batch begins there: nothing of the new topic is left out, nothing repeated.
        begins = {**ends, **self._lookup.earliest(key for key in ends if key.topic in anew)}
        # Unless this one does: an end that is the start would end a query with `availableNow`.
        return ends if begins == start else begins

    def _note_topics(self, assigned: Assigned, start: PartitionOffsets) -> list[str]:
        """Remember which topics are read; return those that are others than before.

        A node that lags may tell of a former life: that is no news.
        """
        begun = {key.topic for key in start}
        anew = []
        for topic, topic_id in assigned.topic_ids.items():
            ids = self._topic_ids.setdefault(topic, [])
            if topic_id in ids or topic_id == ZERO_TOPIC_ID:  # older clusters tell no ids
                continue
            if ids and topic in begun:
                report_recreated(topic, self._lose)
                anew.append(topic)
            ids.append(topic_id)
        return anew

    def _topic_id(self, topic: str) -> UUID:
        """Return the id of a topic as it was when it was looked up last."""
        return self._topic_ids.get(topic, [ZERO_TOPIC_ID])[-1]

    def _mean_bytes(self, start: PartitionOffsets, ends: Offsets) -> dict[TopicPartition, float]:
        """Return the mean size of a record, as stored, of each partition with a backlog.

        Of those whose size is not known now: what it was before, or a guess.
        """
        wanted = list(backlog(start, ends))
        sizes = self._lookup.sizes(wanted)
        first = self._lookup.earliest(wanted)
        latest: Mapping[TopicPartition, int] = self.latest or {}
        self._means.update(
            (key, size / max(latest.get(key, ends[key]) - first.get(key, 0), 1))
            for key, size in sizes.items()
        )
        return {key: self._means.get(key, MEAN_BYTES) for key in wanted}

    # What a batch reads

    def ranges(self, start: PartitionOffsets, end: PartitionOffsets) -> list[OffsetRange]:
        """Return the tasks of a batch; raises DataLossError where something is gone."""
        if not self._topic_ids:
            # A batch of the checkpoint, planned again: nobody has asked yet which topics are read.
            self._note_topics(self._lookup.assigned(self._options.subscription), {})
        wanted = [key for key in end if start.get(key, -1) < end[key]]
        earliest = self._lookup.earliest(wanted)
        if self._is_first(start, end):
            start = self._first_start(start, end, earliest)
        # Of a batch that the checkpoint has: then the next one is not the first.
        self._has_planned = True
        known = self.latest or {}
        unknown = [key for key in wanted if key in earliest and known.get(key, -1) < end[key]]
        latest = self._lookup.latest(
            unknown,
            end,
            attempt_count=self._options.attempt_count,
            retry_interval_s=self._options.retry_interval_s,
        )
        planned = plan_stream(start, end, earliest, {**known, **latest}, self._lose)
        return split_ranges(
            [replace(each, topic_id=self._topic_id(each.topic)) for each in planned],
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
