"""Blocking work that can stop in the middle, deterministically.

The work runs in a thread of its own, but only ever while the loop's thread waits for it: the two
hand one baton back and forth, so that the same seed gives the same order. This is how a thread of
a pool is simulated whose work the loop overtakes, hangs on a disk, or dies half way.
"""

import threading
from collections.abc import Callable
from typing import Any

from tests.fakes.device import Disk
from tests.fakes.faults import ProcessDied


class Worker:
    """One piece of work. `resume` runs it until it pauses or ends; `unwind` ends it."""

    def __init__(self, work: Callable[[], Any], on_turn: "Callable[[Worker | None], None]") -> None:
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.disk: Disk | None = None
        self.pause_seconds = 0.0
        self._work = work
        self._on_turn = on_turn
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._dead = False
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """Let the work go on until it pauses or ends."""
        if self.ended:
            return
        self._on_turn(self)
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()
        self._on_turn(None)
        if self.ended:
            self._thread.join()

    def unwind(self) -> None:
        """End work that pauses: its next step raises ProcessDied."""
        self._dead = True
        if self._thread is None:
            self.ended = True
        while not self.ended:
            self.resume()

    def pause(self, disk: Disk, seconds: float) -> None:
        """Hand the baton back; called inside the work."""
        if self._dead:
            raise ProcessDied("pause")
        self.disk, self.pause_seconds = disk, seconds
        self._back.release()
        self._turn.acquire()
        if self._dead:
            raise ProcessDied("pause")

    def _main(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 (carried over to the loop's thread)
            self.error = error
        self.ended = True
        self._back.release()
