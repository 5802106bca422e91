"""Resumption of an archive: the offsets of its next batch, as pure decisions.

From how far the archive is and what the cluster has. A batch is a pure function of both, and its
ranges are written down with it: whoever goes on after a crash begins where the last batch that was
published ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlog.spark.errors import DataLossError, SparkSourceError
from dlog.spark.pipelines.archives.manifest import NO_TOPIC_ID, ArchivedRange, Key, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBounds:
    """What the cluster has of a partition: `end_offset` is exclusive."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The cluster as a pipeline found it: its topics' ids and their partitions' bounds."""

    cluster_id: str
    topic_ids: Mapping[str, str]
    partitions: tuple[PartitionBounds, ...]


def check_same_origin(last: Manifest | None, origin: Origin) -> None:
    """Raise when the cluster, or a topic of the same name, is not the one that was archived."""
    if last is None:
        return
    if last.cluster_id and origin.cluster_id and last.cluster_id != origin.cluster_id:
        raise SparkSourceError(
            "DLOG_ARCHIVE_OF_ANOTHER_CLUSTER",
            f"This folder archives cluster {last.cluster_id}; the one that answers is "
            f"{origin.cluster_id}.",
            "Archive it into a folder of its own.",
        )
    for topic, topic_id in sorted(origin.topic_ids.items()):
        known = last.topic_ids.get(topic, NO_TOPIC_ID)
        if NO_TOPIC_ID not in (known, topic_id) and known != topic_id:
            raise SparkSourceError(
                "DLOG_ARCHIVE_OF_ANOTHER_TOPIC",
                f"Topic {topic} was deleted and recreated since it was archived: its offsets "
                f"began again (id {known} then, {topic_id} now).",
                "Archive the new one into a folder of its own.",
            )


def plan_batch(
    ends: Mapping[Key, int],
    partitions: Sequence[PartitionBounds],
    offsets_max: int,
    *,
    accept_loss: bool = False,
) -> tuple[ArchivedRange, ...]:
    """Return the ranges of the next batch, about `offsets_max` offsets; none when all is archived.

    What retention took before it could be archived raises DataLossError, or with `accept_loss` is
    noted in the range. Where there is more than fits, each partition gets its share of it.
    """
    waiting = [_waiting(ends, each, accept_loss=accept_loss) for each in partitions]
    found = [each for each in waiting if each.size > 0 or each.lost_from is not None]
    return _limited(sorted(found, key=lambda each: each.key), offsets_max)


def _waiting(
    ends: Mapping[Key, int], bounds: PartitionBounds, *, accept_loss: bool
) -> ArchivedRange:
    archived = ends.get(bounds.key)
    if archived is None:
        # Of a topic that was archived before, it was added later: nothing of it may be missing.
        is_added = any(topic == bounds.topic for topic, _ in ends)
        archived = 0 if is_added else bounds.start_offset
    name = f"{bounds.topic}-{bounds.partition}"
    if archived > bounds.end_offset:
        raise DataLossError(
            "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
            f"{name} ends at {bounds.end_offset}, but is archived up to {archived}.",
            "Its log was cut back; archive it into a folder of its own.",
        )
    start = max(archived, bounds.start_offset)
    if start > archived and not accept_loss:
        raise DataLossError(
            "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE",
            f"Offsets {archived} to {start - 1} of {name} are deleted: its log begins at {start}.",
            "Archive more often than retention.ms deletes records; --accept-loss continues without "
            "them and notes the gap.",
        )
    return ArchivedRange(
        topic=bounds.topic,
        partition=bounds.partition,
        start_offset=start,
        end_offset=max(start, bounds.end_offset),
        lost_from=archived if start > archived else None,
    )


def _limited(ranges: Sequence[ArchivedRange], offsets_max: int) -> tuple[ArchivedRange, ...]:
    """Cut ranges to their shares of `offsets_max`; each that has something keeps at least one."""
    total = sum(each.size for each in ranges)
    if total <= offsets_max:
        return tuple(ranges)
    cut = []
    for each in ranges:
        share = min(each.size, max(1, each.size * offsets_max // total)) if each.size else 0
        cut.append(
            ArchivedRange(
                topic=each.topic,
                partition=each.partition,
                start_offset=each.start_offset,
                end_offset=each.start_offset + share,
                lost_from=each.lost_from,
            )
        )
    return tuple(cut)


def ends_after(
    ends: Mapping[Key, int],
    partitions: Sequence[PartitionBounds],
    ranges: Sequence[ArchivedRange],
) -> dict[Key, int]:
    """Return how far the archive is with these ranges; empty partitions are known from now on."""
    seen = {each.key: each.start_offset for each in partitions}
    return {**seen, **ends, **{each.key: each.end_offset for each in ranges}}


def lag_of(ends: Mapping[Key, int], partitions: Sequence[PartitionBounds]) -> int:
    """Return how many offsets are not archived yet."""
    return sum(
        max(0, each.end_offset - max(each.start_offset, ends.get(each.key, 0)))
        for each in partitions
    )
