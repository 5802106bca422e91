"""A user's producer at a steady rate while nodes come and go: confluent-kafka at its defaults.

Errors that reach the caller are counted, the longest gap between two delivery reports of a
partition is measured. acks=all is librdkafka's default, too.
"""

import threading
import time

from confluent_kafka import KafkaError, Message, Producer

FLUSH_S = 60
POLL_S = 0.1


class Deliveries:
    """Produces in a thread of its own. Life: a `with` block; figures are whole after it."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._topic, self._partitions, self._rate = topic, partitions, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._last = [0.0] * partitions
        self.longest_s = [0.0] * partitions
        self.sent = 0
        self.delivered = 0
        self.errors: dict[str, int] = {}

    def __enter__(self) -> "Deliveries":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def is_ready(self) -> bool:
        """Whether every partition has taken something."""
        return all(self._last)

    def forget(self) -> None:
        """Count gaps from here on."""
        self.longest_s = [0.0] * self._partitions

    def _take(self, error: KafkaError | None, message: Message) -> None:
        """Count one report."""
        if error is not None:
            self.errors[error.name()] = self.errors.get(error.name(), 0) + 1
            return
        now, partition = time.monotonic(), message.partition() or 0
        if self._last[partition]:
            gap = now - self._last[partition]
            self.longest_s[partition] = max(self.longest_s[partition], gap)
        self._last[partition] = now
        self.delivered += 1

    def _run(self) -> None:
        value = bytes(100)
        began = time.monotonic()
        while not self._over.is_set():
            due = began + self.sent / self._rate
            self._producer.poll(min(POLL_S, max(0.0, due - time.monotonic())))
            if time.monotonic() >= due:
                where = self.sent % self._partitions
                self._producer.produce(self._topic, value, partition=where, on_delivery=self._take)
                self.sent += 1
        left = self._producer.flush(FLUSH_S)
        if left:
            self.errors["never delivered"] = left
