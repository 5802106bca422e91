"""A sandbox of three nodes and its command line, for tests of `dlogctl`."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.commands import run as run_in_pipes
from tests.daemon.process import environment

WAIT_S = 60.0


def nodes_of(directory: Path) -> dict[int, dict[str, Any]]:
    """Return by number what the state file of a sandbox says of each node."""
    state = json.loads((directory / "sandbox.json").read_text())
    return {each["node"]: each for each in state["nodes"]}


def until(directory: Path, what: Callable[[], bool]) -> None:
    """Return when something is so; fail with the ends of all logs of the sandbox."""
    deadline = time.monotonic() + WAIT_S
    while not what():
        if time.monotonic() > deadline:
            logs = sorted(directory.glob("node-*/dlogd.log"))
            pytest.fail("\n".join(path.read_text()[-2000:] for path in logs))
        time.sleep(0.05)  # other processes: there is no event to wait for


@contextmanager
def three_nodes(directory: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start three nodes, give their process and its line, and stop them in the end."""
    command = [sys.executable, "-m", "dlogctl", "sandbox", "--dir", str(directory)]
    process = subprocess.Popen(
        [*command, "--nodes", "3", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready "), ready
        yield process, ready
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class Sandbox:
    """A running sandbox and its command line."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.directory = directory
        self.bootstrap = bootstrap

    def run(self, line: str) -> tuple[int, str, str]:
        """Run dlogctl; return exit code and what it wrote."""
        env = {"DLOG_BOOTSTRAP": self.bootstrap, "DLOG_TIMEOUT": "30s"}
        return run_in_pipes(None, *line.split(), **env)

    def ok(self, line: str) -> str:
        """Run what must succeed; return what it wrote."""
        code, out, err = self.run(line)
        assert code == 0, (line, code, out, err)
        return out

    def json(self, line: str) -> Any:
        """Run what shows something; return the document, whatever the exit code."""
        code, out, err = self.run(f"{line} -o json")
        assert out, (line, code, err)
        return json.loads(out)

    def refused(self, line: str, *, code: int = 1) -> str:
        """Run what must be refused; return the one line that says why."""
        found, out, err = self.run(line)
        assert (found, out) == (code, ""), (line, out, err)
        assert err.count("\n") == 1, err
        return err

    def until(self, what: Callable[[], bool]) -> None:
        """Return when something is so; fail with the ends of all logs."""
        until(self.directory, what)

    def pid(self, node: int) -> int:
        """Return the process of a node."""
        return int(nodes_of(self.directory)[node]["pid"])

    def restart(self, node: int) -> None:
        """Restart a node, or start it when it is down."""
        code, _, err = run_in_pipes(
            None, "sandbox", "restart", str(node), "--dir", str(self.directory)
        )
        assert code == 0, err

    @property
    def controller(self) -> int:
        """The present controller."""
        return int(self.json("controller list")["controller"])

    def node(self, node: int) -> dict[str, Any]:
        """Return what `node list` says of one."""
        return next(each for each in self.json("node list") if each["node"] == node)

    def epoch(self, node: int, asked: int) -> int:
        """Return the epoch of a node, as another one knows it."""
        status = self.json(f"node describe {asked}")["status"]
        return next(int(e["node_epoch"]) for e in status["nodes"] if e["node_id"] == node)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start three nodes, and stop them in the end."""
    directory = tmp_path_factory.mktemp("cluster") / "sb"
    with three_nodes(directory) as (_, ready):
        bootstrap = ready.split("bootstrap=")[1].split()[0]
        found = Sandbox(directory, bootstrap)
        found.until(lambda: found.json("status")["healthy"])
        yield found
        for path in directory.glob("node-*/dlogd.log"):
            assert "Traceback" not in path.read_text()
