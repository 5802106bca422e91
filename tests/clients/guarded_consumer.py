"""confluent-kafka's consumer, replaced by a new one when it has locked itself up.

librdkafka 2.1 to 2.16 take two locks in different orders when a leader moves while an
OffsetForLeaderEpoch of that partition is answered with an error: then the client's main thread and
a broker's thread wait for each other for ever, nothing is read any more, and `close` does not
return. Not a matter of the server: https://github.com/confluentinc/librdkafka/issues/5476
"""

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

STATISTICS_MS = 500
LOCKED_S = 15.0
"""Statistics are made by the main thread: one that makes none for so long is locked up."""
CLOSE_S = 20.0


class GuardedConsumer:
    """Reads partitions from given offsets on. Used by one thread at a time; `close` at the end."""

    def __init__(self, bootstrap: str, starts: Mapping[tuple[str, int], int]) -> None:
        """`starts` gives the first offset of each (topic, partition)."""
        self._bootstrap = bootstrap
        self._next = dict(starts)
        self.lockups = 0
        """How many consumers were replaced."""
        self.watermarks: dict[tuple[str, int], int] = {}
        """The high watermarks that it was told, by its statistics: asking for them takes locks."""
        self._consumer = self._new()

    def _new(self) -> Consumer:
        self._seen_s = time.monotonic()
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._on_statistics,
            }
        )
        consumer.assign([TopicPartition(*each, offset) for each, offset in self._next.items()])
        return consumer

    def _on_statistics(self, text: str) -> None:
        self._seen_s = time.monotonic()
        for topic, told in json.loads(text)["topics"].items():
            for number, each in told["partitions"].items():
                if each["hi_offset"] >= 0:
                    self.watermarks[topic, int(number)] = each["hi_offset"]

    def consume(self, count_max: int, timeout_s: float) -> list[Message]:
        """Return what has come, errors among it, in at most `timeout_s`."""
        found = self._consumer.consume(count_max, timeout=timeout_s)
        for each in found:
            if each.error() is None:
                self._next[each.topic(), each.partition()] = each.offset() + 1  # type: ignore[index, operator]
        if time.monotonic() - self._seen_s > LOCKED_S:
            self._replace()
        return found

    def _replace(self) -> None:
        self.lockups += 1
        print("librdkafka's consumer has locked itself up (librdkafka#5476): a new one goes on")
        _close(self._consumer, 0)
        self._consumer = self._new()

    def close(self) -> None:
        """Close it, or leave it alone when it cannot be closed."""
        if not _close(self._consumer, CLOSE_S):
            self.lockups += 1
            print("librdkafka's consumer has locked itself up (librdkafka#5476): it stays open")


def _close(consumer: Any, timeout_s: float) -> bool:
    """Close in a thread that may wait for ever, and keeps the object from being freed."""
    closing = threading.Thread(target=consumer.close, name="librdkafka-close", daemon=True)
    closing.start()
    closing.join(timeout_s)
    return not closing.is_alive()
