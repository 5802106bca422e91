"""`dlogctl` and the replicas of a cluster of three real nodes: compared, repaired, throttled."""

import json
from pathlib import Path

from tests.daemon.test_dlogctl_cluster import Sandbox, sandbox

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
    assert "would fetch" in sandbox.ok(f"partition repair looked-0 --node {victim} --dry-run")
    sandbox.ok(f"partition repair looked-0 --node {victim} --yes")
    assert sandbox.json("partition verify looked") == []
    (row,) = sandbox.json("partition list looked")
    assert (row["leader"], set(row["isr"])) == (leader, {1, 2, 3})
    sandbox.ok("topic delete looked --yes")


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
    assert (code, "goes with --wait" in err) == (64, True)
    sandbox.ok("topic delete heavy --yes")
