"""Producers of one worker process, kept from task to task.

Spark runs many short tasks in one process, one at a time; opening a producer costs several round
trips. A producer is taken for a task and given back when all that it was given is in the log;
after a failure it is closed instead.
"""

import time
from dataclasses import dataclass

from dlog.client.blocking import Producer
from dlog.client.retry import RetryPolicy
from dlog.spark.options.write_options import WriteOptions
from dlog.spark.settings import ClientSettings

KEPT_MAX = 4
AGE_S_MAX = 300.0
"""Then what a topic's `ack.default` is, is asked for again."""
REST_S_MAX = 1.0
"""After a longer rest topics are looked up again: they may have been made anew meanwhile."""


@dataclass(slots=True)
class _Kept:
    producer: Producer
    opened_s: float
    given_back_s: float


_kept: dict[tuple[ClientSettings, WriteOptions], _Kept] = {}
# Those that are with a task, so that giving one back knows its age.
_opened_s: dict[int, float] = {}


def take_producer(settings: ClientSettings, options: WriteOptions) -> tuple[Producer, bool]:
    """Return a producer with nothing under way, and whether it has rested for long.

    Raises DlogError when there is no cluster.
    """
    kept = _kept.pop((settings, options), None)
    if kept is not None:
        now_s = time.monotonic()
        if now_s - kept.opened_s < AGE_S_MAX:
            _opened_s[id(kept.producer)] = kept.opened_s
            return kept.producer, now_s - kept.given_back_s >= REST_S_MAX
        kept.producer.close()
    producer = Producer(
        settings.bootstrap,
        acks=options.acks,
        compression=options.compression,
        linger_ms=options.linger_ms,
        batch_bytes=options.batch_bytes,
        memory_bytes=options.memory_bytes,
        request_bytes=options.request_bytes,
        request_timeout_ms=options.request_timeout_ms,
        delivery_timeout_ms=options.delivery_timeout_ms,
        block_ms=options.block_ms,
        idempotent=options.idempotent,
        connection=settings.connection(),
        policy=RetryPolicy(deadline_s=settings.deadline_s),
    )
    producer.start()
    _opened_s[id(producer)] = time.monotonic()
    return producer, False


def give_back(settings: ClientSettings, options: WriteOptions, producer: Producer) -> None:
    """Keep a producer, all of whose records are written, for the next task."""
    opened_s = _opened_s.pop(id(producer))
    while len(_kept) >= KEPT_MAX:
        _kept.pop(next(iter(_kept))).producer.close()
    _kept[settings, options] = _Kept(producer, opened_s, time.monotonic())


def discard(producer: Producer, abandon_ms: int) -> None:
    """Close the producer of a task that failed; what it still has gets so long."""
    _opened_s.pop(id(producer), None)
    producer.close(abandon_ms)
