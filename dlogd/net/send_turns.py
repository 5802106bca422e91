"""Turns for large sends, so that a catch-up read does not delay other clients.

Copying a megabyte into a socket takes the event loop several hundred microseconds; with some
readers of old data, a producer would wait for all of them three times on its way. So large sends
are cut into slices, and one slice of one connection goes out in each iteration of the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

SLICE_BYTES = 256 * 1024
"""What one turn sends at most."""
TURN_BYTES_MIN = 64 * 1024
"""From this size on a send needs a turn."""


class Turn(Protocol):
    """Who waits for a turn."""

    def on_turn(self) -> None:
        """Send one slice; ask for another turn if there is more."""


class SendTurns:
    """The queue for turns, one per process. Invariant: scheduled when somebody waits."""

    __slots__ = ("_give_way", "_loop", "_queue", "_scheduled")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, give_way: Callable[[], None] | None = None
    ) -> None:
        """`give_way` is called after each turn (`Engine.give_way`)."""
        self._loop = loop
        self._give_way = give_way
        self._queue: deque[Turn] = deque()
        self._scheduled = False

    def ask(self, turn: Turn) -> None:
        """Call `turn.on_turn` once, after those who asked before, one in each iteration."""
        self._queue.append(turn)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        turn = self._queue.popleft()
        self._scheduled = bool(self._queue)
        if self._scheduled:
            self._loop.call_soon(self._run)
        turn.on_turn()
        if self._give_way is not None:
            self._give_way()
