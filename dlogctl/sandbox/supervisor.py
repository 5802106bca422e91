"""Supervisor of the daemons of a sandbox, in the foreground.

A daemon that ends stays ended until somebody asks for its restart: that is what one tries out here.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlogctl.sandbox import control
from dlogctl.sandbox.daemon import Daemon, DaemonError, describe_end
from dlogctl.sandbox.layout import (
    CONTROL_SOCKET,
    HOST,
    STATE_FILE,
    NodeState,
    SandboxState,
)

Say = Callable[[str], None]


class Supervisor:
    """The owner of all daemons of a sandbox. Life: `run` once, on its own event loop."""

    def __init__(self, directory: Path, daemons: list[Daemon], *, announce: Say, say: Say) -> None:
        self._directory = directory
        self._daemons = {daemon.layout.node: daemon for daemon in daemons}
        self._announce = announce  # the one line on standard output
        self._say = say
        self._stop_asked = asyncio.Event()
        self._watchers: dict[int, asyncio.Task[None]] = {}
        # One restart of a node at a time. Not of all: without a quorum one waits for the others.
        self._turns = {node: asyncio.Lock() for node in self._daemons}
        self._stopping = False

    @property
    def state(self) -> SandboxState:
        """What runs now."""
        return SandboxState(
            pid=os.getpid(),
            nodes=tuple(
                NodeState(
                    node=daemon.layout.node,
                    pid=daemon.pid,
                    bootstrap=f"{HOST}:{daemon.layout.port}",
                    http=daemon.http,
                    log=str(daemon.layout.log_path),
                )
                for daemon in self._daemons.values()
            ),
        )

    async def run(self) -> bool:
        """Serve until SIGINT or SIGTERM; return whether every daemon stopped cleanly.

        Raises DaemonError when one does not start; the others are stopped then.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        server = await control.serve(self._directory, self._on_request)
        try:
            if await self._start_all():
                state = self.state
                self._announce(f"ready bootstrap={state.bootstrap} pids={state.pids}")
                await self._stop_asked.wait()
            return await self._stop_all()
        finally:
            await self._stop_all()
            server.close()
            for name in (CONTROL_SOCKET, STATE_FILE):
                with contextlib.suppress(FileNotFoundError):
                    (self._directory / name).unlink()

    def _on_signal(self) -> None:
        if self._stop_asked.is_set():
            self._say("already stopping: the daemons flush and close their logs")
        self._stop_asked.set()

    async def _start_all(self) -> bool:
        """Start all daemons at once; False when a signal came first."""
        starts = [asyncio.ensure_future(self._start(each)) for each in self._daemons.values()]
        stop = asyncio.ensure_future(self._stop_asked.wait())
        together = asyncio.gather(*starts)
        try:
            await asyncio.wait((together, stop), return_when=asyncio.FIRST_COMPLETED)
            if not together.done():
                return False
            together.result()
            return True
        finally:
            stop.cancel()
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError, DaemonError):
                await together

    async def _start(self, daemon: Daemon) -> None:
        await daemon.start()
        node = daemon.layout.node
        self._watchers[node] = asyncio.ensure_future(self._watch(daemon))
        self.state.save(self._directory)

    async def _watch(self, daemon: Daemon) -> None:
        """Say when a daemon ends that nobody stopped."""
        pid = daemon.pid
        code = await daemon.wait()
        if not self._stopping:
            node = daemon.layout.node
            self.state.save(self._directory)
            self._say(
                f"node {node} ended: pid {pid}, {describe_end(code)}; start it again: "
                f"dlogctl sandbox restart {node} --dir {self._directory}"
            )

    async def _on_request(self, request: object) -> dict[str, Any]:
        if not isinstance(request, dict):
            return {"error": "a request is a JSON object"}
        node = request.get("node")
        # Not isinstance: `true` is an int too, and equal to 1.
        daemon = self._daemons.get(node) if type(node) is int else None
        if request.get("command") != "restart":
            return {"error": f"unknown command {request.get('command')!r}"}
        if daemon is None:
            return {"error": f"no node {node} here; nodes: {', '.join(map(str, self._daemons))}"}
        async with self._turns[daemon.layout.node]:
            if self._stop_asked.is_set():
                return {"error": "the sandbox is stopping"}
            try:
                return await self._restart(daemon)
            except DaemonError as error:
                return {"error": str(error)}

    async def _restart(self, daemon: Daemon) -> dict[str, Any]:
        watcher = self._watchers.pop(daemon.layout.node, None)
        if watcher is not None:
            watcher.cancel()
        was_running = daemon.pid != 0
        code = await daemon.stop()
        if was_running and code != 0:
            self._say(f"node {daemon.layout.node} did not stop cleanly: {describe_end(code)}")
        await self._start(daemon)
        self._say(f"node {daemon.layout.node} restarted: pid {daemon.pid}")
        return {"pid": daemon.pid}

    async def _stop_all(self) -> bool:
        """Stop all daemons at once; return whether all that still ran ended cleanly."""
        self._stopping = True
        self._stop_asked.set()
        running = [daemon for daemon in self._daemons.values() if daemon.pid]
        codes = await asyncio.gather(*(daemon.stop() for daemon in running))
        for watcher in self._watchers.values():
            watcher.cancel()
        await asyncio.gather(*self._watchers.values(), return_exceptions=True)
        for daemon, code in zip(running, codes, strict=True):
            if code != 0:
                self._say(f"node {daemon.layout.node} did not stop cleanly: {describe_end(code)}")
        return not any(codes)
