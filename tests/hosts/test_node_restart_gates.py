"""Each gate of `dlogctl node restart` is needed: without it a scenario finds what it prevents.

The command runs as a process in which one function of it was replaced. Each scenario runs on the
true command first and finds nothing. The long form; it needs no hosts.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.process import environment, wait_until
from tests.daemon.sandboxes import WAIT_S, Sandbox
from tests.daemon.sandboxes import sandbox as sandbox
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
NODE = 2
READY = "may be restarted now"
STAYS_S = 2
RUN = """
import sys
from dlogctl import __main__, exit_codes
from dlogctl.commands import node_roll, restart_ways
{change}
sys.exit(__main__.main(sys.argv[1:]))
"""
NO_CHECK = "node_roll.{name} = lambda *_, **__: None"
AT_ONCE = """
class Answer:
    {answer} = True
async def at_once(*_):
    return Answer
node_roll.{name} = at_once
"""
NO_UNDRAIN = """
from dlog.client.admin import Admin
true_drain = Admin.drain_node
async def drain(self, node, kind, **options):
    if kind is not node_roll.Drain.NONE:
        return await true_drain(self, node, kind, **options)
Admin.drain_node = drain
"""


class Command:
    """The command with one change, at work on a sandbox."""

    def __init__(self, sandbox: Sandbox, folder: Path, change: str, *options: str) -> None:
        self._path = folder / "said"
        code = RUN.format(change=change)
        with self._path.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, "node", "restart", str(NODE), *options],
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=environment({"DLOG_BOOTSTRAP": sandbox.bootstrap, "DLOG_TIMEOUT": "30s"}),
            )

    @property
    def said(self) -> str:
        return self._path.read_text()

    def await_prompt(self) -> bool:
        """Wait until it says that the node may be restarted, or has ended; return which."""
        wait_until(lambda: READY in self.said or self.process.poll() is not None)
        return READY in self.said

    def end(self) -> int:
        return self.process.wait(WAIT_S)


Scenario = Callable[[Sandbox, Path, str], list[str]]


def another_node_is_down(sandbox: Sandbox, folder: Path, change: str) -> list[str]:
    """Restart a node while the other copies of its partitions are too few."""
    os.kill(sandbox.pid(3), signal.SIGSTOP)
    try:
        sandbox.until(lambda: sandbox.node(3)["state"] == "fenced")
        command = Command(sandbox, folder, change, "--patience", "300ms")
        is_allowed = command.await_prompt()
        command.process.terminate()
        command.end()
    finally:
        os.kill(sandbox.pid(3), signal.SIGCONT)
    sandbox.until(lambda: sandbox.node(3)["state"] == "active")
    sandbox.until(lambda: sandbox.run(f"node restart {NODE} --dry-run")[0] == 0)
    sandbox.ok(f"node undrain {NODE}")
    return ["the node may be restarted"] if is_allowed else []


def told_and_restarted(sandbox: Sandbox, folder: Path, change: str) -> list[str]:
    """Restart a node as the command says, and look at what it waits for and leaves."""
    sandbox.until(lambda: has_its_leaders(sandbox))
    command = Command(sandbox, folder, change)
    assert command.await_prompt(), command.said
    found = ["it still leads"] if NODE in leaders(sandbox) else []
    try:
        command.process.wait(STAYS_S)
        found.append("it does not wait for the restart")
    except subprocess.TimeoutExpired:
        sandbox.restart(NODE)
        found += [command.said] if command.end() else []
    left = [each["node"] for each in sandbox.json("node list") if each["drain"] != "none"]
    if left:
        found.append(f"drained: {left}")
        sandbox.ok(f"node undrain {NODE}")
    return found


def wrong_file(sandbox: Sandbox, folder: Path, change: str) -> list[str]:
    """Restart a node, over SSH, whose preflight fails."""
    asked = folder / "asked"
    program = folder / "ssh"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\n'
        f'case "$*" in *" cat "*) echo node.id: {NODE}; exit;; *preflight*) exit 78;; esac\n'
        "exit 1\n"
    )
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        command = Command(sandbox, folder, change, "--ssh", "h2", "--no-rollback")
        command.end()
    stopped = asked.exists() and "systemctl restart" in asked.read_text()
    return ["a start that fails was tried"] if stopped else []


SCENARIOS: tuple[Scenario, ...] = (another_node_is_down, told_and_restarted, wrong_file)
MUTANTS: dict[str, tuple[Scenario, str]] = {
    "pre-restart": (
        another_node_is_down,
        AT_ONCE.format(name="await_restartable", answer="may_restart"),
    ),
    "drain": (told_and_restarted, NO_CHECK.format(name="_Restart.drain")),
    "post-restart": (told_and_restarted, AT_ONCE.format(name="wait_back", answer="is_back")),
    "undrain": (told_and_restarted, NO_UNDRAIN),
    "preflight": (wrong_file, "restart_ways.OverSsh.check = lambda *_: None"),
}


def leaders(sandbox: Sandbox) -> set[int]:
    """Return the nodes that lead a partition of the topic that can move."""
    return {row["leader"] for row in sandbox.json("partition list moves")}


def has_its_leaders(sandbox: Sandbox) -> bool:
    """Ask for the preferred leaders, and return whether the node is one again."""
    sandbox.run("partition elect moves")
    return NODE in leaders(sandbox)


@pytest.fixture(scope="module", autouse=True)
def topics(sandbox: Sandbox) -> None:
    sandbox.ok("topic create moves --assign 2,1,3 --assign 1,2,3 -c min.insync.replicas=1")
    sandbox.ok("topic create guarded --assign 1,2 -c min.insync.replicas=1")


@pytest.fixture(autouse=True)
def nobody_is_left_drained(sandbox: Sandbox) -> Iterator[None]:
    yield
    assert [each["drain"] for each in sandbox.json("node list")] == ["none"] * 3


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_the_true_command(sandbox: Sandbox, tmp_path: Path, scenario: Scenario) -> None:
    assert scenario(sandbox, tmp_path, "") == []


@pytest.mark.parametrize("gate", MUTANTS)
def test_a_command_without_a_gate(sandbox: Sandbox, tmp_path: Path, gate: str) -> None:
    scenario, change = MUTANTS[gate]
    found = scenario(sandbox, tmp_path, change)
    assert found, f"nobody noticed that {gate} is missing"
