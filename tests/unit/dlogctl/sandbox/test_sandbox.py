"""The sandbox's supervisor around fake daemons: ready, killed, restarted, stopped; its files."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlogctl.sandbox import control
from dlogctl.sandbox.daemon import Daemon, DaemonError, describe_end
from dlogctl.sandbox.layout import PORT_MIN, SandboxState, free_ports, plan_nodes
from dlogctl.sandbox.supervisor import Supervisor
from dlogd.config.load import load_config
from tests.fakes import daemon as fake_daemon

FAKE = [sys.executable, str(fake_daemon.__file__)]


class Run:
    """A supervisor of fake daemons in this process."""

    def __init__(self, directory: Path, nodes: int = 2, behaviour: str = "1s") -> None:
        self.directory = directory
        self.said: list[str] = []
        self.announced: list[str] = []
        self.layouts = plan_nodes(directory, free_ports(nodes))
        for layout in self.layouts:
            layout.write_config({"retention.check.interval": behaviour})

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await asyncio.sleep(0.005)

    def state(self) -> SandboxState:
        return SandboxState.load(self.directory)

    async def ask(self, node: Any, command: str = "restart") -> dict[str, Any]:
        request = {"command": command, "node": node}
        return await asyncio.to_thread(control.ask, self.directory, request)

    def run(self, script: Callable[["Run"], Any]) -> bool:
        async def main() -> bool:
            supervisor = Supervisor(
                self.directory,
                [Daemon(layout, FAKE, dict(os.environ)) for layout in self.layouts],
                announce=self.announced.append,
                say=self.said.append,
            )
            work = asyncio.ensure_future(script(self))
            clean = await asyncio.wait_for(supervisor.run(), 30)
            await work
            return clean

        return asyncio.run(main())


def stop() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ready_killed_restarted_stopped(tmp_path: Path) -> None:
    run = Run(tmp_path)

    async def script(run: Run) -> None:
        await run.until(lambda: run.announced)
        state = run.state()
        assert run.announced == [f"ready bootstrap={state.bootstrap} pids={state.pids}"]
        assert state.pid == os.getpid()
        assert state.nodes[0].http == "127.0.0.1:7"
        killed = state.nodes[0].pid
        os.kill(killed, signal.SIGKILL)
        await run.until(lambda: run.said)
        assert "node 1 ended" in run.said[0]
        assert "killed by SIGKILL" in run.said[0]
        assert [bool(node.pid) for node in run.state().nodes] == [False, True]
        answer = await run.ask(1)
        assert answer["pid"] not in (0, killed)
        assert run.state().nodes[0].pid == answer["pid"]
        again = await run.ask(1)  # of one that runs: stopped first
        assert again["pid"] != answer["pid"]
        assert "error" in await run.ask(9)
        assert "error" in await run.ask("1")
        assert "error" in await run.ask(1, "explode")
        assert len(run.announced) == 1
        stop()
        stop()

    assert run.run(script)
    log = (tmp_path / "node-1" / "dlogd.log").read_text()
    assert log.count("Started") == 3
    assert log.count("Stopped") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node-1", "node-2"]


def test_a_daemon_that_does_not_start_stops_the_others_and_shows_its_log(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.layouts[1].write_config({"retention.check.interval": "2s"})

    async def script(_run: Run) -> None:
        pass

    with pytest.raises(DaemonError, match=r"node 2 did not start \(log .*\): exit code 78"):
        run.run(script)
    assert run.announced == []
    with pytest.raises(FileNotFoundError):
        run.state()


def test_a_stop_during_the_start(tmp_path: Path) -> None:
    run = Run(tmp_path, nodes=1)

    async def script(_run: Run) -> None:
        await asyncio.sleep(0)
        stop()

    assert run.run(script) in (True, False)
    assert run.announced == []


def test_an_unclean_stop_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path, nodes=1, behaviour="3s")

    async def script(run: Run) -> None:
        await run.until(lambda: run.announced)
        stop()

    assert not run.run(script)
    assert run.said == ["node 1 did not stop cleanly: exit code 3"]


def test_a_restart_that_fails_is_told_and_may_be_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path, nodes=1)

    async def script(run: Run) -> None:
        await run.until(lambda: run.announced)
        run.layouts[0].write_config({"retention.check.interval": "2s"})
        assert "the disk is gone" in (await run.ask(1))["error"]
        run.layouts[0].write_config({})
        assert (await run.ask(1))["pid"] > 0
        stop()

    assert run.run(script)


def test_restarts_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a quorum no node is ready before others are."""
    run = Run(tmp_path)
    both = 2 * len(run.layouts)
    starts: list[Daemon] = []
    plain = Daemon.start

    async def start(daemon: Daemon) -> None:
        starts.append(daemon)
        if len(starts) > len(run.layouts):
            await run.until(lambda: len(starts) == both)
        await plain(daemon)

    monkeypatch.setattr(Daemon, "start", start)

    async def script(run: Run) -> None:
        await run.until(lambda: run.announced)
        answers = await asyncio.gather(run.ask(1), run.ask(2))
        assert all(answer["pid"] > 0 for answer in answers)
        stop()

    assert run.run(script)


def test_requests_of_a_wrong_type_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, nodes=1)

    async def script(run: Run) -> None:
        await run.until(lambda: run.announced)
        pid = run.state().nodes[0].pid
        requests: list[Any] = [[], 5, None, "restart"]
        for request in requests:
            answer = await asyncio.to_thread(control.ask, run.directory, request)
            assert answer == {"error": "a request is a JSON object"}
        for node in (True, 1.0, "1", [1]):
            assert "no node" in (await run.ask(node))["error"]
        assert run.state().nodes[0].pid == pid
        stop()

    assert run.run(script)


def test_the_control_socket_works_however_deep_the_directory_is(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)

    async def main() -> None:
        async def answer(request: object) -> dict[str, Any]:
            assert isinstance(request, dict)
            return {"got": request["command"]}

        server = await control.serve(deep, answer)
        asked = await asyncio.to_thread(control.ask, deep, {"command": "x"})
        assert asked == {"got": "x"}
        server.close()

    asyncio.run(main())


def test_one_sandbox_holds_a_directory(tmp_path: Path) -> None:
    assert not control.is_claimed(tmp_path / "missing")
    assert not control.is_claimed(tmp_path)
    with control.claim(tmp_path):
        assert control.is_claimed(tmp_path)
        with pytest.raises(BlockingIOError), control.claim(tmp_path):
            pass
        assert control.is_claimed(tmp_path)
    assert not control.is_claimed(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_generated_configuration(tmp_path: Path) -> None:
    (layout,) = plan_nodes(tmp_path / 'a "b', [19092])
    config = load_config(layout.write_config({"flush.policy": "never", "node.id": "5"}))
    assert config.node.id == 5
    assert str(config.listeners[0]) == "127.0.0.1:19092"
    assert config.data.directories == (str(tmp_path / 'a "b' / "node-1" / "data"),)
    assert config.flush.policy == "never"


def test_ends_in_words() -> None:
    assert describe_end(-9) == "killed by SIGKILL"
    assert describe_end(-250) == "killed by signal 250"
    assert describe_end(78) == "exit code 78"


def dlogctl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "dlogctl", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sandbox"], 64, "--dir is missing"),
        (["sandbox", "--dir", "{dir}", "--nodes", "0"], 64, "--nodes"),
        (["sandbox", "--dir", "{dir}", "--config-override", "x"], 64, "not key=value"),
        (["sandbox", "--dir", "{dir}", "--config-override", "a=b"], 64, "unknown key"),
        (["sandbox", "restart", "1", "--dir", "{dir}"], 1, "no sandbox runs"),
        (["sandbox", "restart", "1"], 64, "--dir"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    result = dlogctl(*(each.format(dir=tmp_path) for each in arguments))
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_free_port_is_none_that_the_system_gives_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = tmp_path / "ports"
    monkeypatch.setattr("dlogctl.sandbox.layout.EPHEMERAL_PORTS", ranges)
    ranges.write_text("20000\t60999\n")
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(PORT_MIN <= port < 20_000 for port in ports)
    for text in ("1024 65535\n", ""):
        ranges.write_text(text)
        assert free_ports(1) != [0]
