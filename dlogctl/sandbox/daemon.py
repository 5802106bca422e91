"""One daemon of a sandbox: a process that says by sd_notify when it serves.

Nothing is polled: readiness is a datagram, the end is the child watcher's event. Owner: the
supervisor's event loop.
"""

import asyncio
import ctypes
import itertools
import os
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from dlogctl.sandbox.folders import FolderError, open_log
from dlogctl.sandbox.layout import NodeLayout

STOP_TIMEOUT_S = 60.0
START_TIMEOUT_S = 300.0
LOG_LINES_SHOWN = 15
# By the exit codes of dlogd, docs/operating/daemon.md.
CURES = {
    75: "; stop what uses it, or take another --port or --dir",
    78: "; take another --dir, or the --config-override that fits this one",
}

_PROBLEM = re.compile(r"""problem=(?:"(.*)"|'(.*)')$""")

_PR_SET_PDEATHSIG = 1
_serial = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


class DaemonError(Exception):
    """A daemon did not start; the message says why, with the end of its log."""


def _die_with_parent() -> None:
    """Run in the child: a killed supervisor leaves no daemons behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Readiness(asyncio.DatagramProtocol):
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self.status = ""

    def datagram_received(self, data: bytes, _address: object) -> None:
        lines = data.decode("utf-8", "replace").splitlines()
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        self.status = fields.get("STATUS", self.status)
        if fields.get("READY") == "1" and not self.ready.done():
            self.ready.set_result(fields)


def _said_since(path: Path, position: int) -> list[str]:
    """Return the lines of a log from a position on."""
    try:
        with path.open("rb") as log:
            log.seek(position)
            return log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def explain_end(code: int, lines: Sequence[str]) -> str:
    """Say why a daemon did not start, with what to do: by its own words, else by its last lines."""
    problems = [found[1] or found[2] for line in lines if (found := _PROBLEM.search(line))]
    if not problems:
        return "\n".join(
            [describe_end(code), *(f"  | {each}" for each in lines[-LOG_LINES_SHOWN:])]
        )
    cure = CURES.get(code, "")
    return f"{'; '.join(problems)} ({describe_end(code)}){cure}"


def describe_end(code: int) -> str:
    """Say how a process ended, as people know it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class Daemon:
    """A node's process and its next ones after restarts. Life: `start`, then `stop`."""

    def __init__(
        self, layout: NodeLayout, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.layout = layout
        self.http = ""
        self._log_start = 0  # where the present process began to write
        self._command = command
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process, 0 while there is none."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else 0

    async def start(self) -> None:
        """Start the process and return when it serves; raise DaemonError."""
        loop = asyncio.get_running_loop()
        name = f"dlog-sandbox-{os.getpid()}-{self.layout.node}-{next(_serial)}"
        # An abstract address: its length does not depend on where the sandbox lies.
        transport, readiness = await loop.create_datagram_endpoint(
            _Readiness, local_addr="\0" + name, family=socket.AF_UNIX
        )
        try:
            process = await self._spawn({**self._environment, "NOTIFY_SOCKET": "@" + name})
            await self._wait_ready(process, readiness)
        finally:
            transport.close()

    async def _spawn(self, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
        try:
            descriptor = open_log(self.layout.log_path)
        except (FolderError, OSError) as error:
            raise DaemonError(f"node {self.layout.node}: no log to write to: {error}") from error
        try:
            self._log_start = os.lseek(descriptor, 0, os.SEEK_END)
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--config",
                str(self.layout.config_path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=environment,
                # A Ctrl-C in the terminal is for the supervisor, which stops us in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        finally:
            os.close(descriptor)
        return self._process

    async def _wait_ready(self, process: asyncio.subprocess.Process, readiness: _Readiness) -> None:
        end = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait(
                (end, readiness.ready),
                timeout=START_TIMEOUT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            end.cancel()
        if readiness.ready.done():
            self.http = readiness.ready.result().get("X_DLOG_HTTP", "")
            return
        if process.returncode is None:
            await self.stop()
            why = f"not ready in {START_TIMEOUT_S:.0f} s, last said: {readiness.status or '-'}"
        else:
            lines = _said_since(self.layout.log_path, self._log_start)
            why = explain_end(process.returncode, lines)
        raise DaemonError(
            f"node {self.layout.node} did not start (log {self.layout.log_path}): {why}"
        )

    async def wait(self) -> int:
        """Return the exit code of the present process when it has ended."""
        if self._process is None:
            raise DaemonError(f"node {self.layout.node} was never started")
        return await self._process.wait()

    async def stop(self) -> int:
        """Stop the process and return its exit code; kill it when it takes too long."""
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(asyncio.shield(process.wait()), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
        return await process.wait()
