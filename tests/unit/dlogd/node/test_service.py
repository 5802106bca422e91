"""The life of the daemon around a node that a test plays: signals, reload, watchdog, exit codes."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlogd.__main__ import load_checked
from dlogd.config.load import load_config
from dlogd.config.schema import Config
from dlogd.metadata.journal_files import MetadataCorruptError
from dlogd.metadata.raft.durable_log import LogCorruptError, LogFailedError
from dlogd.metadata.raft.feature_level import UnknownLevelError
from dlogd.node.service import Service, Surroundings, exit_code_of
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.config_reload import plan_reload
from dlogd.runtime.sd_notify import Notifier
from dlogd.telemetry.metrics import Source, Telemetry

BASE = "http.address: 127.0.0.1:0\n"


class Node:
    """A node whose start and stop do what a test wants."""

    def __init__(self) -> None:
        self.telemetry = Telemetry()
        self.calls: list[str] = []
        self.on_start: Callable[[], Any] | None = None
        self.on_stop: Callable[[], Any] | None = None
        self.config: Config | None = None
        self.reason: str | None = "recovering logs done=0 total=2"

    def metric_sources(self) -> Sequence[Source]:
        return []

    def not_ready_reason(self) -> str | None:
        return self.reason

    def status(self) -> Mapping[str, Any]:
        return {}

    async def start(self) -> None:
        self.calls.append("start")
        if self.on_start is not None:
            await self.on_start()
        self.reason = None
        self.calls.append("started")

    async def stop(self) -> None:
        self.calls.append("stop")
        if self.on_stop is not None:
            await self.on_stop()
        self.calls.append("stopped")

    def reconfigure(self, config: Config, waiting_keys: Sequence[str] = ()) -> None:
        self.config = config
        self.waiting_keys = list(waiting_keys)


class Run:
    """One run of a service, with a service manager that listens."""

    def __init__(self, folder: Path) -> None:
        self.node = Node()
        self.file = BASE
        self.levels: list[str] = []
        self.heard: list[str] = []
        self.watchdog_interval_ms: int | None = None
        self.service: Service | None = None
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "notify"))
        self.manager.setblocking(False)
        self.address = str(folder / "notify")

    def load(self) -> Config:
        return load_config(self.file)

    def messages(self) -> list[str]:
        while True:
            try:
                self.heard.append(self.manager.recv(4096).decode())
            except BlockingIOError:
                return self.heard

    def run(self, script: Callable[["Run"], Any]) -> int:
        async def main() -> int:
            around = Surroundings(
                loop=asyncio.get_running_loop(),
                clock=SystemClock(),
                notifier=Notifier(self.address),
                watchdog_interval_ms=self.watchdog_interval_ms,
                run_blocking=lambda work: asyncio.sleep(0, work()),
                load_config=self.load,
                set_log_level=self.levels.append,
                log_lines_dropped=lambda: 0,
                on_started=lambda: self.node.calls.append("on_started"),
            )
            self.service = Service(self.node, self.load(), around)
            work = asyncio.ensure_future(script(self))
            code = await asyncio.wait_for(self.service.run(), 10)
            await work
            return code

        return asyncio.run(main())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.manager.close()


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_start_serve_and_stop_by_signal(run: Run) -> None:
    async def script(run: Run) -> None:
        await until(lambda: "on_started" in run.node.calls)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(run))
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert b" 200 OK" in await reader.read()
        # The node knows the port that the system chose, to tell it to clients.
        assert run.node.config is not None
        assert run.node.config.http.address.port == port_of(run) > 0
        send(signal.SIGTERM)

    assert run.run(script) == 0
    assert run.node.calls == ["start", "started", "on_started", "stop", "stopped"]
    messages = run.messages()
    assert messages[0:2] == ["WATCHDOG=1", "STATUS=recovering logs done=0 total=2"]
    assert any(m.startswith("READY=1\nSTATUS=active\nX_DLOG_HTTP=127.0.0.1:") for m in messages)
    assert "STOPPING=1\nSTATUS=stopping" in messages


def port_of(run: Run) -> int:
    assert run.service is not None
    return int(run.service.http_address.rpartition(":")[2])


def test_a_second_signal_does_not_cut_the_stop_short(run: Run) -> None:
    async def slow_stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            send(number)
        await asyncio.sleep(0.1)

    async def script(run: Run) -> None:
        run.node.on_stop = slow_stop
        await until(lambda: "on_started" in run.node.calls)
        send(signal.SIGTERM)

    assert run.run(script) == 0
    assert run.node.calls[-1] == "stopped"
    assert run.levels == []


def test_a_signal_ends_a_long_start(run: Run) -> None:
    run.node.on_start = lambda: asyncio.sleep(60)

    async def script(run: Run) -> None:
        await until(lambda: run.node.calls)
        send(signal.SIGINT)

    assert run.run(script) == 0
    assert run.node.calls == ["start", "stop", "stopped"]
    assert not any("READY" in message for message in run.messages())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BlockingIOError(11, "data directory is locked"), 75),
        (OSError(98, "address in use"), 75),
        (ConfigError("data directory of another node"), 78),
        (LogCorruptError("raft.log cannot be used"), 78),
        (LogFailedError("a flush of it failed"), 1),
        (MetadataCorruptError("cannot be used"), 78),
        (UnknownLevelError("at feature level 9"), 78),
        (PermissionError(13, "Permission denied"), 78),
        (IsADirectoryError(21, "Is a directory"), 78),
        (OSError(5, "Input/output error"), 1),
        (ValueError("bug"), 1),
    ],
)
def test_a_failed_start_stops_the_node_and_tells_why(
    run: Run, error: Exception, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    async def script(_run: Run) -> None:
        pass

    run.node.on_start = fail
    assert run.run(script) == code == exit_code_of(error)
    assert run.node.calls == ["start", "stop", "stopped"]
    said = error.strerror if isinstance(error, OSError) else str(error)
    assert f"problem='{said}'" in caplog.text


def test_an_address_in_use_is_temporary(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run.file = f"http.address: 127.0.0.1:{taken.getsockname()[1]}\n"

        async def script(_run: Run) -> None:
            pass

        assert run.run(script) == os.EX_TEMPFAIL
    assert run.node.calls == ["stop", "stopped"]


def test_a_stop_that_fails_is_not_clean(run: Run) -> None:
    async def fail() -> None:
        raise OSError(5, "I/O error")

    async def script(run: Run) -> None:
        run.node.on_stop = fail
        await until(lambda: "on_started" in run.node.calls)
        send(signal.SIGTERM)

    assert run.run(script) == 1


def test_a_node_that_fails_ends_the_service(run: Run) -> None:
    async def script(run: Run) -> None:
        await until(lambda: "on_started" in run.node.calls)
        assert run.service is not None
        run.service.fail("every data directory failed")
        run.service.fail("again")

    assert run.run(script) == 1
    assert run.node.calls[-1] == "stopped"


def test_a_failure_that_a_restart_cannot_mend_says_so(run: Run) -> None:
    async def script(run: Run) -> None:
        await until(lambda: "on_started" in run.node.calls)
        assert run.service is not None
        run.service.fail(UnknownLevelError("at feature level 9"))

    assert run.run(script) == 78


def test_reload_takes_what_it_may_and_names_the_rest(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def script(run: Run) -> None:
        await until(lambda: "on_started" in run.node.calls)
        run.messages()
        run.heard.clear()
        run.node.config = None
        run.file = BASE + "log.level: debug\nnode.id: 7\nack: {floor: all}\n"
        send(signal.SIGHUP)
        await until(lambda: run.node.config is not None)
        assert run.node.config is not None
        assert run.node.config.node.id == 1
        assert run.node.config.ack.floor == "all"
        assert run.levels == ["debug"]
        reloading, ready = [m for m in run.messages() if "READY" in m or "RELOADING" in m]
        assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert ready.startswith("READY=1")
        run.node.config = None
        run.file = BASE + "nonsense: 1\nlog.level: loud\n"
        send(signal.SIGHUP)
        await until(lambda: "nothing changed" in caplog.text)
        assert run.node.config is None
        assert any(message.startswith("READY=1") for message in run.messages())
        send(signal.SIGTERM)

    assert run.run(script) == 0
    assert "Reloaded key=log.level from=info to=debug" in caplog.text
    assert "Key needs a restart key=node.id running=1 file=7" in caplog.text
    assert run.node.waiting_keys == ["node.id"]
    assert caplog.text.count("Configuration refused") == 2


def test_a_reload_refuses_what_a_start_refuses(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody hears of times that do not fit before the node cannot start any more."""
    members = 'cluster.id: c\ncluster.secret.file: /s\ncontrollers: ["1@h:1"]\n'
    file = tmp_path / "dlog.yaml"
    file.write_text(BASE + members)

    async def script(run: Run) -> None:
        await until(lambda: "on_started" in run.node.calls)
        file.write_text(BASE + members + "lease.duration: 1s\nlog.level: debug\n")
        send(signal.SIGHUP)
        await until(lambda: "nothing changed" in caplog.text or run.levels)
        send(signal.SIGTERM)

    run.load = lambda: load_checked(file, {})  # type: ignore[method-assign]
    assert run.run(script) == 0
    assert "lease.duration must be at least 5 times lease.heartbeat" in caplog.text
    assert not run.levels


def test_a_reload_during_the_start_comes_after_it(run: Run) -> None:
    async def reload_early() -> None:
        run.file = BASE + "log.level: error\n"
        send(signal.SIGHUP)
        await asyncio.sleep(0.05)
        assert run.levels == []

    async def script(run: Run) -> None:
        await until(lambda: run.levels == ["error"])
        send(signal.SIGTERM)

    run.node.on_start = reload_early
    assert run.run(script) == 0


def test_the_watchdog_hears_the_loop_and_progress_buys_time(run: Run) -> None:
    run.watchdog_interval_ms = 30

    async def recover() -> None:
        run.node.reason = "recovering logs done=1 total=2"
        await until(lambda: run.messages().count("WATCHDOG=1") > 2)

    async def script(run: Run) -> None:
        await until(lambda: "on_started" in run.node.calls)
        heard = run.messages().count("WATCHDOG=1")
        await until(lambda: run.messages().count("WATCHDOG=1") > heard + 2)
        send(signal.SIGTERM)

    run.node.on_start = recover
    assert run.run(script) == 0
    messages = run.messages()
    assert messages.count("EXTEND_TIMEOUT_USEC=60000000") == 2


def test_a_plan_without_changes() -> None:
    plan = plan_reload(Config(), Config())
    assert (plan.config, plan.applied, plan.needs_restart) == (Config(), (), ())


def test_a_reload_does_not_block_the_loop_and_the_last_signal_counts(run: Run) -> None:
    async def script(run: Run) -> None:
        await until(lambda: "on_started" in run.node.calls)
        load, gate = run.load, threading.Event()

        def slow() -> Config:
            assert threading.current_thread() is not threading.main_thread()
            gate.wait(5)
            return load()

        run.load = slow  # type: ignore[method-assign]
        around = run.service._around  # type: ignore[union-attr]
        object.__setattr__(around, "load_config", slow)
        object.__setattr__(around, "run_blocking", asyncio.to_thread)
        send(signal.SIGHUP)
        await asyncio.sleep(0.02)  # the loop runs
        assert run.levels == []
        run.file = BASE + "log.level: debug\n"
        send(signal.SIGHUP)
        await asyncio.sleep(0.02)
        gate.set()
        await until(lambda: len(run.levels) == 2)
        send(signal.SIGTERM)

    assert run.run(script) == 0
