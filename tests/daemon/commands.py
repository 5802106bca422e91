"""`dlogctl` as a process: in pipes, and on a pseudo-terminal."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping

from tests.daemon.process import PATIENCE_S, DaemonProcess, environment

CTL = [sys.executable, "-m", "dlogctl"]


def bootstrap_of(node: DaemonProcess) -> str:
    address: str = node.status()["listeners"][0]
    return address


def run(
    node: DaemonProcess | None, *arguments: str, stdin: str = "", **env: str
) -> tuple[int, str, str]:
    """Run dlogctl in pipes."""
    known = {} if node is None else {"DLOG_BOOTSTRAP": bootstrap_of(node)}
    done = subprocess.run(
        [*CTL, *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=PATIENCE_S,
        check=False,
        env=environment({**known, **env}),
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


class OnTerminal:
    """dlogctl on a pseudo-terminal."""

    def __init__(self, arguments: list[str], env: Mapping[str, str]) -> None:
        self.shown = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [*CTL, *arguments], environment(env))

    def read_until(self, pattern: str) -> str:
        """Return everything shown when `pattern` has been shown."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.shown, re.DOTALL):
            assert self._read(deadline), f"no {pattern} in {self.shown!r}"
        return self.shown

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            return False
        with contextlib.suppress(OSError):
            if piece := os.read(self._terminal, 65536):
                self.shown += piece.decode()
                return True
        return False

    def type(self, text: str) -> None:
        """Type on its keyboard."""
        os.write(self._terminal, text.encode())

    def end(self) -> tuple[int, str]:
        """Return exit code and all that was shown when it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status), self.shown
