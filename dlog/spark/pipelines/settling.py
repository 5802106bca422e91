"""Ends of the target's partitions, once no write is under way.

A task that is run anew must know all that the attempt before it has left, and that may be more than
consumers see: a replica that is silent holds the high watermark back. So it is the log's own end
that counts, and it counts only when all before it is committed (else it may vanish with its leader)
and it has rested for a while (what a process sent that has died may arrive yet).
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from dlog.spark.errors import SparkSourceError
from dlog.spark.pipelines.replay_state import DisturbedReplayError
from dlog.types import TopicPartition

SETTLE_S = 0.3
"""A request of a process that has died may still be on its way into the log."""


class Ends(Protocol):
    """Who is asked; `dlog.spark.reading.lookup.Lookup` is one."""

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks."""

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offsets."""


@dataclass(slots=True)
class SettledEnds:
    """Waits until ends can be believed. Owner: one task."""

    ends: Ends
    deadline_s: float
    """How long one partition is waited for."""
    _seen: dict[TopicPartition, tuple[int, float]] = field(default_factory=dict)
    """The end that each had when it was asked for last, and since when."""

    def watch(self, keys: Iterable[TopicPartition]) -> None:
        """Look once at those that were not looked at yet: then they rest while others are used."""
        fresh = [key for key in keys if key not in self._seen]
        if fresh:
            self._look(fresh)

    def _look(self, keys: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Note the log end offsets; return the high watermarks from just before."""
        committed = self.ends.latest(keys)
        found = self.ends.log_ends(keys)
        now_s = time.monotonic()
        for key, end in found.items():
            if key not in self._seen or self._seen[key][0] != end:
                self._seen[key] = end, now_s
        gone = [key for key in keys if key not in found or key not in committed]
        if gone:
            raise SparkSourceError(
                "DLOG_UNKNOWN_TOPIC_OR_PARTITION",
                f"{gone[0].topic}-{gone[0].partition} is gone.",
                "The target was deleted: begin again with a new topic.",
            )
        return committed

    def wait(self, key: TopicPartition) -> int:
        """Return where a partition ends; raises SparkSourceError when that is not settled."""
        begun_s = time.monotonic()
        while True:
            committed = self._look([key])[key]
            end, since_s = self._seen[key]
            now_s = time.monotonic()
            rested_s = now_s - since_s
            if committed == end and rested_s >= SETTLE_S:
                return end
            if now_s - begun_s >= self.deadline_s:
                raise self._late(key, committed, is_moving=rested_s < SETTLE_S)
            time.sleep(max(SETTLE_S - rested_s, SETTLE_S / 10))

    def _late(self, key: TopicPartition, committed: int, *, is_moving: bool) -> SparkSourceError:
        name = f"{key.topic}-{key.partition}"
        if is_moving:
            return DisturbedReplayError(f"{name} still grows after {self.deadline_s:g} s.")
        return SparkSourceError(
            "DLOG_REPLAY_UNCOMMITTED",
            f"{name} ends at {self._seen[key][0]}, but is committed only up to {committed}, after"
            f" {self.deadline_s:g} s: a replica in sync is silent.",
            "Nothing was written: whether what is between must be written again is not known yet."
            " See dlogctl status, and start the replay again when it is in sync or out of the ISR.",
        )
