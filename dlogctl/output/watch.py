"""`--watch`: show something again and again, until Ctrl-C.

On a terminal each look replaces the one before; in a pipe, and where a terminal can only append
(TERM=dumb), the looks follow each other: documents one per line in JSON, else apart by a blank
line.
"""

import shutil
import sys
import time
from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Any, TypeVar

import click

from dlog.errors import TransportError
from dlogctl import exit_codes
from dlogctl.output.documents import has_abilities, is_terminal
from dlogctl.output.escaping import control, escaped, say, say_lines
from dlogctl.settings import Settings, take_seconds

Command = TypeVar("Command", bound=Callable[..., Any])
Found = TypeVar("Found")

HOME_AND_CLEAR = "\x1b[H\x1b[J"
CLEAR_SCREEN = "\x1b[2J"


def watch_option(command: Command) -> Command:
    """Add `--watch [INTERVAL]`, given to the command as seconds or None."""
    return click.option(
        "--watch",
        metavar="[INTERVAL]",
        callback=take_seconds,
        help="Show it again and again, every 2s or as given, until Ctrl-C.",
    )(command)


class Waiting:
    """A wait that ends when nothing new is seen for `patience_s`. Owner: one watch."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._moved_at = time.monotonic()
        self._seen: set[Hashable] = set()

    def note(self, look: Hashable) -> None:
        """Take what a look has shown; what was seen before is no progress."""
        if look not in self._seen:
            self._seen.add(look)
            self.move()

    def move(self) -> None:
        """Take notice of progress that the caller has judged."""
        self._moved_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing new has come for so long."""
        return time.monotonic() - self._moved_at >= self._patience_s


class Watch:
    """Looks at something once, or every `interval_s`. Life: one `run`."""

    def __init__(self, settings: Settings, interval_s: float | None, title: str) -> None:
        self._settings = settings
        self._interval_s = interval_s
        self._title = title
        self._count = 0

    @property
    def is_on(self) -> bool:
        """Whether there will be more than one look."""
        return self._interval_s is not None

    def run(
        self,
        gather: Callable[[], Found],
        show: Callable[[Found], int],
        *,
        ends: Callable[[int], bool] | None = None,
    ) -> int:
        """Return the exit code of the last look; Ctrl-C is the way to end.

        A cluster that cannot be reached is shown and asked again: watching, one waits for it.
        """
        if self._interval_s is None:
            return show(gather())
        code = exit_codes.OK
        try:
            while True:
                code = self._look(gather, show)
                if ends is not None and ends(code):
                    return code
                time.sleep(self._interval_s)
        except (KeyboardInterrupt, click.Abort):
            if is_terminal(sys.stdout):
                say()  # the shell's prompt does not stand behind ^C
            return code

    def _look(self, gather: Callable[[], Found], show: Callable[[Found], int]) -> int:
        try:
            found = gather()
        except TransportError as error:
            self._begin()
            if self._settings.output in ("table", "wide"):
                say(f"unreachable: {error}")
            else:
                say(f"dlogctl: unreachable: {error}", err=True)
            return exit_codes.UNREACHABLE
        self._begin()
        return show(found)

    def _begin(self) -> None:
        """Make room for a look: all is known by now, so that the screen is not empty for long."""
        self._count += 1
        if has_abilities(self._settings.environ):
            first = CLEAR_SCREEN if self._count == 1 else ""
            control(first + HOME_AND_CLEAR)
            say_lines(f"{escaped(self._headline())}\n")
        elif self._count > 1 and self._settings.output in ("table", "wide"):
            say()
        elif self._count > 1 and self._settings.output == "yaml":
            say("---")

    def _headline(self) -> str:
        right = datetime.now().astimezone().strftime("%H:%M:%S")
        width = shutil.get_terminal_size().columns - len(right) - 1
        left = f"every {self._interval_s:g} s: {self._title}"
        return f"{left[:width]:<{width}} {right}"
