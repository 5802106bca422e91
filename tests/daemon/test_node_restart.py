"""`dlogctl node restart` with real nodes: done, interrupted, refused. Nobody is left drained."""

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.commands import CTL
from tests.daemon.process import environment, heed_interrupts, wait_until
from tests.daemon.sandboxes import WAIT_S, Sandbox
from tests.daemon.sandboxes import sandbox as sandbox

NODE = 2
PROMPT = f"node {NODE} may be restarted now; on its host: sudo systemctl restart dlogd.service"


@pytest.fixture(scope="module", autouse=True)
def topics(sandbox: Sandbox) -> None:
    for topic in ("a --assign 2,1,3 --assign 1,2,3", "sole --assign 2"):
        sandbox.ok(f"topic create {topic}")


@pytest.fixture(autouse=True)
def nobody_is_left_drained(sandbox: Sandbox) -> Iterator[None]:
    yield
    assert [each["drain"] for each in sandbox.json("node list")] == ["none"] * 3


def begin(sandbox: Sandbox, folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the command; its standard error goes to a file."""
    said = folder / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(
            [*CTL, "node", "restart", str(NODE), *options],
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=environment({"DLOG_BOOTSTRAP": sandbox.bootstrap, "DLOG_TIMEOUT": "30s"}),
            preexec_fn=heed_interrupts,
        )
    return process, said


def test_it_tells_when_to_restart_and_waits_until_it_is_done(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    before = sandbox.epoch(NODE, 1)
    process, said = begin(sandbox, tmp_path)
    wait_until(lambda: PROMPT in said.read_text())
    # What could move has moved; one copy stays, and does not stand in the way.
    assert {row["leader"] for row in sandbox.json("partition list a")} <= {1, 3}
    sandbox.restart(NODE)
    assert process.wait(WAIT_S) == 0, said.read_text()
    assert sandbox.epoch(NODE, 1) > before
    assert f"node {NODE} is drained no longer" in said.read_text()


def test_an_interrupt_leaves_the_node_as_it_was(sandbox: Sandbox, tmp_path: Path) -> None:
    before = sandbox.pid(NODE)
    process, said = begin(sandbox, tmp_path)
    wait_until(lambda: PROMPT in said.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) != 0
    assert sandbox.pid(NODE) == before
    assert sandbox.ok("maintenance show") == "the maintenance lock is free\n"


def test_of_two_at_once_one_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    """Each alone may go; both together would take two nodes of three down."""
    process, said = begin(sandbox, tmp_path)
    try:
        wait_until(lambda: PROMPT in said.read_text())
        code, _, err = sandbox.run("node restart 3")
        assert code == 10
        assert f"held for maintenance by restart of node {NODE} by " in err
        assert f"(node {NODE})" in err
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 1, said.read_text()
    assert sandbox.ok("maintenance show") == "the maintenance lock is free\n"


def test_over_ssh_nothing_is_stopped_that_would_not_start(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in place of ssh: it is asked to check first, and to restart only after that."""
    asked = tmp_path / "asked"
    program = tmp_path / "ssh"
    restart = f"{' '.join(CTL)} sandbox restart {NODE} --dir {sandbox.directory}"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\n'
        f'case "$*" in *" cat "*) echo node.id: {NODE}; exit;;'
        f" *preflight*) exit ${{PREFLIGHT:-0}};; esac\n{restart} > /dev/null\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PREFLIGHT", "78")
    process, said = begin(sandbox, tmp_path, "--ssh", "admin@h2")
    assert process.wait(WAIT_S) == 10
    assert f"node {NODE} was not stopped: a start would fail there" in said.read_text()
    assert asked.read_text().count("\n") == 2
    monkeypatch.setenv("PREFLIGHT", "0")
    before = sandbox.epoch(NODE, 1)
    process, said = begin(sandbox, tmp_path, "--ssh", "admin@h2")
    assert process.wait(WAIT_S) == 0, said.read_text()
    assert sandbox.epoch(NODE, 1) > before
    assert asked.read_text().endswith("admin@h2 sudo -n systemctl restart dlogd.service\n")


def test_a_restart_that_would_hurt_is_refused(sandbox: Sandbox) -> None:
    sandbox.ok("topic create guarded --assign 1,2 -c min.insync.replicas=1")
    os.kill(sandbox.pid(3), signal.SIGSTOP)
    try:
        sandbox.until(lambda: sandbox.node(3)["state"] == "fenced")
        code, out, _ = sandbox.run(f"node restart {NODE} --dry-run")
        assert (code, "must not be restarted now" in out) == (10, True)
        assert "node 3 is fenced: bring it back first" in out
        code, _, _ = sandbox.run(f"node restart {NODE} --patience 300ms")
        assert code == 10
        for command in ("config set leader.replication.throttled.rate=1MiB", "log-dirs"):
            code, _, err = sandbox.run(f"{command} --node 3 --timeout 500ms")
            assert code == 10, err
            assert "node 3 is down, and only the node itself tells this. Start it, on its" in err
    finally:
        os.kill(sandbox.pid(3), signal.SIGCONT)
    sandbox.until(lambda: sandbox.node(3)["state"] == "active")
    sandbox.until(lambda: sandbox.run("node restart 2 --dry-run")[0] == 0)
