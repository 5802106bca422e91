"""Delays of the event loop: late timers and pauses of the garbage collector.

Both measure and count only; `dlogd.__main__` installs them. The simulation leaves them out.
"""

import asyncio
import gc
import logging
from typing import Any

from dlogd.runtime.clock import Clock
from dlogd.telemetry.metrics import LoopMetrics

log = logging.getLogger(__name__)

INTERVAL_MS = 100
STALL_MS = 1000


class LoopDelay:
    """Measures how late a timer of the loop runs, ten times a second.

    A delay of more than STALL_MS is logged: nothing was served for that long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, metrics: LoopMetrics) -> None:
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._due_us = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._due_us = self._clock.now_us() + INTERVAL_MS * 1000
        self._timer = self._loop.call_later(INTERVAL_MS / 1000, self._on_timer)

    def stop(self) -> None:
        """End to measure. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _on_timer(self) -> None:
        # uvloop rounds timers to milliseconds and may run one early: that is no delay.
        delay_s = max(0, self._clock.now_us() - self._due_us) / 1e6
        self._metrics.delay_seconds.observe(delay_s)
        self._metrics.delay_seconds_max = max(self._metrics.delay_seconds_max, delay_s)
        if delay_s * 1000 > STALL_MS:
            log.warning("Event loop stalled seconds=%.3f", delay_s)
        self.start()


class GcPauses:
    """Times each run of the cyclic garbage collector. One per process, since `gc` is."""

    def __init__(self, clock: Clock, metrics: LoopMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._start_us = 0

    def install(self) -> None:
        """Begin to measure."""
        gc.callbacks.append(self._on_phase)

    def remove(self) -> None:
        """End to measure. Idempotent."""
        if self._on_phase in gc.callbacks:
            gc.callbacks.remove(self._on_phase)

    def _on_phase(self, phase: str, _info: dict[str, Any]) -> None:
        now_us = self._clock.now_us()
        if phase == "start":
            self._start_us = now_us
        else:
            self._metrics.gc_pause_seconds.observe((now_us - self._start_us) / 1e6)
