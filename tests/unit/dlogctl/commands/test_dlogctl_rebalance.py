"""`dlogctl partition rebalance` against the handlers of a node in memory."""

import json

import pytest

from dlogctl.commands.partition_rebalance import COLUMNS
from tests.fakes.commanded_node import Ctl, World, ctl, world

__all__ = ["ctl", "world"]  # the fixtures


def test_a_plan_is_shown_and_is_one_that_reassign_takes(ctl: Ctl, world: World) -> None:
    shown = ctl("partition rebalance --dry-run")
    assert shown.code == 0
    assert shown.out.splitlines()[0].split()[:2] == [each.title for each in COLUMNS[:2]]
    plan = json.loads(ctl("partition rebalance --to 4 --dry-run -o json").out)
    assert plan["version"] == 1 and plan["partitions"]
    assert all(4 in each["replicas"] for each in plan["partitions"])
    (node,) = [each for each in plan["nodes"] if each["node"] == 4]
    assert (node["replicas"], node["then"]) == (0, len(plan["partitions"]))
    others = [each["then"] for each in plan["nodes"] if each["node"] != 4]
    assert max(others) - node["then"] <= 1


def test_the_moves_are_begun(ctl: Ctl) -> None:
    wanted = json.loads(ctl("partition rebalance --to 4 --dry-run -o json").out)["partitions"]
    done = ctl("partition rebalance --to 4")
    assert done.code == 0, done.err
    assert done.out == f"begun to move: {len(wanted)} partition{'s' * (len(wanted) > 1)}\n"
    moving = json.loads(ctl("partition reassignments -o json").out)
    assert {(each["topic"], each["partition"]) for each in moving} == {
        (each["topic"], each["partition"]) for each in wanted
    }
    again = ctl("partition rebalance")
    assert again.code == 1 and "move already: wait for them" in again.err


def test_a_wait_ends_when_nothing_moves(ctl: Ctl) -> None:
    done = ctl("partition rebalance --to 4 --wait --patience 100ms")
    assert done.code == 1
    assert "nothing has moved for 0.1 s" in done.err
    assert "the moves continue, see: dlogctl partition reassignments" in done.err
    assert json.loads(ctl("partition reassignments -o json").out)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--to 9", 2, "the cluster has no node 9"),
        ("--to 3", 1, "node 3 is fenced or drained and takes no replicas"),
        ("--throttle 1MiB", 64, "--throttle needs --wait"),
        ("--patience 1s", 64, "--patience needs --wait"),
    ],
)
def test_what_cannot_be_is_refused(
    ctl: Ctl, world: World, options: str, code: int, words: str
) -> None:
    world.node.fence(3)
    refused = ctl(f"partition rebalance {options}")
    assert refused.code == code and words in refused.err
