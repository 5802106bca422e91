"""Results of batches: the effect of an answer, an error or a deadline on each batch.

Pure. Called by `dlog.client.producing.sender` under its lock; each function returns whom to tell
afterwards, without the lock: who waits, and the log, whose handlers are the program's and may take
their time.
"""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from dlog.client.cluster.failure_rules import Verdict, clears_doubt, judge, leaves_doubt
from dlog.client.cluster.log_lines import error_name, log_event
from dlog.client.futures import NO_OFFSET, DeliveryError, RefusedError, UnknownOutcomeError
from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.partition_queue import Batch, PartitionQueue
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError

Tell = list[Callable[[], None]]


@dataclass(slots=True)
class ProducerCounters:
    """What a producer has done; each only grows."""

    requests_sent: int = 0
    batches_sent: int = 0
    """Attempts included."""
    bytes_sent: int = 0
    """Of batches as sent, compressed, attempts included."""
    records_written: int = 0
    records_refused: int = 0
    records_unknown: int = 0
    """Records whose outcome stayed unknown."""
    batches_retried: int = 0
    batches_split: int = 0
    epochs_begun: int = 0
    """Times that a partition had to be numbered anew, because its leader had lost something."""
    memory_waits: int = 0
    """Times that a caller waited for memory."""

    def as_dict(self) -> dict[str, int]:
        """Return all by name."""
        return asdict(self)


class BatchResults:
    """Settles batches. Owner: the sender."""

    def __init__(
        self,
        accumulator: Accumulator,
        counters: ProducerCounters,
        rng: random.Random,
        *,
        gapless: bool = False,
    ) -> None:
        self.policy = RetryPolicy()
        self._gapless = gapless
        self._accumulator = accumulator
        self._counters = counters
        self._rng = rng

    def written(self, batch: Batch, base_offset: int, append_time_ms: int) -> Tell:
        """Take a batch off the wire that is in the log."""
        batch.queue.written(batch)
        batch.queue.window.on_written(batch.order)
        self._accumulator.served(batch.queue)
        if batch.result.is_done:  # too late: its time was over before
            return []
        self._counters.records_written += batch.record_count
        self._accumulator.release(batch)
        return batch.result.settle(base_offset=base_offset, append_time_ms=append_time_ms)

    def failed(self, batch: Batch, error: Exception, now_s: float) -> Tell:
        """Take a batch off the wire whose attempt failed: it waits again, or it is over."""
        queue = batch.queue
        batch.last_error = error
        if clears_doubt(error):
            batch.in_doubt = False
            queue.is_known = queue.identity is not None  # who does not know it takes anything
        elif leaves_doubt(error):
            batch.in_doubt = batch.may_be_written = True
        if batch.result.is_done:
            queue.remove(batch)
            self._accumulator.served(queue)
            return []
        verdict = judge(
            error,
            is_idempotent=batch.base_sequence >= 0,
            is_oldest=queue.is_oldest(batch),
            may_be_written=batch.may_be_written,
            has_lost=queue.window.has_lost,
            record_count=batch.record_count,
        )
        if verdict is Verdict.WRITTEN_BEFORE:
            return self.written(batch, NO_OFFSET, -1)
        if verdict is Verdict.GIVE_UP or queue.is_retired:
            queue.remove(batch)
            return self._give_up(batch, str(error))
        if verdict is Verdict.SPLIT:
            queue.remove(batch)
            try:
                self._accumulator.split(batch)
            except (DlogError, ValueError) as problem:
                return self._give_up(batch, f"{error}; it cannot be split: {problem}")
            self._counters.batches_split += 1
            tell: Tell = []
        else:
            tell = self._retry(batch, verdict, error, now_s)
        self._accumulator.served(queue)
        return tell

    def not_encoded(self, batch: Batch, error: Exception) -> Tell:
        """End a batch whose bytes cannot be made: no attempt of it was ever sent."""
        batch.last_error = error
        batch.queue.remove(batch)
        return self._give_up(batch, f"it could not be encoded: {error!r}")

    def _retry(self, batch: Batch, verdict: Verdict, error: Exception, now_s: float) -> Tell:
        queue = batch.queue
        tell: Tell = []
        self._counters.batches_retried += 1
        if verdict is not Verdict.RETRY and not queue.needs_epoch:
            self._counters.epochs_begun += 1
            queue.needs_epoch = True
            line = partial(
                log_event,
                logging.WARNING,
                "Renumbered a partition",
                partition=queue,
                producer_id=batch.producer_id,
                epoch=batch.producer_epoch,
                sequence=batch.base_sequence,
                error=error_name(error),
                reason=error,
            )
            tell.append(line)
        queue.needs_id = queue.needs_id or verdict is Verdict.NEW_PRODUCER_ID
        queue.retry(batch, now_s + self.policy.backoff_s(batch.attempts - 1, self._rng))
        return tell

    def expire(self, queue: PartitionQueue, now_s: float, trouble: Exception | None = None) -> Tell:
        """End what should have been written by now. What is on the wire stays there.

        `trouble` is why nothing could be sent, for batches that were not even tried.
        """
        tell: Tell = []
        for batch in queue.inflight:
            if batch.deadline_s <= now_s and not batch.result.is_done:
                tell += self._settle(batch, "no answer in time", is_unknown=True)
        # The last ones first: each may give its number back.
        for batch in reversed(list(queue.waiting)):
            if batch.deadline_s <= now_s:
                queue.waiting.remove(batch)
                tell += self._give_up_late(batch, trouble)
        opened = queue.open
        if opened is not None and opened.deadline_s <= now_s:
            queue.drop_open()
            tell += self._give_up_late(opened, trouble)
        return tell

    def end_all(self, reason: str) -> Tell:
        """End every batch now."""
        tell: Tell = []
        for queue in list(self._accumulator.active):
            for batch in queue.inflight:
                if not batch.result.is_done:
                    tell += self._settle(batch, reason, is_unknown=True)
            tell += self._end_unsent(queue, reason)
        return tell

    def retire(self, queues: Sequence[PartitionQueue], reason: str) -> Tell:
        """End what waits for a topic that is no more; what is on the wire ends by its answer."""
        for queue in queues:
            queue.is_retired = True
        return self.refuse(queues, reason)

    def refuse(self, queues: Sequence[PartitionQueue], reason: str) -> Tell:
        """End what waits and cannot be sent; what is on the wire ends by its answer."""
        tell: Tell = []
        for queue in queues:
            tell += self._end_unsent(queue, reason)
        return tell

    def _end_unsent(self, queue: PartitionQueue, reason: str) -> Tell:
        tell: Tell = []
        while queue.waiting:
            tell += self._give_up(queue.waiting.pop(), reason)
        opened = queue.open
        if opened is not None:
            queue.drop_open()
            tell += self._give_up(opened, reason)
        return tell

    def _give_up_late(self, batch: Batch, trouble: Exception | None) -> Tell:
        batch.last_error = batch.last_error or trouble
        return self._give_up(batch, _too_late(batch))

    def _give_up(self, batch: Batch, reason: str) -> Tell:
        """End a batch that is neither on the wire nor waits any more."""
        if batch.may_be_written:
            batch.queue.pass_by(batch)
        else:
            batch.queue.give_back_number(batch)
        self._accumulator.served(batch.queue)
        return self._settle(batch, reason, is_unknown=batch.may_be_written)

    def _settle(self, batch: Batch, reason: str, *, is_unknown: bool) -> Tell:
        batch.queue.is_retired = batch.queue.is_retired or self._gapless
        message = f"{batch.queue}: {reason}"
        error: DeliveryError
        if is_unknown:
            batch.queue.window.lose(batch.order)
            error = UnknownOutcomeError(message)
            self._counters.records_unknown += batch.record_count
        else:
            error = RefusedError(message)
            self._counters.records_refused += batch.record_count
        error.__cause__ = batch.last_error
        line = partial(
            log_event,
            logging.WARNING,
            "Gave up a batch",
            partition=batch.queue,
            outcome="unknown" if is_unknown else "refused",
            records=batch.record_count,
            attempts=batch.attempts,
            reason=reason,
            error=None if batch.last_error is None else error_name(batch.last_error),
        )
        self._accumulator.release(batch)
        return [*batch.result.settle(error=error), line]


def _too_late(batch: Batch) -> str:
    if batch.last_error is None:
        return "it could not be sent in time"
    return f"it could not be written in time: {batch.last_error}"
