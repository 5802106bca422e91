"""`dlogctl maintenance`, and the commands that its lock holds back, against a node in memory."""

import json
from uuid import UUID

import pytest

from dlog.types import NodeId
from dlogctl.cluster.maintenance import VARIABLE
from dlogd.metadata.state.image import Drain
from dlogd.metadata.state.limits import LEVEL_MAINTENANCE
from tests.fakes.commanded_node import Ctl, World, ctl, world

__all__ = ["ctl", "world"]  # the fixtures

HELD = "The cluster is held for maintenance by ann@ops1"
OTHER = str(UUID(int=0xB))


def test_hold_show_release(ctl: Ctl) -> None:
    free = ctl("maintenance show")
    assert (free.code, free.out) == (0, "the maintenance lock is free\n")
    assert json.loads(ctl("maintenance show -o json").out)["held"] is False
    held = ctl("maintenance hold --owner ann@ops1 --node 2")
    assert held.code == 0
    token = held.out.strip()
    assert held.err.startswith("held by ann@ops1 (node 2), since 2")
    UUID(token)
    shown = ctl("maintenance show")
    assert shown.code == 10
    assert shown.out.startswith("held by ann@ops1 (node 2), since 2")
    document = json.loads(ctl("maintenance show -o json").out)
    assert sorted(document) == ["expires", "held", "node", "owner", "since"]
    assert (document["held"], document["owner"], document["node"]) == (True, "ann@ops1", 2)
    assert ctl("maintenance show -o tsv").out.splitlines()[0].split() == [
        *("HELD", "OWNER", "NODE", "SINCE", "EXPIRES"),
    ]
    on = ctl(f"maintenance hold --owner ann@ops1 --token {token} --for 60min -o json")
    again = json.loads(on.out)
    assert (again["token"], again["since"], again["node"]) == (token, document["since"], None)
    assert again["expires"] > document["expires"]
    assert ctl("maintenance release").code == 64
    other = ctl(f"maintenance release --token {OTHER}")
    assert other.code == 10 and HELD in other.err
    assert ctl(f"maintenance release --token {token}").out == "the maintenance lock is free\n"
    assert ctl("maintenance show").code == 0


def test_a_second_holder_hears_who_is_at_it(ctl: Ctl) -> None:
    assert ctl("maintenance hold --owner ann@ops1").code == 0
    second = ctl("maintenance hold --owner bob")
    assert (second.code, second.out) == (10, "")
    assert HELD in second.err and "until 2" in second.err
    assert json.loads(ctl("maintenance release --force -o json").out) == [{"result": "released"}]
    assert ctl("maintenance hold --owner bob").code == 0


def test_status_shows_it(ctl: Ctl) -> None:
    assert json.loads(ctl("status -o json").out)["maintenance"] is None
    assert "maintenance" not in ctl("status").out
    ctl("maintenance hold --owner ann@ops1 --node 3")
    found = json.loads(ctl("status -o json").out)["maintenance"]
    assert sorted(found) == ["expires", "node", "owner", "since"]
    (line,) = [each for each in ctl("status").out.splitlines() if "maintenance" in each]
    assert "ann@ops1 (node 3), since 2" in line


@pytest.mark.parametrize(
    "command", ["node drain 2 --no-wait", "node remove 4 --yes", "node restart 2 --patience 100ms"]
)
def test_others_are_held_back(
    ctl: Ctl, world: World, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a restart looks at first is not there in this world.
    monkeypatch.setattr("dlogctl.commands.node_roll._epoch", epoch)
    monkeypatch.setattr("dlogctl.commands.node_roll.wait_drained", refuse_to_wait)
    if "remove" in command:
        world.node.fence(4)
    token = ctl("maintenance hold --owner ann@ops1").out.strip()
    # As the holder has it: a restart that is refused must not end that.
    nodes = world.node.image.nodes
    assert ctl(f"node drain 3 --no-wait --maintenance-token {token}").code == 0
    before = {node_id: each.drain for node_id, each in nodes.items()}
    refused = ctl(f"{command} --maintenance-token {OTHER}")
    assert refused.code == 10, refused
    assert HELD in refused.err and "dlogctl maintenance release --force" in refused.err
    assert "drained no longer" not in refused.err
    assert ctl(command).code == 10
    after = {node_id: each.drain for node_id, each in world.node.image.nodes.items()}
    assert after == before | {NodeId(3): Drain.LEADERS}
    monkeypatch.setenv(VARIABLE, token)
    done = ctl(command)
    assert HELD not in done.err
    assert done.code == 0 or WAITED in done.err
    assert ctl("node undrain 2 3").code == 0


WAITED = "somebody waited for the drain"


async def epoch(*_: object) -> int:
    return 7


async def refuse_to_wait(*_: object) -> None:
    raise OSError(WAITED)


def test_what_is_wrong_is_said(ctl: Ctl, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for line, words in (
        ("maintenance hold --owner ann --for 61min", "at most 60min"),
        (f"maintenance hold --owner {'x' * 256}", "one line of 1 to 255 letters"),
        ("maintenance hold --owner ann --token ann", "'ann' is no UUID"),
        ("maintenance hold", "Missing option '--owner'"),
    ):
        wrong = ctl(line)
        assert wrong.code == 64 and words in wrong.err, wrong
    assert "has no node 9" in ctl("maintenance hold --owner ann --node 9").err
    monkeypatch.setenv(VARIABLE, "ann")
    assert ctl("node drain 2").code == 64
    monkeypatch.delenv(VARIABLE)
    world.node.image = world.node.image.having(feature_level=LEVEL_MAINTENANCE - 1)
    old = ctl("maintenance hold --owner ann")
    assert old.code == 1
    assert "dlogctl config set feature.level=5" in old.err
