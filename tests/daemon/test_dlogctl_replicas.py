"""`dlogctl` and the replicas of a cluster of three real nodes: compared, repaired, throttled."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.daemon.commands import CTL
from tests.daemon.process import environment
from tests.daemon.sandboxes import Sandbox, sandbox

__all__ = ["sandbox"]  # the fixture, of this module's own cluster


def _fill(sandbox: Sandbox, topic: str, count: int) -> None:
    """Write records, one to a line."""
    code, _, err = sandbox.run(
        f"perf produce {topic} --records {count} --size 1000 --acks all -o json"
    )
    assert code == 0, err


def _log_file(sandbox: Sandbox, node: int, topic: str) -> Path:
    """Return the first segment of a replica."""
    (found,) = sandbox.directory.glob(f"node-{node}/**/topics/{topic}-0.*/{0:020d}.log")
    return found


def _in_sync(sandbox: Sandbox, topic: str) -> bool:
    (row,) = sandbox.json(f"partition list {topic}")
    return set(row["isr"]) == set(row["replicas"])


def test_replicas_are_compared_and_repaired(sandbox: Sandbox) -> None:
    sandbox.ok("topic create looked -r 3 -c min.insync.replicas=2")
    _fill(sandbox, "looked", 2000)
    sandbox.until(lambda: _in_sync(sandbox, "looked"))
    assert sandbox.json("partition verify looked") == []
    assert sandbox.json("partition verify looked --from 2000") == []
    beyond = sandbox.refused(f"partition verify looked --from {10**20}", code=64)
    assert f"--from {10**20} lies beyond the end of looked-0, which is 2000" in beyond
    (row,) = sandbox.json("partition list looked")
    leader = row["leader"]
    victim = next(each for each in row["replicas"] if each != leader)
    path = _log_file(sandbox, victim, "looked")
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xee" * 20)
    code, out, _ = sandbox.run("partition verify looked -o json")
    found = json.loads(out)
    assert code == 10
    assert {(each["node"], each["what"]) for each in found} == {(victim, "damaged")}
    assert found[0]["first_offset"] < found[0]["next_offset"]

    assert "let another one lead first" in sandbox.refused(
        f"partition repair looked-0 --node {leader} --yes"
    )
    assert "no partition 3" in sandbox.refused("partition repair looked-3 --node 1 --yes")
    assert "would delete and refetch" in sandbox.ok(
        f"partition repair looked-0 --node {victim} --dry-run"
    )
    sandbox.ok(f"partition repair looked-0 --node {victim} --yes")
    assert sandbox.json("partition verify looked") == []
    (row,) = sandbox.json("partition list looked")
    assert (row["leader"], set(row["isr"])) == (leader, {1, 2, 3})
    sandbox.ok("topic delete looked --yes")


def test_a_replica_is_repaired_while_another_one_is_away(sandbox: Sandbox) -> None:
    sandbox.ok("topic create apart --assign 1,2,3 -c min.insync.replicas=1")
    _fill(sandbox, "apart", 200)
    os.kill(sandbox.pid(3), signal.SIGSTOP)
    try:
        sandbox.until(lambda: sandbox.json("partition list apart")[0]["isr"] == [1, 2])
        sandbox.until(
            lambda: "node 3 is down" in sandbox.run("partition repair apart-0 --node 3 --yes")[2]
        )
        code, out, err = sandbox.run("partition repair apart-0 --node 2 --yes")
        assert (code, out) == (0, "apart-0: the replica on node 2 is in sync\n"), err
        assert "if this command is interrupted: dlogctl partition reassign apart-0=1,2,3" in err
        (row,) = sandbox.json("partition list apart")
        assert (row["replicas"], row["isr"]) == ([1, 2, 3], [1, 2])
    finally:
        os.kill(sandbox.pid(3), signal.SIGCONT)
    sandbox.until(lambda: _in_sync(sandbox, "apart"))
    sandbox.ok("topic delete apart --yes")


def test_what_moves_is_not_repaired(sandbox: Sandbox) -> None:
    sandbox.ok("topic create slow --assign 1,2 -c follower.replication.throttled.replicas=*")
    _fill(sandbox, "slow", 2000)
    sandbox.ok("config set follower.replication.throttled.rate=1")
    (said,) = [note for note in sandbox.json("status")["notes"] if "throttled" in note]
    assert "follower.replication.throttled.rate is 1 B a second on nodes 1, 2, 3" in said
    sandbox.ok("partition reassign slow-0=1,2,3")
    assert "slow-0 is being reassigned" in sandbox.refused("partition repair slow-0 --node 2 --yes")
    assert "slow is a topic" in sandbox.refused("partition repair slow --node 2 --yes")
    twice = sandbox.refused("partition reassign slow-0=1,2 slow-0=2,3", code=64)
    assert "slow-0 is named twice" in twice
    sandbox.ok("partition reassign --cancel slow-0")
    sandbox.ok("config unset follower.replication.throttled.rate")
    sandbox.ok("partition repair slow-0 --node 2 --yes")
    sandbox.ok("topic delete slow --yes")


def test_the_replication_factor_changes(sandbox: Sandbox) -> None:
    sandbox.ok("topic create grown --assign 1")
    _fill(sandbox, "grown", 200)
    assert "replication.factor: 1" in sandbox.ok("topic alter grown -r 3 --dry-run")
    sandbox.ok("topic alter grown -r 3")
    sandbox.until(lambda: len(sandbox.json("partition list grown")[0]["isr"]) == 3)
    assert sandbox.json("partition verify grown") == []
    assert "cannot have 4 replicas" in sandbox.refused("topic alter grown -r 4")
    sandbox.ok("topic alter grown -r 2")
    sandbox.until(lambda: len(sandbox.json("partition list grown")[0]["replicas"]) == 2)
    sandbox.ok("topic delete grown --yes")


def test_a_move_is_throttled_and_tells_how_far_it_is(sandbox: Sandbox) -> None:
    sandbox.ok("topic create heavy --assign 1,2")
    _fill(sandbox, "heavy", 3000)
    line = "partition reassign heavy-0=1,2,3 --wait --throttle 1500000"
    code, out, err = sandbox.run(line)
    assert (code, out) == (0, "moved: 1 partition\n"), err
    assert "1 partition of 1 still to move" in err and "to fetch" in err
    configs = {each["name"]: each["value"] for each in sandbox.json("config show --topic heavy")}
    assert not configs.get("leader.replication.throttled.replicas")
    cluster = {each["name"] for each in sandbox.json("config show")}
    assert "leader.replication.throttled.rate" not in cluster
    code, _, err = sandbox.run("partition reassign heavy-0=1,2 --throttle 1MiB")
    assert (code, "--throttle needs --wait" in err) == (64, True)
    sandbox.ok("topic delete heavy --yes")


def test_a_move_takes_no_throttle_away_that_it_has_not_set(sandbox: Sandbox) -> None:
    names = [f"{who}.replication.throttled.replicas" for who in ("leader", "follower")]
    sandbox.ok(f"topic create kept --assign 1,2 -c {names[1]}=7:3")
    _fill(sandbox, "kept", 200)
    rate = "leader.replication.throttled.rate"
    sandbox.ok(f"config set {rate}=50000000")
    line = "partition reassign kept-0=1,2,3 --wait --throttle 30MiB"
    code, out, err = sandbox.run(line)
    assert (code != 0, out) == (True, "") and f"{rate} is 50000000 already" in err
    assert sandbox.json("partition list kept")[0]["replicas"] == [1, 2]
    assert [each["value"] for each in sandbox.json("config show") if each["name"] == rate] == [
        "50000000"
    ]
    sandbox.ok(f"config unset {rate}")
    sandbox.ok(line)
    configs = {each["name"]: each["value"] for each in sandbox.json("config show --topic kept")}
    assert [configs.get(name) or "" for name in names] == ["", "7:3"]
    sandbox.ok("topic delete kept --yes")


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (signal.SIGTERM, "dlogctl: interrupted"),
        (None, "dlogctl: deleted before it was moved: brief"),
    ],
)
def test_a_throttle_goes_with_the_command_whatever_ends_it(
    sandbox: Sandbox, ending: signal.Signals | None, said: str
) -> None:
    sandbox.ok("topic create brief --assign 1,2")
    _fill(sandbox, "brief", 2000)
    line = "partition reassign brief-0=1,2,3 --wait --throttle 1"
    env = environment({"DLOG_BOOTSTRAP": sandbox.bootstrap, "DLOG_TIMEOUT": "30s"})
    with subprocess.Popen([*CTL, *line.split()], stderr=subprocess.PIPE, text=True, env=env) as one:
        assert one.stderr is not None
        assert "1 partition of 1 still to move" in one.stderr.readline()
        assert [row["adding"] for row in sandbox.json("partition reassignments brief")] == [[3]]
        if ending is None:
            sandbox.ok("topic delete brief --yes")
        else:
            one.send_signal(ending)
        assert said in one.stderr.read()
        assert one.wait(60) == 1
    assert not [each for each in sandbox.json("config show") if "throttled" in each["name"]]
    if ending is not None:
        configs = sandbox.json("config show --topic brief")
        assert not any("throttled" in each["name"] and each["value"] for each in configs)
        sandbox.ok("topic delete brief --yes")
