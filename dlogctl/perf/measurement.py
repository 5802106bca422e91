"""Measurement of a `perf` run, and its progress line.

The measurement is pure but for the clock that is passed in; `Progress` writes to standard error, on
a terminal in place.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlogctl.output.documents import is_terminal
from dlogctl.output.escaping import control, say
from dlogctl.perf.histogram import PERCENTILES, Histogram, format_latency

INTERVAL_S = 1.0


@dataclass(slots=True)
class Measured:
    """Counts of a run so far, and the latencies of all and since the last look."""

    clock: Callable[[], float] = time.perf_counter
    records: int = 0
    bytes: int = 0
    errors: int = 0
    latency: Histogram = field(default_factory=Histogram)
    recent: Histogram = field(default_factory=Histogram)
    started_s: float = 0.0
    ended_s: float = 0.0
    samples: list[tuple[float, float, float]] = field(default_factory=list)
    """(seconds since the start, records/s, p99 in seconds) of each interval, for the plot."""

    def start(self) -> None:
        """Begin to measure."""
        self.started_s = self.ended_s = self.clock()

    def add(self, records: int, size: int, latency_s: float | None = None) -> None:
        """Count records that are done, all with the same latency."""
        self.records += records
        self.bytes += size
        self.ended_s = self.clock()
        if latency_s is not None:
            self.recent.add(latency_s, records)

    def take_recent(self) -> Histogram:
        """Return the latencies since the last call, and add them to all."""
        recent, self.recent = self.recent, Histogram()
        self.latency.merge(recent)
        return recent

    @property
    def elapsed_s(self) -> float:
        """From the start to the last record."""
        return max(1e-9, self.ended_s - self.started_s)

    def document(self) -> dict[str, Any]:
        """Return everything under stable names; latencies in milliseconds, none without any."""
        self.take_recent()
        found: dict[str, Any] = {
            "records": self.records,
            "bytes": self.bytes,
            "errors": self.errors,
            "seconds": round(self.elapsed_s, 6),
            "records_per_s": round(self.records / self.elapsed_s, 1),
            "mib_per_s": round(self.bytes / self.elapsed_s / (1 << 20), 3),
        }
        if self.latency.count:
            found["latency_ms"] = {
                "mean": round(self.latency.mean_s * 1000, 4),
                **{
                    f"p{percent:g}": round(self.latency.percentile(percent) * 1000, 4)
                    for percent in PERCENTILES
                },
                "max": round(self.latency.most_s * 1000, 4),
            }
        return found


class Progress:
    """The line that shows how a run goes, each second. Life: `run` as a task until cancelled."""

    def __init__(
        self, measured: Measured, environ: Mapping[str, str], *, total: int | None, quiet: bool
    ) -> None:
        self._measured = measured
        self._total = total
        self._quiet = quiet
        in_place = is_terminal(sys.stderr) and (environ.get("TERM") or "dumb") != "dumb"
        self._ending = "\r" if in_place else "\n"
        self._is_open = False
        self._looked = (0, 0, 0.0)  # records, bytes and time at the last look

    async def run(self) -> None:
        """Show a line each second."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            if self._measured.started_s:
                self._show(*self.look())

    def look(self, now_s: float | None = None) -> tuple[float, float, Histogram]:
        """Keep a sample of the time since the last look; return its rates and latencies."""
        measured = self._measured
        now_s = measured.clock() if now_s is None else now_s
        records, size, last_s = self._looked
        spent_s = max(1e-9, now_s - max(last_s, measured.started_s))
        rate, speed = (measured.records - records) / spent_s, (measured.bytes - size) / spent_s
        recent = measured.take_recent()
        measured.samples.append((now_s - measured.started_s, rate, recent.percentile(99)))
        self._looked = (measured.records, measured.bytes, now_s)
        return rate, speed, recent

    def _show(self, rate: float, speed: float, recent: Histogram) -> None:
        if self._quiet:
            return
        parts = [f"{self._measured.records} records"]
        if self._total:
            parts[0] += f" ({100 * self._measured.records / self._total:.0f} %)"
        parts += [f"{rate:.0f} records/s", f"{speed / (1 << 20):.1f} MiB/s"]
        if recent.count:
            parts.append(f"p50 {format_latency(recent.percentile(50))}")
            parts.append(f"p99 {format_latency(recent.percentile(99))}")
        line = ", ".join(parts)
        if self._ending == "\r":
            width = shutil.get_terminal_size().columns - 1
            line = line[:width].ljust(width)
        say(line, err=True, nl=False)
        control(self._ending, err=True)
        self._is_open = self._ending == "\r"

    def end(self) -> None:
        """Keep a sample of what came after the last look, and leave the line behind."""
        measured = self._measured
        # Rates of a few milliseconds would say nothing, unless they are all there is.
        if measured.ended_s - self._looked[2] > INTERVAL_S / 2 or not measured.samples:
            self.look(measured.ended_s)
        if self._is_open:
            say(err=True)
