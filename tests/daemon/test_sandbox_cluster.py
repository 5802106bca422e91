"""A sandbox of three real nodes: one cluster, one controller; it survives the death of any node."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.sandboxes import nodes_of, three_nodes, until

WAIT_S = 60.0


class Cluster:
    """The sandbox as its state file and its nodes tell of it."""

    def __init__(self, directory: Path, process: "subprocess.Popen[str]") -> None:
        self.directory = directory
        self.process = process

    def nodes(self) -> dict[int, dict[str, Any]]:
        """Return what the state file says of each node."""
        return nodes_of(self.directory)

    def status(self, node: int) -> dict[str, Any]:
        """Return /status of a node."""
        with urllib.request.urlopen(f"http://{self.nodes()[node]['http']}/status") as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def until(self, what: Callable[[], bool]) -> None:
        """Return when something is so; fail with the ends of all logs."""
        until(self.directory, what)

    def controllers(self, nodes: tuple[int, ...]) -> set[int]:
        """Return whom nodes take for the controller."""
        return {self.status(each)["controller"] for each in nodes}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start three nodes, and stop them in the end."""
    with three_nodes(tmp_path / "sb") as (process, _):
        yield Cluster(tmp_path / "sb", process)


def test_the_next_controller_takes_over_from_a_dead_one(cluster: Cluster) -> None:
    every = (1, 2, 3)
    cluster.until(lambda: len(found := cluster.controllers(every)) == 1 and -1 not in found)
    (first,) = cluster.controllers(every)
    cluster.until(lambda: cluster.status(first)["lease"]["valid"])
    os.kill(cluster.nodes()[first]["pid"], signal.SIGKILL)
    others = tuple(each for each in every if each != first)
    cluster.until(lambda: len(found := cluster.controllers(others)) == 1 and found <= set(others))
    # The dead one is fenced; the others keep their leases.
    cluster.until(lambda: cluster.status(others[0])["fenced_nodes"] == [first])
    cluster.until(lambda: all(cluster.status(each)["lease"]["valid"] for each in others))
    for path in cluster.directory.glob("node-*/dlogd.log"):
        assert "Traceback" not in path.read_text()


def test_all_come_back_when_all_were_killed(cluster: Cluster) -> None:
    for each in cluster.nodes().values():
        os.kill(each["pid"], signal.SIGKILL)
    cluster.until(lambda: not any(each["pid"] for each in cluster.nodes().values()))
    command = [sys.executable, "-m", "dlogctl", "sandbox", "restart", "1", "2", "3"]
    subprocess.run([*command, "--dir", str(cluster.directory)], check=True, timeout=WAIT_S)
    cluster.until(lambda: all(cluster.status(each)["lease"]["valid"] for each in (1, 2, 3)))
