"""Commands about nodes, controllers and partitions, against the handlers of a node in memory."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from dlog.errors import InvalidRequestError
from dlog.types import PartitionId, TopicPartition
from dlog.wire.apis import ApiKey
from dlogctl.commands import partition_change, partition_repair
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.state.image import Refused
from dlogd.server.context import LogDir
from tests.fakes.commanded_node import Ctl, World, ctl, world
from tests.fakes.server import replica_state

__all__ = ["ctl", "world"]  # the fixtures


def test_nodes_are_listed(ctl: Ctl, world: World) -> None:
    world.node.fence(3)
    shown = ctl("node list")
    assert shown.code == 0
    rows = [line.split() for line in shown.out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[3] for row in rows] == ["active", "active", "fenced", "active"]
    assert [row[4] for row in rows] == ["controller", "voter", "voter", "observer"]
    assert [row[5:] for row in rows] == [
        ["2", "3", "0"],
        ["2", "4", "0"],
        ["0", "3", "3"],
        ["0"] * 3,
    ]
    assert "REPLICAS" in ctl("node list --explain").err
    wide = ctl("node list -o wide").out.splitlines()[0].split()
    assert wide[-5:] == ["VERSION", "STARTED", "CONFIG", "WAITING", "KEYS"]
    found = json.loads(ctl("node describe 2 -o json").out)
    assert (found["rack"], found["leads"], len(found["partitions"])) == ("r2", 2, 4)
    assert "only what the metadata knows" in ctl("node describe 3").err
    missing = ctl("node describe 9")
    assert missing.code == 2
    assert "has no node 9; its nodes: 1, 2, 3, 4; see: dlogctl node list" in missing.err


def test_draining(ctl: Ctl, world: World) -> None:
    dry = ctl("node drain 2 --dry-run")
    assert dry.out == ("node 2: 1 leader would move\nnode 2: no other node can lead single-0\n")
    assert ctl("node drain 1 2 3 4").code == 10, "somebody must be left"
    # Nobody moves anything here: no controller acts.
    stuck = ctl("node drain 2 --patience 100ms")
    assert stuck.code == 10
    assert "nothing has moved for 0.1 s, 1 left: t-1" in stuck.err
    assert json.loads(ctl("node list -o json").out)[1]["state"] == "draining"
    world.do(elect_all(world))
    left = ctl("node drain 2")
    assert (left.code, left.out) == (0, "node 2 leads nothing that could move\n")
    assert "still leads 1 partition that no other node in sync can lead: single-0" in left.err
    assert "drained as well" not in left.err
    assert ctl("node drain 4 --replicas").out == "node 4 holds nothing\n"
    assert json.loads(ctl("node list -o json").out)[3]["state"] == "drained"
    assert ctl("node drain 3 --no-wait").out == "node 3 is draining\n"
    rows = json.loads(ctl("node undrain 2 3 4 -o json").out)
    assert [row["result"] for row in rows] == ["undrained"] * 3
    assert ctl("node drain 9").code == 2
    assert ctl("node undrain 9").code == 2


def test_that_others_are_drained_as_well_is_told(ctl: Ctl) -> None:
    """As when each of several people, or a script at once, drains a node."""
    for node_id in (3, 2):
        assert ctl(f"node drain {node_id} --no-wait").code == 0
    left = ctl("node drain 1 --keep-controller --patience 100ms")
    assert left.code == 10
    assert "that only nodes could lead which are being drained as well (2, 3)" in left.err
    assert "dlogctl node undrain 2 3" in left.err
    assert "Wait until others are in sync" not in left.err


def test_replicas_that_nobody_can_take_are_told_at_once(ctl: Ctl) -> None:
    """All other nodes that are up have a replica of them: waiting helps nobody."""
    assert ctl("node drain 4 --no-wait").code == 0
    dry = ctl("node drain 3 --replicas --dry-run")
    would = "node 3: 0 replicas would move\nnode 3: no other node can take t-0, t-1, t-2\n"
    assert dry.out == would
    left = ctl("node drain 3 --replicas")
    assert left.code == 10
    assert left.err == (
        "node 3 keeps 3 replicas that no other node can take, for all that are up and not drained"
        " have one already: t-0, t-1, t-2; they move when there is another node, or go with:"
        " dlogctl topic alter TOPIC --replication-factor N\n"
    )
    moving = ctl("node drain 2 --replicas --patience 100ms")
    assert "nothing has moved for 0.1 s, 1 left: single-0" in moving.err


def test_replicas_that_nobody_can_copy_are_told_at_once_beside_the_others(
    ctl: Ctl, world: World
) -> None:
    """The only copy is on the node, which is down: the cluster waits for it, nobody else should."""
    world.node.fence(2)
    assert ctl("node drain 4 --no-wait").code == 0
    dry = ctl("node drain 2 --replicas --dry-run").out.splitlines()
    assert dry[1:] == [
        "node 2: no other node can take t-0, t-1, t-2",
        "node 2: no node leads single-0",
    ]
    headless, stuck = ctl("node drain 2 --replicas").err.splitlines()
    assert headless == (
        "node 2 keeps 1 replica of which there is no leader to copy from: single-0;"
        " bring a node back that was in sync, see: dlogctl partition list --leaderless"
    )
    assert stuck.startswith("node 2 keeps 3 replicas that no other node can take")
    assert ctl("node drain 2").out == "node 2 leads nothing\n"
    # What is told too when something could move, and does not.
    assert ctl("node undrain 4").code == 0
    told = ctl("node drain 2 --replicas --patience 100ms")
    assert "nothing has moved for 0.1 s, 3 left: t-0, t-1, t-2;" in told.err
    assert "no leader to copy from: single-0" in told.err


async def elect_all(world: World) -> None:
    await world.node.ask(
        ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=1000
    )


def test_the_controller_is_drained_of_its_office(ctl: Ctl, world: World) -> None:
    world.quorum.on_change = lambda: world.claim(world.quorum.changes[-1][1])
    world.do(configure(world, "2", "leaders"))
    world.do(elect_all(world))
    result = ctl("node drain 1 --patience 100ms")
    assert "node 3 is the controller now" in result.err, "node 2 is drained"
    world.claim(1)
    assert "controller" not in ctl("node drain 1 --keep-controller --no-wait").err


def test_a_voter_that_is_not_up_is_not_made_the_controller(ctl: Ctl, world: World) -> None:
    """A voter may follow the metadata before it has registered, and while it is fenced."""
    state = world.quorum.state
    world.node.fence(2)
    voters = (state.voters[0], *map(replica_state, (9, 2, 3)))
    world.quorum.state = replace(state, voters=voters)
    world.quorum.on_change = lambda: world.claim(world.quorum.changes[-1][1])
    result = ctl("node drain 1 --no-wait")
    assert (result.code, result.err) == (0, "node 3 is the controller now\n")
    world.claim(1)
    for number in (2, 9):
        refused = ctl(f"controller transfer {number}")
        assert refused.code == 1
        assert f"node {number} votes, but is not up" in refused.err
        assert "those that can are 3;" in refused.err
    assert "transfer 3\n" in ctl("controller remove 1 --yes").err
    assert ctl("controller transfer").out == "node 3 is the controller now, after node 1\n"
    world.claim(1)
    world.node.fence(3)
    assert "no other healthy voter that is up" in ctl("controller transfer").err
    stays = ctl("node drain 1 --no-wait").err
    assert stays == "node 1 stays the controller: there is no other healthy voter that is up\n"


async def configure(world: World, name: str, drain: str) -> None:
    configs = [{"name": "node.drain", "config_operation": 0, "value": drain}]
    resource = {"resource_type": 4, "resource_name": name, "configs": configs}
    await world.node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])


def test_removing_a_node(ctl: Ctl, world: World) -> None:
    assert "votes on the metadata: remove it there first" in ctl("node remove 2 --yes").err
    assert "is running: stop it first" in ctl("node remove 4 --yes").err
    world.node.fence(4)
    assert ctl("node remove 4 --dry-run").out == "node 4 would be forgotten\n"
    assert ctl("node remove 4").code == 1, "it asks"
    assert ctl("node remove 4 --yes").out == "node 4 is forgotten\n"
    assert ctl("node remove 4 --yes").code == 2
    voters = tuple(each for each in world.quorum.state.voters if each.node_id != 3)
    world.quorum.state = replace(world.quorum.state, voters=voters)
    assert "holds 3 replicas (t-0, t-1, t-2)" in ctl("node remove 3 --yes").err


def test_before_a_restart(ctl: Ctl, world: World) -> None:
    fine = ctl("node pre-restart 1")
    assert fine.code == 0
    assert fine.out.startswith("node 1 may be restarted\n")
    found = json.loads(ctl("node pre-restart 2 -o json").out)
    assert found["replication_factor_1"] == found["would_go_offline"] == ["single-0"]
    world.lead_by_first("t", 0, [1])
    blocked = ctl("node pre-restart 1")
    assert blocked.code == 10
    assert "t-0 would have fewer replicas in sync" in blocked.out
    assert "would go offline: 1\n" in blocked.out
    assert "may_restart\tno\n" in ctl("node pre-restart 1 -o tsv").out
    assert ctl("node pre-restart 9").code == 2


def test_controllers_are_listed(ctl: Ctl) -> None:
    shown = ctl("controller list --explain")
    assert shown.code == 0
    assert "healthy voters:      3 of 2 needed\n" in shown.out
    assert [line.split()[1] for line in shown.out.splitlines()[5:]] == [
        *("controller", "voter", "voter", "observer"),
    ]
    found = json.loads(ctl("controller list -o json").out)
    assert [each["lag"] for each in found["nodes"]] == [0, 2, 0, 3]
    assert found["failures_tolerated"] == 1


def test_voters_come_and_go(ctl: Ctl, world: World) -> None:
    assert ctl("controller add 4 --address n4:9093 --dry-run").out == (
        "node 4 would vote, at n4:9093: 4 voters, of which 1 may fail\n"
    )
    assert not world.quorum.changes
    assert ctl("controller add 4 --address n4:9093").code == 0
    assert world.quorum.changes.pop() == (Operation.ADD, 4, "n4", 9093)
    assert "has no metadata.listener of its own" in ctl("controller add 4").err
    assert ctl("controller add 4 --address nonsense").code == 64
    assert "does not follow the metadata; those that do are 4" in ctl("controller add 9").err
    world.quorum.outcome = Refused(code=InvalidRequestError.code, message="Not yet.")
    refused = ctl("controller add 4 --address n4:9093")
    assert refused.err == "dlogctl: Not yet; see: dlogctl controller list\n"
    assert ctl("controller remove 3 --yes").code == 1
    world.quorum.changes.clear()
    state = world.quorum.state
    silent = replace(replica_state(2), last_fetch_ms=-1)
    world.quorum.state = replace(state, voters=(state.voters[0], silent, state.voters[2]))
    lost = ctl("controller remove 3 --yes")
    assert "only 1 of 2 voters would be healthy, and 2 are needed" in lost.err
    assert ctl("controller remove 2 --dry-run").code == 0, "a silent one may go"
    world.quorum.state = replace(state, voters=state.voters[:1])
    assert "is the only voter" in ctl("controller remove 1 --yes").err
    assert not world.quorum.changes


def test_a_voter_with_a_new_disk_is_removed_first(ctl: Ctl, world: World) -> None:
    assert ctl("controller add 2").err == (
        "dlogctl: node 2 votes already; see: dlogctl controller list\n"
    )
    state = world.quorum.state
    new_disk = replace(replica_state(2), directory_id=UUID(int=77))
    world.quorum.state = replace(state, observers=(*state.observers, new_disk))
    refused = ctl("controller add 2")
    assert refused.code == 1
    assert "a new disk" in refused.err
    assert refused.err.endswith(
        "first: dlogctl controller remove 2, then: dlogctl controller add 2\n"
    )
    assert ctl("controller remove 2 --yes").code == 0


def test_a_lost_quorum_is_told(ctl: Ctl, world: World) -> None:
    world.quorum.state = replace(world.quorum.state, leader_id=None)
    lost = ctl("controller list")
    assert lost.code == 1
    assert "the controllers are unknown" in lost.err
    assert "bring controllers back" in lost.err
    sick = ctl("status")
    assert sick.code == 10
    assert "no controller leads: " in sick.out
    document = json.loads(ctl("status -o json").out)
    assert document["controller"] is None
    assert {each["role"] for each in document["nodes"]} == {None}, "nobody knows"


def test_partitions_are_listed(ctl: Ctl, world: World) -> None:
    world.lead_by_first("t", 0, [1, 2])

    def names(line: str) -> list[tuple[str, int]]:
        found = json.loads(ctl(f"partition list {line} -o json").out)
        return [(each["topic"], each["partition"]) for each in found]

    assert names("") == [("single", 0), ("t", 0), ("t", 1), ("t", 2)]
    assert names("t-1 single") == [("t", 1), ("single", 0)]
    assert names("--under-replicated") == [("t", 0)]
    assert names("--node 3") == [("t", 0), ("t", 1), ("t", 2)]
    assert names("--leaderless") == names("--not-preferred") == []
    world.node.fence(2)
    assert names("--leaderless") == [("single", 0)]
    assert names("t --not-preferred") == [("t", 1)]


def test_moving_and_electing(ctl: Ctl, world: World, tmp_path: Path) -> None:
    begun = ctl("partition reassign t-0=4,1 t-1=9")
    assert begun.code == 1
    assert begun.out == "begun to move: 1 partition\n"
    assert begun.err.startswith("t-1: INVALID_REPLICA_ASSIGNMENT: ")
    (row,) = json.loads(ctl("partition reassignments -o json").out)
    assert (row["topic"], row["partition"], row["adding"]) == ("t", 0, [4])
    assert (row["removing"], row["in_sync"]) == ([2, 3], [])
    assert ctl("partition reassignments single").err == "nothing moves\n"
    world.lead_by_first("t", 0, [1, 2, 3, 4])
    assert json.loads(ctl("partition reassignments -o json").out) == []
    assert ctl("partition elect").out == "new leaders: 1 partition\n"
    assert ctl("partition elect t").out == "new leaders: 0 partitions\n"
    ctl("partition reassign t-1=4")
    assert "moves in progress continue: t-1; to end them" in ctl("node undrain 2").err
    assert ctl("node undrain 4").err == ""
    assert ctl("partition reassign --cancel t").out == "cancelled: 1 partition\n"
    nothing = ctl("partition reassign --cancel t-1 -o json")
    assert nothing.code == 1
    assert json.loads(nothing.out)[0]["error"] == "NO_REASSIGNMENT_IN_PROGRESS"
    for line in ("", "t-0", "t-0=x", "--cancel --wait t", "--file /etc/hosts --cancel"):
        assert ctl(f"partition reassign {line}").code == 64
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    assert 'looks like {"version": 1' in ctl(f"partition reassign --file {plan}").err
    assert ctl("partition elect --unclean").code == 64
    assert ctl("partition elect t --unclean").code == 1, "it asks"
    world.node.fence(2)
    code = ctl("partition elect single --unclean --yes")
    assert code.code == 1
    assert "ELIGIBLE_LEADERS_NOT_AVAILABLE" in code.err


def test_a_move_that_somebody_cancels_meanwhile_is_not_told_as_done(
    ctl: Ctl, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not `time.sleep` itself: what other threads of the tests wait by is no look.
    def look_again(_: float) -> None:
        assert ctl("partition reassign --cancel t-0").code == 0
        world.lead_by_first("t", 1, [1, 2, 4])

    monkeypatch.setattr(partition_change, "time", SimpleNamespace(sleep=look_again))
    ended = ctl("partition reassign t-0=4,1 t-1=1,2,4 --wait")
    assert (ended.code, ended.out) == (1, "moved: 1 partition\n")
    why = "the move was cancelled or replaced by another one; the replicas are 1,2,3"
    assert ended.err == f"t-0: NO_REASSIGNMENT_IN_PROGRESS: {why}\n"


def test_a_repair_waits_until_the_old_log_is_deleted(
    ctl: Ctl, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the node, which has other things to do, would keep it, as it is."""
    replicas_seen: list[tuple[int, ...]] = []
    held = LogDir(path="/d", online=True, partitions=[(TopicPartition("t", PartitionId(0)), 7)])
    world.node.log_dirs = [held]

    def look_again(_: float) -> None:
        state = world.node.image.topics["t"].partitions[0]
        replicas_seen.append(tuple(state.replicas))
        if len(replicas_seen) == 4:
            world.node.log_dirs = [replace(held, partitions=[])]
        if 3 in state.replicas:
            world.lead_by_first("t", 0, [1, 2, 3])

    monkeypatch.setattr(partition_repair, "time", SimpleNamespace(sleep=look_again))
    done = ctl("partition repair t-0 --node 3 --yes")
    assert (done.code, done.out) == (0, "t-0: the replica on node 3 is in sync\n"), done.err
    assert replicas_seen == [(1, 2)] * 4 + [(1, 2, 3)]


def test_a_topic_is_created_on_chosen_nodes(ctl: Ctl, world: World) -> None:
    assert ctl("topic create chosen --assign 3,1 --assign 1,4").code == 0
    replicas = [each.replicas for each in world.node.image.topics["chosen"].partitions]
    assert replicas == [(3, 1), (1, 4)]
    assert ctl("topic create other --assign 3,1 -p 2").code == 64
    assert ctl("topic create other --assign x").code == 64


def test_status_names_nodes_that_are_down(ctl: Ctl, world: World) -> None:
    world.node.fence(3)
    document = json.loads(ctl("status -o json").out)
    assert not document["healthy"]
    assert "node 3 is fenced: it is down, or cannot be reached" in document["reasons"]
    assert [each["state"] for each in document["nodes"]][2] == "fenced"
    assert [each["role"] for each in document["nodes"]] == [
        *("controller", "voter", "voter", "observer"),
    ]
    assert document["metadata"]["voters"][1]["lag"] == 2
    assert "lag of voters:         1:0,2:2,3:0\n" in ctl("status").out


def test_a_node_that_was_just_fenced_is_not_asked(ctl: Ctl, world: World) -> None:
    """Clients hear of it for a moment more; nothing can be asked of it."""
    before, context = world.node.image, world.node.context
    world.node.fence(3)
    context.lingering.on_image(before, world.node.image, context.clock.now_ms())
    document = json.loads(ctl("status -o json").out)
    assert [each["state"] for each in document["nodes"]][2] == "fenced"
    assert [each for each in document["notes"] if "node 3" in each] == []
