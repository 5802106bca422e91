"""`dlogctl node restart` and the maintenance lock, asked of a node in memory."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dlog.types import NodeId
from dlogctl.cluster import lock_holding
from dlogctl.cluster.draining import Remainder
from dlogctl.cluster.maintenance import VARIABLE
from dlogctl.commands import node_roll
from dlogctl.commands.restart_ways import Here, OverSsh, Told, node_of
from dlogd.metadata.state.image import Drain
from dlogd.metadata.state.limits import LEVEL_MAINTENANCE
from tests.fakes.commanded_node import Ctl, World, ctl, world

__all__ = ["ctl", "world"]  # the fixtures

SOON_S = 20.0
MINE = UUID(int=0xA)


class Restarts:
    """What happens in a restart of node 2, which reaches the stop unless a gate refuses it."""

    def __init__(self) -> None:
        self.in_drain: Callable[[], object] = lambda: None
        self.stopped = 0

    async def epoch(self, *_: object) -> int:
        return 7

    async def wait_drained(self, *_: object) -> Remainder:
        self.in_drain()
        return Remainder([], [], [], {}, [])

    def restart(self, *_: object) -> str:
        self.stopped += 1
        return "it was a rehearsal"


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> Restarts:
    made = Restarts()
    monkeypatch.setattr(node_roll, "_epoch", made.epoch)
    # The clock of the node in memory, which stands still.
    monkeypatch.setattr(lock_holding, "time", SimpleNamespace(time=lambda: 1_700_000_001.0))
    monkeypatch.setattr(node_roll, "wait_drained", made.wait_drained)
    for way in (Told, OverSsh, Here):
        monkeypatch.setattr(way, "restart", made.restart)
    return made


def lock_of(world: World) -> Any:
    return world.node.image.maintenance


def test_it_holds_the_lock_until_it_ends(ctl: Ctl, world: World, restarts: Restarts) -> None:
    seen = []
    restarts.in_drain = lambda: seen.append(lock_of(world))
    done = ctl("node restart 2 --patience 100ms")
    assert (done.code, restarts.stopped) == (10, 1) and "it was a rehearsal" in done.err
    assert seen[0].node_id == 2 and seen[0].owner.startswith("restart of node 2 by ")
    assert lock_of(world) is None
    # A dry run takes nothing.
    assert ctl("node restart 2 --dry-run").code == 0
    ctl("maintenance hold --owner ann@ops1")
    assert ctl("node restart 2 --dry-run").code == 0


def test_a_second_one_is_told_who_is_at_it(ctl: Ctl, world: World, restarts: Restarts) -> None:
    ctl("maintenance hold --owner ann@ops1")
    held = lock_of(world)
    second = ctl("node restart 2")
    assert (second.code, restarts.stopped) == (10, 0)
    assert "held for maintenance by ann@ops1" in second.err
    assert world.node.image.nodes[NodeId(2)].drain is Drain.NONE
    assert lock_of(world) == held


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_one_leaves_no_lock_and_no_drain(
    ctl: Ctl, world: World, restarts: Restarts, number: signal.Signals
) -> None:
    restarts.in_drain = lambda: os.kill(os.getpid(), number)
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)]
    try:
        code = ctl("node restart 2").code
    except KeyboardInterrupt:
        code = 1
    assert (code, restarts.stopped) == (1, 0)
    assert lock_of(world) is None
    assert world.node.image.nodes[NodeId(2)].drain is Drain.NONE
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)] == handlers


def test_the_lock_of_a_token_is_used_and_stays(
    ctl: Ctl, world: World, restarts: Restarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl(f"maintenance hold --owner ann@ops1 --node 3 --token {MINE} --for 60min")
    held = lock_of(world)
    monkeypatch.setenv(VARIABLE, str(MINE))
    assert ctl("node restart 2 --patience 100ms").code == 10 and restarts.stopped == 1
    now = lock_of(world)
    assert (now.owner, now.node_id, now.since_ms) == ("ann@ops1", 3, held.since_ms)
    assert now.expires_ms == held.expires_ms, "it is never shortened"
    ctl("maintenance release --force")
    assert ctl("node restart 2 --patience 100ms").code == 10 and restarts.stopped == 2
    assert lock_of(world).token == MINE, "one that expired is taken again, and left to its holder"


def test_without_locks_it_says_so_and_goes_on(ctl: Ctl, world: World, restarts: Restarts) -> None:
    world.node.image = world.node.image.having(feature_level=LEVEL_MAINTENANCE - 1)
    done = ctl("node restart 2 --patience 100ms")
    assert restarts.stopped == 1
    assert "no maintenance lock keeps others out: " in done.err
    assert "dlogctl config set feature.level=5" in done.err


@pytest.mark.parametrize(
    "command",
    [
        "node restart 2",
        "node drain 2",
        "node pre-restart 2 --patience 100s",
        "node post-restart 2 --patience 100s",
        "partition reassign t-0=1,2,4 --wait",
        "partition rebalance --to 4 --wait",
    ],
)
def test_a_wait_renews_the_lock(
    ctl: Ctl, world: World, restarts: Restarts, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The wait ends only when the lock was renewed, or fails."""
    ctl(f"maintenance hold --owner ann@ops1 --token {MINE} --for 30s")
    begun = lock_of(world).expires_ms
    renewed = threading.Event()
    hold = lock_holding.Hold.renew

    async def noted(self: Any, client: Any) -> None:
        await hold(self, client)
        if threading.current_thread() is not threading.main_thread():
            renewed.set()

    def wait(*_: object) -> None:
        assert renewed.wait(SOON_S), "nothing renewed it"
        raise OSError("waited")

    monkeypatch.setattr(lock_holding.Hold, "renew", noted)
    monkeypatch.setattr(lock_holding, "RENEWAL_S", 0.01)
    for name in (
        *("node_roll.wait_drained", "node_drain.wait_drained"),
        *("node_restart.await_restartable", "node_return.wait_back"),
        *("partition_change.wait_moved", "partition_rebalance.wait_moved"),
    ):
        monkeypatch.setattr(f"dlogctl.commands.{name}", wait)
    done = ctl(f"{command} --maintenance-token {MINE}")
    assert "waited" in done.err, done
    assert lock_of(world).owner == "ann@ops1"
    assert lock_of(world).expires_ms > begun
    ctl("node undrain 2")


def test_a_lock_that_is_lost_stops_nothing(ctl: Ctl, world: World, restarts: Restarts) -> None:
    def take_away() -> None:
        world.node.image = world.node.image.having(maintenance=None)
        token = ctl("maintenance hold --owner bob@ops2").out.strip()
        assert token

    def in_another_thread() -> None:
        thread = threading.Thread(target=take_away)
        thread.start()
        thread.join()

    restarts.in_drain = in_another_thread
    refused = ctl("node restart 2")
    assert (refused.code, restarts.stopped) == (10, 0)
    assert "node 2 was not stopped: The cluster is held for maintenance by bob@ops2" in refused.err
    assert world.node.image.nodes[NodeId(2)].drain is Drain.NONE
    assert lock_of(world).owner == "bob@ops2"


@pytest.mark.parametrize("harm", ["down", "drained"])
def test_after_the_drain_it_looks_again(
    ctl: Ctl, world: World, restarts: Restarts, harm: str
) -> None:
    assert ctl("node drain 4 --no-wait").code == 0  # before it began: that is known

    def do_harm() -> None:
        if harm == "down":
            world.node.fence(3)
        else:
            drain(world, 3)

    restarts.in_drain = do_harm
    refused = ctl("node restart 2 --patience 100ms")
    assert (refused.code, restarts.stopped) == (10, 0)
    words = "node 3 is fenced: bring it back first"
    if harm == "drained":
        words = "node 2 was not stopped: meanwhile others were drained (3): wait"
    assert words in refused.out + refused.err
    assert world.node.image.nodes[NodeId(2)].drain is Drain.NONE
    restarts.in_drain = lambda: None
    if harm == "drained":
        ctl("node restart 2 --patience 100ms")
        assert restarts.stopped == 1


def drain(world: World, node_id: int) -> None:
    """Drain a node as an operator does who has ended the lock by force."""
    nodes = dict(world.node.image.nodes)
    nodes[NodeId(node_id)] = replace(nodes[NodeId(node_id)], drain=Drain.LEADERS)
    world.node.image = world.node.image.having(nodes=nodes)


@pytest.mark.parametrize(
    ("text", "node_id"),
    [
        ("node.id: 3\nflush.polcy: x\n", 3),
        ("node: {id: 3}\n", 3),
        ("node.id: three\n", None),
        ("node.id: [", None),
    ],
)
def test_whose_a_configuration_is(text: str, node_id: int | None) -> None:
    assert node_of(text) == node_id


def test_a_host_of_another_node_is_not_touched(
    ctl: Ctl, world: World, restarts: Restarts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in place of ssh, on a host of a node that is told by its file."""
    asked, told = tmp_path / "asked", tmp_path / "told"
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\ncat {told}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for text, words in (
        ("node.id: 3\n", "/etc/dlog/dlog.yaml on h3 is that of node 3; name the host of node 2"),
        ("", "/etc/dlog/dlog.yaml on h3 cannot be read; name the host of node 2"),
    ):
        told.write_text(text)
        asked.unlink(missing_ok=True)
        refused = ctl("node restart 2 --ssh h3")
        assert (refused.code, restarts.stopped) == (2, 0)
        assert f"node 2 was not stopped: {words}" in refused.err
        assert asked.read_text().endswith("h3 sudo -n cat /etc/dlog/dlog.yaml\n")
        assert lock_of(world) is None
    wrong = tmp_path / "dlog.yaml"
    wrong.write_text("node.id: 3\nof.another.version: 1\n")
    refused = ctl(f"node restart 2 --here --config {wrong}")
    assert (refused.code, restarts.stopped) == (2, 0)
    assert f"{wrong} is that of node 3: run this on the host of node 2" in refused.err


def test_what_is_no_node_or_has_no_other(ctl: Ctl, world: World, restarts: Restarts) -> None:
    assert ctl("node restart 9").code == 2
    nodes, one = world.node.image.nodes, NodeId(2)
    world.node.image = world.node.image.having(nodes={one: nodes[one]}, topics={}, topics_by_id={})
    alone = ctl("node drain 2")
    assert alone.code == 10
    assert "node 2 is the only node, so nothing can move. To restart it, wait" in alone.err
