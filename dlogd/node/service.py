"""Service around a node: start, signals, reload, watchdog, stop.

Everything is passed in, the node too, so that a test can play each part; `dlogd.__main__` puts the
real ones together. Not part of a simulated node.
"""

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dlog.errors import ConfigError, DlogError, StartRefusedError
from dlogd.config.schema import Config, build
from dlogd.config.units import Address
from dlogd.runtime.clock import Clock
from dlogd.runtime.config_reload import plan_reload
from dlogd.runtime.sd_notify import Notifier
from dlogd.runtime.tasks import Tasks
from dlogd.status.http_hosts import names_of
from dlogd.status.http_server import HttpServer, Limits
from dlogd.status.pages import ACTIVE, NodeView, pages_of, scrapes_of
from dlogd.status.scrapes import RunBlocking
from dlogd.telemetry.delays import LoopDelay
from dlogd.telemetry.http_metrics import HttpMetrics

log = logging.getLogger(__name__)

EX_FAILURE = 1
LASTING = frozenset({errno.EACCES, errno.EISDIR, errno.ENOTDIR})
TICK_MS_MAX = 2000
# What one report of progress buys from the service manager, in start and stop.
PATIENCE_MS = 60_000


class Node(NodeView, Protocol):
    """What the service runs: the broker."""

    async def start(self) -> None:
        """Return when clients are served; raise when that cannot be."""

    async def stop(self) -> None:
        """Answer what is pending, flush, close; also after a `start` that failed or was cut."""

    def reconfigure(self, config: Config, waiting_keys: Sequence[str] = ()) -> None:
        """Take over a configuration that differs in reloadable keys; also before `start`.

        `waiting_keys` differ in the file as well, and wait for a restart.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the process gives to its service."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    notifier: Notifier
    watchdog_interval_ms: int | None
    run_blocking: RunBlocking
    load_config: Callable[[], Config]  # raises ConfigError
    set_log_level: Callable[[str], None]
    log_lines_dropped: Callable[[], int]
    on_started: Callable[[], None]
    host_name: str = ""


def exit_code_of(error: BaseException) -> int:
    """Return the code (sysexits.h) by which the service manager learns whether to try again."""
    cause: BaseException | None = error
    while cause is not None:
        # The lock of a directory is held, or the address is in use: by the process before us.
        in_use = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        if in_use or isinstance(cause, BlockingIOError):
            return os.EX_TEMPFAIL
        cause = cause.__cause__ or cause.__context__
    # A file that may not be read, or is none, stays so as well.
    is_lasting = isinstance(error, OSError) and error.errno in LASTING
    return os.EX_CONFIG if is_lasting or isinstance(error, StartRefusedError) else EX_FAILURE


async def _outcome_of(work: Coroutine[Any, Any, None]) -> Exception | None:
    """Return the failure that `work` foresees; a bug ends the task and is logged as one."""
    try:
        await work
    except (DlogError, OSError) as error:
        return error
    return None


def problems_of(error: BaseException) -> Sequence[str]:
    """Return what is wrong, in sentences for people."""
    if isinstance(error, ConfigError):
        return error.problems
    # Without "[Errno 98]"; asyncio's words have the address in them.
    words = error.strerror if isinstance(error, OSError) and error.filename is None else None
    return (words or str(error) or repr(error),)


class Service:
    """Runs one node until a signal or a failure ends it. Owner: the event loop's thread."""

    def __init__(self, node: Node, config: Config, around: Surroundings) -> None:
        self._node = node
        self._config = config
        self._around = around
        self._stop_asked = asyncio.Event()
        self._failure: str | StartRefusedError | None = None
        self._reload_wanted = False
        self._reloading = False
        self._started = False
        self._said = ""
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        http_metrics = HttpMetrics()
        self._scrapes = scrapes_of(
            node, around.run_blocking, self._before_scrape, [http_metrics.samples]
        )
        pages = pages_of(node, around.run_blocking, self._scrapes)
        self._http = HttpServer(around.loop, pages, metrics=http_metrics)
        self._set_up_http(config)
        self._delay = LoopDelay(around.loop, around.clock, node.telemetry.loop)
        self.http_address = ""
        self._bound_http: Address | None = None

    def _set_up_http(self, config: Config) -> None:
        """Take over what may change while the HTTP server runs."""
        self._http.limits = Limits(connections_per_ip_max=config.http.connections_per_ip_max)
        self._http.hosts.names = names_of(config, self._around.host_name)

    def fail(self, reason: str | StartRefusedError) -> None:
        """Stop the process with a failure: the node cannot go on, with an error not even again."""
        if self._failure is None:
            log.critical("Node failed reason=%r", str(reason))
            self._failure = reason
        self._stop_asked.set()

    async def run(self) -> int:
        """Run until the end; return the exit code."""
        self._install_signals()
        self._delay.start()
        self._tick()
        try:
            code = await self._start()
            if code == os.EX_OK and not self._stop_asked.is_set():
                await self._stop_asked.wait()
            return await self._stop(code)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._delay.stop()
            await self._http.close()
            await self._tasks.close()
            self._around.notifier.close()

    def _install_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._around.loop.add_signal_handler(number, self._on_stop_signal, number)
        self._around.loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)

    def _on_stop_signal(self, number: signal.Signals) -> None:
        if self._stop_asked.is_set():
            log.info("Ignored a signal while stopping signal=%s", number.name)
            return
        log.info("Stopping signal=%s", number.name)
        self._stop_asked.set()

    def _on_reload_signal(self) -> None:
        self._reload_wanted = True
        self._reload_soon()

    def _reload_soon(self) -> None:
        """Begin the reload that is wanted, unless it has to wait for the start or for another."""
        if self._started and not self._reloading and not self._stop_asked.is_set():
            self._reloading = True
            self._tasks.spawn("reload", self._reload_while_wanted())

    async def _reload_while_wanted(self) -> None:
        try:
            while self._reload_wanted and not self._stop_asked.is_set():
                self._reload_wanted = False
                await self._reload()
        finally:
            self._reloading = False

    async def _start(self) -> int:
        address = self._config.http.address
        try:
            port = await self._http.start(address.host, address.port)
        except OSError as refused:
            log.error("Could not open the HTTP server http=%s error=%r", address, str(refused))
            return exit_code_of(refused)
        self._bound_http = Address(address.host, port)
        self.http_address = str(self._bound_http)
        if self._bound_http != address:
            # Clients that ask the node for its configs learn where /status really is.
            self._node.reconfigure(self._as_bound(self._config))
        log.info("Serving operators http=%s", self.http_address)
        self._tasks.spawn("load-collector", self._scrapes.load())
        error = await self._start_node()
        if error is not None:
            return exit_code_of(error)
        if self._stop_asked.is_set():
            return os.EX_OK
        self._started = True
        self._around.on_started()
        self._around.notifier.ready(ACTIVE, http=self.http_address)
        log.info("Ready node=%d", self._config.node.id)
        if self._reload_wanted:
            self._reload_soon()
        return os.EX_OK

    def _as_bound(self, config: Config) -> Config:
        """Put the port that the system chose into the configuration."""
        return build({"http.address": self._bound_http or config.http.address}, config)

    async def _start_node(self) -> BaseException | None:
        """Start the node, or stop trying when a signal comes first; what failed is logged."""
        start = self._tasks.spawn("start", _outcome_of(self._node.start()))
        stop = self._tasks.spawn("stop-signal", self._stop_asked.wait())
        await asyncio.wait((start, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not start.done():
            start.cancel()
            await asyncio.wait((start,))
        if start.cancelled():
            return None
        error = start.exception() or start.result()
        if error is not None:
            for problem in problems_of(error):
                log.error("Start failed problem=%r", problem)
        return error

    async def _stop(self, code: int) -> int:
        self._around.notifier.stopping("stopping")
        self._stop_asked.set()
        stop = self._tasks.spawn("stop", _outcome_of(self._node.stop()))
        await asyncio.wait((stop,))
        error = stop.exception() or stop.result()
        if error is not None:
            log.error("Stop failed, the next start has to recover problem=%r", str(error))
        if isinstance(self._failure, StartRefusedError):
            code = code or exit_code_of(self._failure)
        elif error is not None or self._failure is not None:
            code = code or EX_FAILURE
        log.info("Stopped exit_code=%d", code)
        return code

    async def _reload(self) -> None:
        self._around.notifier.reloading(self._around.clock.now_us())
        try:
            # Not on the event loop: any file may be there, and may take seconds to parse.
            wanted = await self._around.run_blocking(self._around.load_config)
            if self._stop_asked.is_set():
                return
            plan = plan_reload(self._config, wanted)
        except ConfigError as error:
            for problem in error.problems:
                log.error("Configuration refused, nothing changed problem=%r", problem)
        else:
            self._config = plan.config
            self._around.set_log_level(plan.config.log.level)
            self._set_up_http(plan.config)
            waiting = [key.name for key in plan.needs_restart]
            self._node.reconfigure(self._as_bound(plan.config), waiting)
            for key in plan.applied:
                log.info("Reloaded key=%s from=%s to=%s", key.name, key.running, key.wanted)
            for key in plan.needs_restart:
                log.warning(
                    "Key needs a restart key=%s running=%s file=%s",
                    key.name,
                    key.running,
                    key.wanted,
                )
            log.info(
                "Reloaded configuration applied=%d needs_restart=%d",
                len(plan.applied),
                len(plan.needs_restart),
            )
        self._around.notifier.ready(ACTIVE, http=self.http_address)

    def _tick(self) -> None:
        """Tell the service manager that we live, and what we do, when that has changed."""
        around = self._around
        if around.notifier.enabled:
            around.notifier.watchdog()
            doing = "stopping" if self._stop_asked.is_set() else self._node.not_ready_reason()
            doing = doing or ACTIVE
            if doing != self._said and around.notifier.status(doing):
                if not self._started or self._stop_asked.is_set():
                    # By progress: a node that recovers its logs is not failing, a stuck one is.
                    around.notifier.extend_timeout(PATIENCE_MS)
                self._said = doing
        interval_ms = min(TICK_MS_MAX, (around.watchdog_interval_ms or TICK_MS_MAX * 3) // 3)
        self._timer = around.loop.call_later(max(1, interval_ms) / 1000, self._tick)

    def _before_scrape(self) -> None:
        self._node.telemetry.loop.log_lines_dropped_total = self._around.log_lines_dropped()
