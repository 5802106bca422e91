"""`dlogctl node pre-restart`, `post-restart`, `plan-restart`, asked of a node in memory."""

import json

import pytest

from dlogctl.commands import node_restart, node_return
from dlogctl.commands.node_plan import COLUMNS
from tests.fakes.commanded_node import Ctl, World, ctl, world

__all__ = ["ctl", "world"]  # the fixtures


def test_a_node_that_is_back_is_said_to_be_back(
    ctl: Ctl, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_return, "LOOK_AGAIN_S", 0.01)
    assert ctl("node post-restart 2 --no-wait").out.startswith("node 2 is back (after ")
    world.node.fence(3)
    other = ctl("node post-restart 2 -o json")
    found = json.loads(other.out)
    assert (other.code, found["is_back"]) == (0, True)
    assert found["elsewhere"][0] == "node 3 is fenced"
    late = ctl("node post-restart 3 --no-wait")
    assert late.code == 10
    assert "node 3 is not back\n  - it is fenced" in late.out
    late = ctl("node post-restart 3 --patience 100ms")
    assert late.code == 10 and "is not back, and nothing has moved for 0.1 s\n" in late.out
    assert late.err.count("node 3: it is fenced") == 1
    assert "it is out of the ISR of 3 of 3 partitions" in late.out
    assert ctl("node post-restart 9").code == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--config-digest 12", "'12' is no digest: 16 hexadecimal digits, or NODE=DIGEST"),
        ("--started-before yesterday", "'yesterday' is no time: write 2026-11-27T23:00:00Z"),
    ],
)
def test_a_plan_is_asked_for_in_digests_and_times(ctl: Ctl, options: str, words: str) -> None:
    refused = ctl(f"node plan-restart {options}")
    assert refused.code == 64 and words in refused.err


def test_a_plan_names_who_does_not_tell(ctl: Ctl, world: World) -> None:
    assert COLUMNS[0].key == "node"
    plan = ctl("node plan-restart --target-version 9 -o json")
    assert (plan.code, json.loads(plan.out)) == (10, {"due": [], "unknown": [1, 2, 3, 4]})
    assert plan.err.count("does not tell what it runs") == 4


def test_a_restart_is_waited_for_as_long_as_reasons_change(
    ctl: Ctl, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_restart, "LOOK_AGAIN_S", 0.01)
    assert ctl("node pre-restart 1 --patience 5min").code == 0
    world.node.fence(3)
    late = ctl("node pre-restart 1 --patience 200ms")
    assert late.code == 10 and "node 1 must not be restarted now" in late.out
    assert late.err.count("node 1 must not be restarted yet: node 3 is fenced") == 1


def test_a_restart_that_nobody_could_notice_is_refused(ctl: Ctl, world: World) -> None:
    refused = ctl("node restart 2")
    assert refused.code == 10
    assert "no node tells the epoch of node 2" in refused.err
    assert "run this where the nodes' http.address can be reached" in refused.err
    assert json.loads(ctl("node describe 2 -o json").out)["drain"] == "none"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--here --ssh admin@h2", "--here and --ssh exclude each other"),
        ("--release 2.0", "--release and --config need --here"),
        ("--config /etc/dlog/dlog.yaml.next", "--release and --config need --here"),
    ],
)
def test_ways_of_a_restart_that_exclude_each_other(ctl: Ctl, options: str, words: str) -> None:
    refused = ctl(f"node restart 2 {options}")
    assert refused.code == 64 and words in refused.err


def test_a_restart_here_looks_for_its_release_before_it_drains(ctl: Ctl, world: World) -> None:
    refused = ctl("node restart 2 --here --release 0.0.1")
    assert refused.code == 10
    assert (
        "node 2 was not stopped: there is no release 0.0.1 on this host, only: none" in refused.err
    )
    assert world.node.image.nodes[2].drain == 0
