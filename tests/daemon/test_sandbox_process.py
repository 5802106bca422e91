"""`dlogctl sandbox` and the other commands around a real `dlogd`."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.process import PATIENCE_S, environment, heed_interrupts


class SandboxProcess:
    """`dlogctl sandbox` in the foreground of nobody."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dlogctl",
                "sandbox",
                "--dir",
                folder,
                "--port",
                "0",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment({"DLOG_NODE_ID": "99"}),
            preexec_fn=heed_interrupts,
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()

    @property
    def bootstrap(self) -> str:
        found = re.fullmatch(r"ready bootstrap=(127\.0\.0\.1:\d+) pids=1:\d+\n", self.ready)
        assert found is not None, self.ready + self.log
        return found[1]

    @property
    def pid(self) -> int:
        state = json.loads((self.folder / "sandbox.json").read_text())
        pid: int = state["nodes"][0]["pid"]
        return pid

    @property
    def log(self) -> str:
        return (self.folder / "node-1" / "dlogd.log").read_text()

    def ctl(self, *arguments: str) -> tuple[int, str, str]:
        """Run another dlogctl against this sandbox."""
        done = subprocess.run(
            [sys.executable, "-m", "dlogctl", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=environment({"DLOG_BOOTSTRAP": self.bootstrap}),
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[SandboxProcess]:
    sandbox = SandboxProcess(tmp_path / "sb", "--config-override", "flush.policy=interval")
    yield sandbox
    sandbox.close()


def test_a_cluster_of_one_is_operated(sandbox: SandboxProcess) -> None:
    code, out, error = sandbox.ctl("status")
    assert (code, error) == (0, "")
    assert out.startswith("healthy\n")
    assert " active " in out
    assert sandbox.ctl("topic", "create", "events", "-p", "3", "-c", "retention.ms=1000000")[0] == 0
    assert sandbox.ctl("topic", "create", "events")[0] == 1
    code, out, _ = sandbox.ctl("topic", "describe", "events", "-o", "json")
    described = json.loads(out)
    assert len(described["partitions"]) == 3
    assert described["configs"] == {"retention.ms": "1000000"}
    assert {row["high_watermark"] for row in described["partitions"]} == {0}
    code, out, _ = sandbox.ctl("topic", "alter", "events", "-p", "5", "-u", "retention.ms")
    assert (code, out.splitlines()[-1]) == (0, "topic events now: 5 partitions")
    assert sandbox.ctl("topic", "list", "-o", "tsv", "--no-headers")[1].split("\t")[:2] == [
        "events",
        "5",
    ]
    code, out, _ = sandbox.ctl("config", "show", "--node", "1", "-o", "json")
    configs = {row["name"]: row["value"] for row in json.loads(out)}
    assert configs["flush.policy"] == "interval"
    assert sandbox.ctl("config", "show", "--node", "7")[0] == 2
    assert sandbox.ctl("topic", "delete", "events", "--yes")[0] == 0
    assert sandbox.ctl("topic", "list", "--no-headers")[1] == ""
    assert sandbox.stop() == 0
    assert "Stopped exit_code=0" in sandbox.log


def test_a_killed_node_comes_back(sandbox: SandboxProcess) -> None:
    assert sandbox.ctl("topic", "create", "events")[0] == 0
    killed = sandbox.pid
    os.kill(killed, signal.SIGKILL)
    code, _, error = sandbox.ctl("status", "--timeout", "0.3")
    assert (code, "refused" in error) == (2, True)
    assert sandbox.process.poll() is None
    code, out, _ = sandbox.ctl("sandbox", "restart", "1", "--dir", str(sandbox.folder))
    assert code == 0
    assert out == f"restarted bootstrap={sandbox.bootstrap} pids=1:{sandbox.pid}\n"
    assert sandbox.pid not in (0, killed)
    assert "events" in sandbox.ctl("topic", "list")[1]
    assert sandbox.ctl("sandbox", "restart", "2", "--dir", str(sandbox.folder)) == (
        1,
        "",
        "dlogctl: no node 2 here; nodes: 1\n",
    )
    code, _, error = sandbox.ctl("sandbox", "--dir", str(sandbox.folder))
    assert (code, "another sandbox runs" in error) == (1, True)
    sandbox.process.send_signal(signal.SIGTERM)
    assert sandbox.process.wait(PATIENCE_S) == 0
    assert not (sandbox.folder / "sandbox.json").exists()


def test_a_killed_sandbox_leaves_no_daemon_behind(sandbox: SandboxProcess) -> None:
    descriptor = os.pidfd_open(sandbox.pid)
    sandbox.process.kill()
    sandbox.process.wait(PATIENCE_S)
    # The daemon is told to stop, and does so in order.
    with os.fdopen(descriptor):
        assert select.select([descriptor], [], [], PATIENCE_S)[0]
    assert "Stopped exit_code=0" in sandbox.log
    # Its state file and its socket are still there, and hinder nobody.
    assert (sandbox.folder / "sandbox.json").exists()
    code, out, error = sandbox.ctl("sandbox", "restart", "1", "--dir", str(sandbox.folder))
    assert (code, out) == (1, "")
    assert re.fullmatch(
        rf"dlogctl: no sandbox runs in {sandbox.folder}, the last one \(pid "
        rf"{sandbox.process.pid}\) ended without stopping in order; start one: "
        rf"dlogctl sandbox --dir {sandbox.folder}\n",
        error,
    ), error
    again = SandboxProcess(sandbox.folder)
    assert again.bootstrap
    assert again.stop() == 0
    again.close()


def test_a_sandbox_without_its_socket_is_not_called_ended(sandbox: SandboxProcess) -> None:
    folder, pid = sandbox.folder, sandbox.process.pid
    config = (folder / "node-1" / "dlog.yaml").read_text()
    (folder / "control.sock").unlink()
    code, out, error = sandbox.ctl("sandbox", "restart", "1", "--dir", str(folder))
    assert (code, out) == (1, "")
    assert error == (
        f"dlogctl: the sandbox in {folder} runs (pid {pid}), but no node answers at "
        f"{folder}/control.sock: was it removed? Its daemons serve on. To restart nodes again, "
        f"stop it (kill {pid}; data stays) and start one: dlogctl sandbox --dir {folder}\n"
    )
    # A second one does not get in between, nor does it write anything.
    code, _, error = sandbox.ctl("sandbox", "--dir", str(folder), "--port", "0")
    assert (code, f"another sandbox runs in {folder} (pid {pid})" in error) == (1, True), error
    assert (folder / "node-1" / "dlog.yaml").read_text() == config
    assert sandbox.ctl("topic", "create", "events")[0] == 0
    # The cure that it names is one.
    os.kill(pid, signal.SIGTERM)
    assert sandbox.process.wait(PATIENCE_S) == 0
    again = SandboxProcess(folder)
    try:
        assert again.ctl("sandbox", "restart", "1", "--dir", str(folder))[0] == 0
        assert again.stop() == 0
    finally:
        again.close()


def test_the_folder_of_another_node_is_refused_in_one_line(sandbox: SandboxProcess) -> None:
    code, _, error = sandbox.ctl("sandbox", "--dir", str(sandbox.folder), "--port", "0")
    assert code == 1
    assert f"runs in {sandbox.folder} (pid {sandbox.process.pid}): stop that one, or" in error
    assert sandbox.stop() == 0
    override = ("--config-override", "node.id=2")
    code, out, error = sandbox.ctl(
        "sandbox", "--dir", str(sandbox.folder), "--port", "0", *override
    )
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert "belongs to node 1, this is node 2" in error
    assert error.endswith("take another --dir, or the --config-override that fits this one\n")


def test_a_port_in_use_ends_the_sandbox(sandbox: SandboxProcess, tmp_path: Path) -> None:
    port = sandbox.bootstrap.rpartition(":")[2]
    code, out, error = sandbox.ctl("sandbox", "--dir", str(tmp_path / "other"), "--port", port)
    assert (code, out) == (1, "")
    assert re.fullmatch(
        rf"dlogctl: node 1 did not start \(log .*\): .*{port}.*address already in use "
        r"\(exit code 75\); stop what uses it, or take another --port or --dir\n",
        error,
    ), error
