"""Outcomes of records: written, refused or unknown. One object per batch, a view per record.

A `BatchResult` belongs to a batch and is settled once; a `Delivery` is a result and an index, so
that a record costs no future of its own unless somebody waits for it. Awaiting a delivery asks for
its batch to be sent without lingering, for a program that waits adds nothing to the batch.

Owner: the producer's loop. `dlog.client.blocking_producer` touches results from other threads,
under the producer's lock.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from dlog.errors import DlogError

NO_OFFSET = -1


class Written(NamedTuple):
    """Where a record was appended.

    `offset` is -1 when nobody told: with acks "none", and for a repetition that the leader knows
    only as such. `timestamp_ms` is the leader's when the topic has log append times.
    """

    partition: int
    offset: int
    timestamp_ms: int


class WrittenSpan(NamedTuple):
    """Records that were appended one behind the other, from `base_offset` (-1: not told) on.

    `indexes` says which records of the call they are, in the order of their offsets.
    """

    partition: int
    base_offset: int
    indexes: Sequence[int]
    append_time_ms: int
    """When the leader appended, for topics with log append times; else -1."""


class DeliveryError(DlogError):
    """A record was not acknowledged; `__cause__` is the last error on the way, if there was one."""


class RefusedError(DeliveryError):
    """The record is certainly not in the log: sending it again writes it at most once."""


class UnknownOutcomeError(DeliveryError):
    """The record may be in the log or not: the answer did not come in time."""


class BufferFullError(DlogError):
    """The producer's memory stayed full; the record was not taken over."""


class UnsendableRowError(ValueError):
    """One of many records cannot be sent; `row` is its number among those of the call."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message, row)
        self.row = row

    def __str__(self) -> str:
        """Return the message alone."""
        return str(self.args[0])


class Owner(Protocol):
    """The producer that a batch belongs to."""

    def wake(self) -> None:
        """Look at everything again."""


class BatchResult:
    """The fate of one batch. Life: pending, then settled or split for good.

    Invariant: once `is_done`, nothing changes any more.
    """

    __slots__ = (
        "_watchers",
        "append_time_ms",
        "base_offset",
        "error",
        "is_done",
        "is_urgent",
        "owner",
        "partition",
        "parts",
    )

    def __init__(self, partition: int, owner: Owner) -> None:
        self.partition = partition
        self.owner = owner
        self.is_done = False
        self.is_urgent = False
        self.base_offset = NO_OFFSET
        self.append_time_ms = -1
        self.error: DeliveryError | None = None
        # After a split: (index of its first record, result) of each part, in order.
        self.parts: tuple[tuple[int, BatchResult], ...] = ()
        self._watchers: list[tuple[int, Callable[[], None]]] = []

    def settle(
        self,
        *,
        base_offset: int = NO_OFFSET,
        append_time_ms: int = -1,
        error: DeliveryError | None = None,
    ) -> list[Callable[[], None]]:
        """Set the outcome and return whom to tell; the caller calls them."""
        assert not self.is_done, "a batch has one outcome"
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self.error = error
        # Last: another thread may look, without a lock, and must not find half an outcome.
        self.is_done = True
        watchers, self._watchers = self._watchers, []
        return [callback for _, callback in watchers]

    def split(self, parts: Sequence[tuple[int, "BatchResult"]]) -> None:
        """Let the parts have the outcome from now on."""
        self.parts = tuple(parts)
        watchers, self._watchers = self._watchers, []
        for index, callback in watchers:
            part, index_within = self.locate(index)
            part.watch(index_within, callback)
        if self.is_urgent:
            for _, part in self.parts:
                part.is_urgent = True

    def locate(self, index: int) -> tuple["BatchResult", int]:
        """Return the result that has the outcome of record number `index`, and its number there."""
        result = self
        while result.parts:
            first, result = next(part for part in reversed(result.parts) if part[0] <= index)
            index -= first
        return result, index

    def watch(self, index: int, callback: Callable[[], None]) -> None:
        """Call `callback` once the outcome of record number `index` is there; not when it is."""
        result, index = self.locate(index)
        result._watchers.append((index, callback))

    def hurry(self) -> None:
        """Ask that the batch be sent without lingering."""
        if not self.is_urgent and not self.is_done:
            self.is_urgent = True
            self.owner.wake()


def fresh(error: DeliveryError) -> DeliveryError:
    """Return the same error anew: one instance raised for many records gathers tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


class Delivery:
    """A record on its way; awaiting it gives `Written`, or raises what became of it instead.

    Raises RefusedError or UnknownOutcomeError. May be awaited any number of times, or never.
    """

    __slots__ = ("_timestamp_ms", "batch", "index")

    def __init__(self, batch: BatchResult, index: int, timestamp_ms: int) -> None:
        self.batch = batch
        self.index = index
        self._timestamp_ms = timestamp_ms

    @property
    def partition(self) -> int:
        """The partition that the record was given to."""
        return self.batch.partition

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self.batch.locate(self.index)[0].is_done

    def outcome(self) -> Written | DeliveryError | None:
        """Return the outcome without raising it; None while it is not known."""
        result, index = self.batch.locate(self.index)
        if not result.is_done:
            return None
        if result.error is not None:
            return result.error
        offset = NO_OFFSET if result.base_offset < 0 else result.base_offset + index
        appended_ms = result.append_time_ms
        return Written(
            result.partition, offset, self._timestamp_ms if appended_ms < 0 else appended_ms
        )

    async def wait(self) -> None:
        """Return when the outcome is known, whatever it is."""
        while not self.done():
            await _Outcome(*self.batch.locate(self.index))

    def written(self) -> Written:
        """Return the outcome, which must be known, or raise it."""
        outcome = self.outcome()
        if outcome is None:
            raise RuntimeError("the outcome is not known yet")
        if isinstance(outcome, DeliveryError):
            raise fresh(outcome)
        return outcome

    def __await__(self) -> Generator[Any, None, Written]:
        result, index = self.batch.locate(self.index)
        if not result.is_done:
            yield from _wait(result, index)
        # A split on the way ends in parts that are waited for by the same watcher.
        return self.written()


class BatchDelivery:
    """Many records on their way; awaiting gives their spans in order, or raises the first error.

    After an error other records may still be written: `outcomes` tells about each span.
    """

    __slots__ = ("_spans", "record_count")

    def __init__(self) -> None:
        self.record_count = 0
        # Result, number of the first record within it, which records of the call.
        self._spans: list[tuple[BatchResult, int, Sequence[int]]] = []

    def add(self, result: BatchResult, first: int, indexes: Sequence[int]) -> None:
        """Add a run of records of one batch."""
        self.record_count += len(indexes)
        spans = self._spans
        if spans and isinstance(indexes, range):
            last, last_first, last_indexes = spans[-1]
            follows = last is result and last_first + len(last_indexes) == first
            if follows and isinstance(last_indexes, range) and last_indexes.stop == indexes.start:
                spans[-1] = (last, last_first, range(last_indexes.start, indexes.stop))
                return
        spans.append((result, first, indexes))

    def add_record(self, delivery: Delivery, index: int) -> None:
        """Add one record, number `index` of the call."""
        self.add(delivery.batch, delivery.index, range(index, index + 1))

    def parts(self) -> Iterator[tuple[BatchResult, int, Sequence[int]]]:
        """Yield each run within one result, splits followed."""
        for result, first, indexes in self._spans:
            done = 0
            while done < len(indexes):
                part, index = result.locate(first + done)
                # To the end of this part: at most all that is left.
                count = 1
                if part is result:
                    count = len(indexes) - done
                else:
                    while (
                        done + count < len(indexes)
                        and result.locate(first + done + count)[0] is part
                    ):
                        count += 1
                yield part, index, indexes[done : done + count]
                done += count

    def done(self) -> bool:
        """Return whether all outcomes are known."""
        return all(result.is_done for result, _, _ in self.parts())

    def outcomes(self) -> list[WrittenSpan | tuple[DeliveryError, Sequence[int]] | None]:
        """Return per span where it is, or its error and which records; None: not known yet."""
        found: list[WrittenSpan | tuple[DeliveryError, Sequence[int]] | None] = []
        for result, index, indexes in self.parts():
            if not result.is_done:
                found.append(None)
            elif result.error is not None:
                found.append((result.error, indexes))
            else:
                base = NO_OFFSET if result.base_offset < 0 else result.base_offset + index
                found.append(WrittenSpan(result.partition, base, indexes, result.append_time_ms))
        return found

    def written(self) -> list[WrittenSpan]:
        """Return all spans, whose outcomes must be known, or raise the first error."""
        spans = []
        for outcome in self.outcomes():
            if outcome is None:
                raise RuntimeError("some outcomes are not known yet")
            if not isinstance(outcome, WrittenSpan):
                raise fresh(outcome[0])
            spans.append(outcome)
        return spans

    def next_pending(self) -> tuple[BatchResult, int] | None:
        """Return a result that is still to come, and a record of it."""
        for result, index, _ in self.parts():
            if not result.is_done:
                return result, index
        return None

    def hurry(self) -> None:
        """Ask that all records be sent without lingering."""
        for result, _, _ in self.parts():
            result.hurry()

    async def wait(self) -> None:
        """Return when all outcomes are known."""
        self.hurry()
        while (pending := self.next_pending()) is not None:
            await _Outcome(*pending)

    def __await__(self) -> Generator[Any, None, list[WrittenSpan]]:
        yield from self.wait().__await__()
        return self.written()


class _Outcome:
    """Awaited until a result is there."""

    def __init__(self, result: BatchResult, index: int) -> None:
        self._result = result
        self._index = index

    def __await__(self) -> Generator[Any, None, None]:
        yield from _wait(self._result, self._index)


def _wait(result: BatchResult, index: int) -> Generator[Any, None, None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    result.watch(index, tell)
    result.hurry()
    yield from future
