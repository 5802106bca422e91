"""`dlogctl` against a cluster of three real nodes, as an operator uses it."""

import json
import os
import signal
from pathlib import Path

from dlog.version import VERSION
from tests.daemon.sandboxes import Sandbox
from tests.daemon.sandboxes import sandbox as sandbox


def test_status_tells_of_all_nodes(sandbox: Sandbox) -> None:
    document = sandbox.json("status")
    assert [each["node"] for each in document["nodes"]] == [1, 2, 3]
    assert sorted(each["role"] for each in document["nodes"]) == ["controller", "voter", "voter"]
    assert document["controller"] == sandbox.controller
    assert [each["node"] for each in document["metadata"]["voters"]] == [1, 2, 3]
    assert "lag of voters:" in sandbox.ok("status")


def test_the_office_of_the_controller_is_handed_over(sandbox: Sandbox) -> None:
    before = sandbox.controller
    target = before % 3 + 1
    out = sandbox.ok(f"controller transfer {target}")
    assert out == f"node {target} is the controller now, after node {before}\n"
    assert sandbox.controller == target
    assert sandbox.ok(f"controller transfer {target}") == f"node {target} is the controller\n"
    assert sandbox.ok("config get controller.node") == f"{target}\n"
    assert "is the controller now" in sandbox.ok("controller transfer")
    assert "not a healthy voter" in sandbox.refused("controller transfer 9")


def test_voters_are_removed_and_added(sandbox: Sandbox) -> None:
    leader = sandbox.controller
    other = leader % 3 + 1
    assert "hand that over first" in sandbox.refused(f"controller remove {leader} --yes")
    assert "is not a voter" in sandbox.refused("controller remove 9 --yes")
    assert "votes already" in sandbox.refused(f"controller add {other}")
    assert "does not follow the metadata" in sandbox.refused("controller add 9")
    assert "2 voters" in sandbox.ok(f"controller remove {other} --dry-run")
    assert "2 voters" in sandbox.ok(f"controller remove {other} --yes")
    document = sandbox.json("controller list")
    assert document["failures_tolerated"] == 0
    roles = {each["node"]: each["role"] for each in document["nodes"]}
    assert roles[other] == "observer"
    code, out, _ = sandbox.run("status")
    assert (code, "it was removed: take it out of `controllers`" in out) == (10, True), out
    assert "votes now" in sandbox.ok(f"controller add {other}")
    assert sandbox.json("controller list")["failures_tolerated"] == 1


def test_a_drained_node_leads_nothing(sandbox: Sandbox) -> None:
    sandbox.ok("topic create drained -p 6 -r 3")
    sandbox.ok("topic create alone --assign 2,1")
    leader = sandbox.controller
    sandbox.ok("controller transfer 2")
    assert "would move" in sandbox.ok("node drain 2 --dry-run")
    code, out, err = sandbox.run("node drain 2")
    assert (code, out) == (0, "node 2 leads nothing\n"), err
    assert "is the controller now" in err
    assert sandbox.controller != 2
    state = sandbox.node(2)
    assert (state["state"], state["leads"]) == ("drained", 0)
    assert state["replicas"] == 7
    # It takes no new replicas.
    sandbox.ok("topic create two -p 2 -r 2")
    assert sandbox.node(2)["replicas"] == 7
    # ... unless there are too few others; then it follows.
    sandbox.ok("topic create three -p 3 -r 3")
    assert sandbox.node(2)["replicas"] == 10
    assert sandbox.node(2)["leads"] == 0
    # Its leaders come back when somebody says so.
    sandbox.ok("node undrain 2")
    assert "new leaders: 3 partitions\n" in sandbox.ok("partition elect drained alone")
    assert sandbox.node(2)["leads"] == 3
    sandbox.ok("topic delete drained alone two three --yes")
    sandbox.ok(f"controller transfer {leader}")


def test_replicas_move_and_what_does_not_move_is_not_cancelled(sandbox: Sandbox) -> None:
    sandbox.ok("topic create moved --assign 1,2 --assign 1,2")
    assert sandbox.ok("partition reassign moved-1=2,1") == "begun to move: 1 partition\n"
    assert [each["replicas"] for each in sandbox.json("partition list moved")] == [[1, 2], [2, 1]]
    # The cluster elects the preferred leader by itself, too, and may be faster.
    assert sandbox.ok("partition elect moved-1").startswith("new leaders: ")
    assert sandbox.json("partition list moved --not-preferred") == []
    error = sandbox.run("partition reassign moved-0=9 moved-1=1,1")
    assert error[0] == 1
    assert error[2].count("INVALID_REPLICA_ASSIGNMENT") == 2
    assert "there is no topic gone" in sandbox.refused("partition reassign gone-0=1")
    assert "has no partition 7" in sandbox.refused("partition reassign moved-7=1")
    assert "is not PARTITION=NODE" in sandbox.refused("partition reassign moved-0", code=64)
    code, _, err = sandbox.run("partition reassign --cancel moved-0")
    assert (code, "NO_REASSIGNMENT_IN_PROGRESS" in err) == (1, True)
    assert sandbox.ok("partition reassign --cancel moved") == "cancelled: 0 partitions\n"
    sandbox.ok("topic delete moved --yes")


def test_a_move_that_is_under_way_is_cancelled(sandbox: Sandbox) -> None:
    """A byte a second: it goes on for as long as nobody cancels it."""
    sandbox.ok("topic create halted --assign 1,2 -c follower.replication.throttled.replicas=*")
    sandbox.ok("perf produce halted --records 2000 --size 1000 --acks all -o json")
    sandbox.ok("config set follower.replication.throttled.rate=1")
    assert sandbox.ok("partition reassign halted-0=3,1") == "begun to move: 1 partition\n"
    (row,) = sandbox.json("partition reassignments")
    assert (row["topic"], row["partition"]) == ("halted", 0)
    assert sandbox.ok("partition reassign --cancel halted") == "cancelled: 1 partition\n"
    assert sandbox.json("partition reassignments") == []
    (row,) = sandbox.json("partition list halted")
    assert (row["replicas"], set(row["isr"])) == ([1, 2], {1, 2})
    sandbox.ok("config unset follower.replication.throttled.rate")
    sandbox.ok("topic delete halted --yes")


def test_nodes_tell_of_their_processes(sandbox: Sandbox) -> None:
    rows = sandbox.json("node list")
    assert [row["version"] for row in rows] == [VERSION] * 3
    assert len({row["config_digest"] for row in rows}) == 3  # ports, ids and directories differ
    assert all(row["started"].endswith("Z") and row["waiting_keys"] == [] for row in rows)
    assert sandbox.json("node plan-restart") == {"due": [], "unknown": []}
    due = sandbox.json("node plan-restart --target-version 99")["due"]
    assert [row["node"] for row in due][-1] == sandbox.controller and len(due) == 3


def test_a_plan_of_kafkas_tool(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.ok("topic create planned --assign 1,2 --assign 2,1")
    plan = [{"topic": "planned", "partition": n, "replicas": [2]} for n in (0, 1)]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": plan}))
    sandbox.ok(f"partition reassign --file {path} --wait")
    assert sandbox.json("partition reassignments") == []
    assert [each["replicas"] for each in sandbox.json("partition list planned")] == [[2], [2]]
    # One copy is listed, and does not stand in the way.
    found = sandbox.json("node pre-restart 2")
    assert found["may_restart"]
    assert found["replication_factor_1"] == ["planned-0", "planned-1"]
    assert found["would_go_offline"] == ["planned-0", "planned-1"]
    code, out, err = sandbox.run("node drain 2")
    assert (code, out) == (0, "node 2 leads nothing that could move\n")
    assert "still leads 2 partitions that no other node in sync can lead" in err
    sandbox.ok("node undrain 2")
    path.write_text("[]")
    assert "no plan" in sandbox.refused(f"partition reassign --file {path}")
    sandbox.ok("topic delete planned --yes")


def test_a_dead_node_is_told_of_everywhere(sandbox: Sandbox) -> None:
    sandbox.ok("topic create guarded --assign 1,2,3 --assign 3,1,2 -s min.insync.replicas=2")
    assert "votes on the metadata" in sandbox.refused("node remove 3 --yes")
    victim = sandbox.controller
    others = [each for each in (1, 2, 3) if each != victim]
    sandbox.ok(f"topic create pair --assign {victim},{others[0]} -c min.insync.replicas=2")
    sandbox.ok(f"topic create sole --assign {victim}")
    os.kill(sandbox.pid(victim), signal.SIGKILL)
    sandbox.until(lambda: sandbox.node(victim)["state"] == "fenced")
    assert sandbox.controller in others
    (row,) = sandbox.json("topic describe pair")["partitions"]
    assert (row["leader"], row["isr"], row["eligible"]) == (others[0], [others[0]], [victim])
    assert f"waits for node {victim}, which holds all that was acknowledged" in (
        sandbox.ok("topic describe sole")
    )
    code, out, _ = sandbox.run("status")
    assert code == 10
    assert f"  - node {victim} is fenced: it is down, or cannot be reached\n" in out
    document = sandbox.json("status")
    assert [each["node"] for each in document["nodes"]] == [1, 2, 3]
    # Nobody else may be restarted now: the metadata would have no quorum, and partitions too few.
    code, out, _ = sandbox.run(f"node pre-restart {others[0]}")
    assert code == 10
    assert f"node {victim} is fenced: bring it back first" in out
    assert "the metadata would have no quorum" in out
    assert "guarded-0, guarded-1 would have fewer replicas in sync" in out
    sandbox.until(lambda: "is silent" in sandbox.run("status")[1])
    error = sandbox.refused(f"controller remove {others[0]} --yes")
    assert "the quorum would be lost" in error or "hand that over first" in error
    assert "votes on the metadata" in sandbox.refused(f"node remove {victim} --yes")
    code, out, _ = sandbox.run(f"node post-restart {victim} --no-wait")
    assert code == 10 and "it is fenced" in out
    epoch = sandbox.epoch(victim, others[0])
    # A node that is down is drained all the same.
    sandbox.ok(f"node drain {victim} --no-wait")
    assert sandbox.json(f"node describe {victim}")["drain"] == "leaders"
    sandbox.ok(f"node undrain {victim}")
    sandbox.restart(victim)
    back = sandbox.json(f"node post-restart {victim} --since {epoch}")
    assert (back["is_back"], back["reasons"]) == (True, [])
    assert sandbox.epoch(victim, others[0]) > epoch
    assert sandbox.node(victim)["state"] == "active"
    code, out, _ = sandbox.run(f"node post-restart {victim} --since {10**9} --no-wait")
    assert code == 10 and f"it has not registered since epoch {10**9}" in out
    sandbox.ok("topic delete pair --yes")
    sandbox.ok("topic delete sole --yes")


def test_without_a_quorum_nothing_changes_and_the_message_says_what_to_do(
    sandbox: Sandbox,
) -> None:
    sandbox.until(lambda: sandbox.json("controller list")["failures_tolerated"] == 1)
    victims = [each for each in (1, 2, 3) if each != sandbox.controller]
    for each in victims:
        os.kill(sandbox.pid(each), signal.SIGSTOP)
    try:
        code, out, err = sandbox.run("status --timeout 3s")
        assert code in (2, 10), (out, err)
        code, out, err = sandbox.run("topic create late -p 1 -r 1 --timeout 8s")
        assert (code, out) == (1, ""), err
        assert "nothing was changed; bring back controllers" in err
    finally:
        for each in victims:
            os.kill(sandbox.pid(each), signal.SIGCONT)
    sandbox.until(lambda: sandbox.run("controller transfer --timeout 5s")[0] == 0)
