"""Replication part of the status: lag of followers, followed leaders, traffic.

Read when somebody asks: one look at each partition that is led here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dlog.types import NodeId
from dlogd.replication.follower.fetch_services import FetchCounters
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.leader_fetcher import LeaderFetcher
from dlogd.replication.leader.isr import IsrCounters
from dlogd.replication.partition.leader_state import FollowerProgress
from dlogd.replication.partition.partition import Partition
from dlogd.replication.replica_repair import RepairCounters
from dlogd.runtime.clock import Clock
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.telemetry import replication_metrics as metrics
from dlogd.telemetry.metrics import Sample

WORST_COUNT = 5


class Replicates(Protocol):
    """`dlogd.node.replication_setup`, as the report sees it."""

    counters: FetchCounters

    @property
    def isr_counters(self) -> IsrCounters:
        """Changes of ISRs."""

    @property
    def mend_counters(self) -> RepairCounters:
        """Damaged places."""

    @property
    def sent_bytes_total(self) -> int:
        """Bytes of records that followers were sent."""

    @property
    def fetchers(self) -> Mapping[NodeId, LeaderFetcher]:
        """Leaders that are followed."""


@dataclass(slots=True)
class Lag:
    """How far one node is behind, over the partitions that are led here."""

    partitions: int = 0
    following: int = 0
    in_sync: int = 0
    records: int = 0
    bytes: int = 0
    ms_max: int = 0


@dataclass(slots=True)
class Led:
    """The partitions that are led here."""

    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0


def bytes_behind(plog: PartitionLog, offset: int) -> int:
    """Return about how many bytes the log has from `offset` on."""
    total = 0
    for segment in reversed(plog.segments):
        end_offset = plog.end_offset_of(segment)
        if end_offset <= offset:
            break
        size = segment.end_position
        if offset > segment.base_offset:
            left = (end_offset - offset) / (end_offset - segment.base_offset)
            return total + int(size * left)
        total += size
    return total


def lag_ms(progress: FollowerProgress, leader_end: int, now_ms: int) -> int:
    """Return for how long a follower has not held all that there was; 0: it does."""
    if progress.promised_offset >= leader_end:
        return 0
    return max(0, now_ms - progress.caught_up_ms)


class ReplicationReport:
    """The part of a node's report that is about replication."""

    def __init__(self, replicating: Replicates, clock: Clock) -> None:
        self._replicating = replicating
        self._clock = clock

    def status(self, partitions: Iterable[Partition]) -> dict[str, Any]:
        """Return facts for people and programs."""
        lags, led, worst = self._look(partitions)
        replicating = self._replicating
        return {
            "followers": [
                {
                    "node": int(node_id),
                    "partitions": lag.partitions,
                    "following": lag.following,
                    "in_sync": lag.in_sync,
                    "lag_records": lag.records,
                    "lag_bytes": lag.bytes,
                    "lag_ms": lag.ms_max,
                }
                for node_id, lag in sorted(lags.items())
            ],
            "leaders": [
                {
                    "node": int(node_id),
                    "partitions": len(fetcher.followings),
                    "connected": fetcher.is_connected,
                }
                for node_id, fetcher in sorted(replicating.fetchers.items())
                if fetcher.followings
            ],
            "under_replicated": led.under_replicated,
            "under_min_isr": led.under_min_isr,
            "at_min_isr": led.at_min_isr,
            "isr_expands": replicating.isr_counters.expands_total,
            "isr_shrinks": replicating.isr_counters.shrinks_total,
            "sent_bytes": replicating.sent_bytes_total,
            "fetched_bytes": replicating.counters.bytes_total,
            "mended_places": replicating.mend_counters.mended_total,
            "worst": worst,
            "stuck": [
                {
                    "partition": str(each.partition.topic_partition),
                    "leader": int(each.leader_id),
                    "error": str(each.error),
                }
                for each in self._stuck()[:WORST_COUNT]
            ],
        }

    def _stuck(self) -> list[FollowedPartition]:
        fetchers = self._replicating.fetchers.values()
        return [each for one in fetchers for each in one.followings if each.error is not None]

    def _look(
        self, partitions: Iterable[Partition]
    ) -> tuple[dict[NodeId, Lag], Led, list[dict[str, Any]]]:
        now_ms = self._clock.now_ms()
        lags: dict[NodeId, Lag] = {}
        led = Led()
        behind: list[tuple[int, int, str, int]] = []
        for partition in partitions:
            leader, plog = partition.leader, partition.log
            if leader is None or plog.failed is not None or not leader.followers:
                continue
            count, wanted = leader.isr_count, leader.min_isr
            whole = count > len(leader.followers)
            led.under_replicated += not whole
            led.under_min_isr += count < wanted
            led.at_min_isr += count == wanted and not whole
            end = plog.log_end_offset
            for node_id, progress in leader.followers.items():
                lag = lags.setdefault(node_id, Lag())
                lag.partitions += 1
                lag.following += progress.node_epoch >= 0
                lag.in_sync += node_id in leader.isr
                held = max(int(progress.promised_offset), int(plog.log_start_offset))
                if held >= end:
                    continue
                late_ms = lag_ms(progress, end, now_ms)
                lag.records += end - held
                lag.bytes += bytes_behind(plog, held)
                lag.ms_max = max(lag.ms_max, late_ms)
                behind.append((late_ms, end - held, str(plog.topic_partition), int(node_id)))
        worst = sorted(behind, reverse=True)[:WORST_COUNT]
        return lags, led, [
            {"partition": name, "node": node, "lag_records": records, "lag_ms": late_ms}
            for late_ms, records, name, node in worst
        ]  # fmt: skip

    def samples(self, partitions: Iterable[Partition]) -> Iterator[Sample]:
        """Yield what a scrape gets."""
        replicating = self._replicating
        isr, fetched = replicating.isr_counters, replicating.counters
        mended = replicating.mend_counters
        lags, led, _ = self._look(partitions)
        for spec, value in (
            (metrics.ISR_EXPANDS, isr.expands_total),
            (metrics.ISR_SHRINKS, isr.shrinks_total),
            (metrics.ISR_REFUSED, isr.refused_total),
            (metrics.BYTES_OUT, replicating.sent_bytes_total),
            (metrics.BYTES_IN, fetched.bytes_total),
            (metrics.CONNECTS, fetched.connects_total),
            (metrics.FAILURES, fetched.failures_total),
            (metrics.REFUSALS, fetched.refusals_total),
            (metrics.TRUNCATIONS, fetched.truncations_total),
            (metrics.MENDED, mended.mended_total),
            (metrics.MEND_FAILURES, mended.failures_total),
            (metrics.UNDER_REPLICATED, led.under_replicated),
            (metrics.UNDER_MIN_ISR, led.under_min_isr),
            (metrics.AT_MIN_ISR, led.at_min_isr),
            (metrics.STUCK, len(self._stuck())),
        ):
            yield Sample(spec, (), value)
        for node_id, lag in sorted(lags.items()):
            labels = (str(node_id),)
            yield Sample(metrics.LAG_RECORDS, labels, lag.records)
            yield Sample(metrics.LAG_BYTES, labels, lag.bytes)
            yield Sample(metrics.LAG_SECONDS, labels, lag.ms_max / 1000)
            yield Sample(metrics.FOLLOWED, labels, lag.following)
        for node_id, fetcher in sorted(replicating.fetchers.items()):
            if fetcher.followings:
                labels = (str(node_id),)
                yield Sample(metrics.FOLLOWING, labels, len(fetcher.followings))
                yield Sample(metrics.CONNECTED, labels, float(fetcher.is_connected))
