"""Deliveries of the lines that `dlogctl produce` has sent: written, refused, unknown.

Holds a line number per record on its way, nothing for those that are written. Not thread-safe:
called by the thread that sends.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlog.client.futures import (
    BatchDelivery,
    BatchResult,
    Delivery,
    DeliveryError,
    UnknownOutcomeError,
    WrittenSpan,
)

SWEEP_RECORDS = 4096
FAILURES_MAX = 1000
"""So many runs of lines are named; the others are counted."""


def format_lines(lines: Sequence[int]) -> str:
    """Return numbers as `3-5, 9`."""
    runs: list[list[int]] = []
    for number in sorted(lines):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:20]]
    return ", ".join(shown) + (", ..." if len(runs) > 20 else "")


@dataclass(slots=True)
class Failure:
    """Lines that were not acknowledged, and why."""

    error: DeliveryError
    lines: list[int]

    @property
    def is_unknown(self) -> bool:
        """Whether they may be in the log all the same."""
        return isinstance(self.error, UnknownOutcomeError)


@dataclass(slots=True)
class Deliveries:
    """The records on their way, and the count of those that have arrived."""

    written: int = 0
    refused: int = 0
    unknown: int = 0
    partitions: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    _open: dict[BatchResult, "array[int]"] = field(default_factory=dict)
    _settled: set[BatchResult] = field(default_factory=set)
    _since_sweep: int = 0

    def add(self, delivery: Delivery, line: int) -> None:
        """Remember that `line` was sent; the lines of one batch come in order."""
        lines = self._open.get(delivery.batch)
        if lines is None:
            self._open[delivery.batch] = lines = array("q")
        lines.append(line)
        self._since_sweep += 1
        if self._since_sweep >= SWEEP_RECORDS:
            self._sweep()

    def _sweep(self) -> None:
        """Count what was settled at the sweep before: the sender's thread is through with it."""
        self._since_sweep = 0
        for batch in self._settled:
            self._count(batch, self._open.pop(batch))
        self._settled = {batch for batch in self._open if batch.is_done}

    def finish(self) -> None:
        """Count everything; the producer was flushed or closed, so that all is settled."""
        for batch, lines in self._open.items():
            self._count(batch, lines)
        self._open.clear()
        self._settled.clear()

    def _count(self, batch: BatchResult, lines: "array[int]") -> None:
        delivery = BatchDelivery()
        delivery.add(batch, 0, lines)
        for outcome in delivery.outcomes():
            if isinstance(outcome, WrittenSpan):
                self.written += len(outcome.indexes)
                self.partitions.add(outcome.partition)
            elif outcome is not None:
                self._fail(*outcome)

    def _fail(self, error: DeliveryError, lines: Sequence[int]) -> None:
        if isinstance(error, UnknownOutcomeError):
            self.unknown += len(lines)
        else:
            self.refused += len(lines)
        for failure in self.failures:
            if type(failure.error) is type(error) and failure.error.args == error.args:
                failure.lines += lines
                return
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(Failure(error, list(lines)))
