"""Scenarios that find what a gate of the plays prevents, and the plays that lack one gate each."""

import json
from collections.abc import Callable
from contextlib import suppress

from tests.hosts.appliance.cluster import NEW, Cluster
from tests.hosts.appliance.mutants import Mutant
from tests.hosts.appliance.outside import MEASURED, make_topic
from tests.hosts.appliance.plays import CLUSTER, Played, Plays
from tests.hosts.rig.commands import await_that

PATIENCE = ("-e", "dlog_patience=5")
FOREIGN = "192.0.2.1"
"""An address of no host (RFC 5737)."""
RESTART = "dlogd-restart.service"
AT_WORK = f"systemctl is-active --quiet {RESTART}"
AT_WORK_S = 60.0
WAITS = "Wait until no host restarts its node"
DRAIN = "Drain, stop, change, start, wait, undrain"


def _refusal(cluster: Cluster, played: Played, starts: list[int], *reasons: str) -> list[str]:
    """Return what is wrong with a play that has to be refused for these reasons."""
    found = [] if played.code else ["the play was not refused"]
    found += [f"it does not say: {each}" for each in reasons if each not in played.words]
    return found + ([] if cluster.starts() == starts else ["nodes were restarted"])


def no_ssh(cluster: Cluster, plays: Plays) -> list[str]:
    """Run a play while one host cannot be reached."""
    starts = cluster.starts()
    cluster.hosts[1].mask_ssh()
    try:
        played = plays.play("rolling_restart", "--limit", "h1", *PATIENCE)
    finally:
        cluster.hosts[1].unmask_ssh()
    return _refusal(cluster, played, starts, "h2 cannot be reached")


def node_down(cluster: Cluster, plays: Plays) -> list[str]:
    """Run a play while one node is down."""
    starts = cluster.starts()
    cluster.hosts[1].enter("systemctl stop dlogd")
    try:
        played = plays.play("rolling_restart", *PATIENCE)
        return _refusal(cluster, played, starts, "The cluster is not healthy")
    finally:
        cluster.hosts[1].enter("systemctl start dlogd")


def moving(cluster: Cluster, plays: Plays) -> list[str]:
    """Run a play while a replica is moved."""
    starts = cluster.starts()
    with cluster.moving():
        played = plays.play("rolling_restart", *PATIENCE)
        return _refusal(cluster, played, starts, "Replicas are being moved")


def locked(cluster: Cluster, plays: Plays) -> list[str]:
    """Run a play while an operator has the lock."""
    starts = cluster.starts()
    first = cluster.hosts[0]
    token = json.loads(first.ssh("dlogctl maintenance hold --owner ann -o json").stdout)["token"]
    try:
        played = plays.play("rolling_restart", *PATIENCE)
        found = _refusal(cluster, played, starts, "ann", "No node was touched")
    finally:
        first.ssh("dlogctl maintenance release --force")
    return found if token else ["there is no lock"]


def restarted(cluster: Cluster, plays: Plays) -> list[str]:
    """Restart all nodes while clients write."""
    starts = cluster.starts()
    with cluster.outside("of a mutant", measured=3) as outside:
        played = plays.play("rolling_restart", "-e", "dlog_patience=60")
    report = outside.checked
    found = [*report.breaches, *report.records["first_breaches"]]
    found += [f"clients saw {report.records['errors']}"] if report.records["failed"] else []
    found += [] if played.code == 0 else ["the play failed"]
    again = cluster.starts() == [count + 1 for count in starts]
    return found + ([] if again else ["not every node was restarted once"])


def broken_unit(cluster: Cluster, plays: Plays) -> list[str]:
    """Run a play where no start works; what it leaves is looked at."""
    with cluster.broken_units():
        played = plays.play("rolling_restart", "-e", "dlog_patience=20")
        held = cluster.lock()
    found = [] if played.code else ["the play does not fail"]
    found += [f"the lock is left: {held}"] if held else []
    if held:
        cluster.hosts[0].ssh("dlogctl maintenance release --force")
    return found


def killed(cluster: Cluster, plays: Plays) -> list[str]:
    """Kill a play while a node is restarted, and run it again while its host is still at work."""
    before, starts = cluster.time(), cluster.starts()
    playing = plays.start("rolling_restart", may_warn=True)
    playing.await_task(DRAIN)
    host = cluster.hosts[int(playing.order[0].removeprefix("h")) - 1]
    assert await_that(lambda: host.enter(AT_WORK, check=False).returncode == 0, AT_WORK_S)
    host.enter(f"systemctl kill --signal=STOP {RESTART}")
    try:
        playing.kill()
        playing.end()
        again = ("-e", f"dlog_restart_before={before}", "-e", "dlog_patience=30")
        playing = plays.start("rolling_restart", *again)
        # A play that does not wait comes to its end.
        with suppress(AssertionError):
            playing.await_task(WAITS)
    finally:
        host.enter(f"systemctl kill --signal=CONT {RESTART}", check=False)
    found = [] if playing.end().code == 0 else ["it cannot be run again"]
    if cluster.lock():
        found.append("the lock is left")
        cluster.hosts[0].ssh("dlogctl maintenance release --force")
    once = cluster.starts() == [count + 1 for count in starts]
    return found + ([] if once else ["a node was not restarted once"])


def wrong_configuration(cluster: Cluster, plays: Plays) -> list[str]:
    """Give all nodes a configuration that can be read, and with which none would start."""
    before, starts = cluster.fingerprints(), cluster.starts()
    variables = json.dumps({"dlog_config": {"http.address": f"{FOREIGN}:9644"}})
    (version,) = set(cluster.current().values())
    played = plays.play("site", "-e", cluster.bundle(version), "-e", variables)
    found = _refusal(cluster, played, starts, FOREIGN)
    return found + ([] if cluster.fingerprints() == before else ["files were changed"])


def damaged(cluster: Cluster, plays: Plays) -> list[str]:
    """Upgrade to a damaged bundle."""
    before, starts = cluster.fingerprints(), cluster.starts()
    bundle = cluster.bundles.damaged(NEW)
    played = plays.play("upgrade", "-e", f"dlog_bundle={bundle}")
    found = _refusal(cluster, played, starts, "The bundle is damaged", "No host was changed")
    return found + ([] if cluster.fingerprints() == before else ["files were changed"])


def too_few_nodes(cluster: Cluster, plays: Plays) -> list[str]:
    """Remove a node whose replicas no other node could take."""
    return _not_removed(cluster, plays, "topics have more replicas than that")


def too_few_voters(cluster: Cluster, plays: Plays) -> list[str]:
    """Remove a voter whose vote no other node could take; no topic keeps it."""
    first = cluster.hosts[0]
    first.ssh(f"dlogctl topic delete {MEASURED} --yes")
    try:
        return _not_removed(cluster, plays, "Node 3 is one of 3 voters")
    finally:
        make_topic(cluster.rig, MEASURED)


def _not_removed(cluster: Cluster, plays: Plays, reason: str) -> list[str]:
    """Return what is wrong with a removal of the third node that has to be refused."""
    starts = cluster.starts()
    played = plays.play("remove_node", "-e", "dlog_node=h3", *PATIENCE)
    found = _refusal(cluster, played, starts, reason, "No node was touched")
    members, drained = cluster.members(), cluster.drained()
    if drained:
        cluster.hosts[0].ssh("dlogctl node undrain 3", check=False)
    found += [] if members == [1, 2, 3] else [f"the cluster has nodes {members}"]
    return found + ([f"nodes {drained} are drained"] if drained else [])


def no_secret(cluster: Cluster, plays: Plays) -> list[str]:
    """Run a play on another control machine, which does not have the secret."""
    before, starts = cluster.fingerprints(), cluster.starts()
    file = plays.folder / f"dlog-{CLUSTER}.secret"
    kept = file.rename(file.with_suffix(".kept"))
    try:
        (version,) = set(cluster.current().values())
        played = plays.play("add_node", "-e", cluster.bundle(version), *PATIENCE)
        found = _refusal(cluster, played, starts, "secret is missing", "ssh h1 sudo cat")
        found += [f"{file.name} was made"] if file.exists() else []
    finally:
        kept.replace(file)
    return found + ([] if cluster.fingerprints() == before else ["files were changed"])


def even_quorum(cluster: Cluster, plays: Plays) -> list[str]:
    """Add a fourth voter. The hosts are four afterwards, so the next cluster is a new one."""
    cluster.rig.add_host()
    plays.write_inventory()
    (version,) = set(cluster.current().values())
    starts = cluster.starts()[:3]
    votes = ("-e", "dlog_voters=h1,h2,h4")
    played = plays.play("add_node", "-e", cluster.bundle(version), *votes, *PATIENCE)
    found = [] if played.code else ["the play was not refused"]
    reason = "there would be 4 voters, an even number"
    found += [] if reason in played.words else [f"it does not say: {reason}"]
    found += [] if cluster.starts()[:3] == starts else ["nodes were restarted"]
    voters = cluster.voters()
    return found + ([] if voters == [1, 2, 3] else [f"nodes {voters} vote"])


Scenario = Callable[[Cluster, Plays], list[str]]
SCENARIOS: tuple[Scenario, ...] = (
    no_ssh,
    node_down,
    moving,
    locked,
    restarted,
    broken_unit,
    killed,
    wrong_configuration,
    damaged,
    too_few_nodes,
    too_few_voters,
    no_secret,
    even_quorum,
)
ROLLING = "one_after_the_other.yml"
SERIAL = "  hosts: dlog_due\n  gather_facts: false\n  serial: 1\n"
BACKWARDS = 'order_due | reverse | list }}"\n'
LOCK = "Nobody else works on the cluster"
MUTANTS: tuple[tuple[Scenario, Mutant], ...] = (
    (no_ssh, Mutant("look_at_hosts.yml", task="Hosts answer")),
    (node_down, Mutant(ROLLING, task="The cluster can take it")),
    (moving, Mutant("tasks/steady.yml", task="Nothing moves")),
    (locked, Mutant("tasks/held.yml", task=LOCK, second=Mutant("tasks/lock.yml", task=LOCK))),
    (restarted, Mutant(ROLLING, line=SERIAL, instead=SERIAL.replace("1\n", "100%\n"))),
    (restarted, Mutant("tasks/order.yml", line="order_due }}\"\n", instead=BACKWARDS)),
    (broken_unit, Mutant("tasks/one_node.yml", task="The lock ends")),
    (killed, Mutant("tasks/left_behind.yml", task="The lock of a play that was killed ends")),
    (killed, Mutant("tasks/left_behind.yml", task="No earlier play is still at work on a host")),
    (wrong_configuration, Mutant("roles/dlogd/tasks/stage.yml", task="A start with it would work")),
    (damaged, Mutant("roles/release/tasks/unpacked.yml", task="The bundle is taken")),
    (too_few_nodes, Mutant("tasks/spared.yml", task="Enough nodes stay for every topic")),
    (too_few_voters, Mutant("tasks/spared.yml", task="The quorum stays whole")),
    (no_secret, Mutant("add_node.yml", task="The secret is the one of the cluster")),
    (even_quorum, Mutant("tasks/let_in.yml", task="The quorum stays an odd one")),
)  # fmt: skip
"""`dlogctl node restart` repeats `pre-restart`, `post-restart` and the preflight: a play that lacks
only these tasks does no harm."""
