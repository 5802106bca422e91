"""Plays stop before they touch anything, and name the reason: hosts, the cluster, other operators.

The long form.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.hosts.appliance.cluster import NEW, Cluster
from tests.hosts.appliance.forms import long_form
from tests.hosts.appliance.plays import Played
from tests.hosts.rig.commands import await_that

pytestmark = long_form
PATIENCE = ("-e", "dlog_patience=5")
CUT_S_MAX = 60.0  # 30 on idle cores
HELD_BACK = "held-back"
BYTES = 4_000_000
UP_S = 30.0


@contextmanager
def untouched(cluster: Cluster) -> Iterator[None]:
    """Check that a block leaves every host as it is."""
    before = cluster.fingerprints()
    yield
    assert cluster.fingerprints() == before


def refused(played: Played, *reasons: str) -> None:
    """Check that a play was refused for these reasons."""
    assert played.code != 0, played.end
    for reason in reasons:
        assert reason in played.words, played.end


def test_a_host_without_ssh(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    second.mask_ssh()
    try:
        with untouched(cluster):
            for limit in ((), ("--limit", "h1")):
                played = cluster.plays.play("rolling_restart", *limit)
                refused(played, "h2 cannot be reached. Nothing was changed.")
            played = cluster.plays.play("upgrade", "-e", cluster.bundle(NEW))
            refused(played, "h2 cannot be reached. Nothing was changed.")
    finally:
        second.unmask_ssh()


def test_a_host_that_was_cut_off_while_a_connection_is_open(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    cluster.plays.ping()
    with untouched(cluster):
        second.cut()
        try:
            played = cluster.plays.play("rolling_restart")
        finally:
            second.heal()
        refused(played, "h2 cannot be reached. Nothing was changed.")
        print(f"cut off: the play ended after {played.seconds:.1f} s")
        assert played.seconds < CUT_S_MAX
        assert cluster.is_healthy()


def test_a_node_that_is_down(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    second.enter("systemctl stop dlogd")
    try:
        with untouched(cluster):
            refused(cluster.plays.play("rolling_restart", *PATIENCE), "No node was touched.")
            played = cluster.plays.play("upgrade", "-e", cluster.bundle(NEW), *PATIENCE)
            refused(played, "No node was touched.")
    finally:
        second.enter("systemctl start dlogd")


def test_partitions_at_min_isr_while_all_nodes_are_up(cluster: Cluster) -> None:
    first, second = cluster.hosts[:2]
    first.ssh(f"dlogctl topic create {HELD_BACK} -p 3 -r 3 -s min.insync.replicas=2")
    first.ssh(
        f"dlogctl config set --topic {HELD_BACK} 'follower.replication.throttled.replicas=*'"
        " && dlogctl config set --node 2 follower.replication.throttled.rate=1"
    )
    second.enter("systemctl stop dlogd")
    first.ssh(f"dlogctl perf produce {HELD_BACK} -n {BYTES // 1000} -s 1000 -q")
    second.enter("systemctl start dlogd")
    try:
        assert await_that(lambda: cluster.states() == ["active"] * 3, UP_S)
        with untouched(cluster):
            refused(cluster.plays.play("rolling_restart", *PATIENCE), "No node was touched.")
    finally:
        first.ssh("dlogctl config unset --node 2 follower.replication.throttled.rate")
        first.ssh(f"dlogctl topic delete {HELD_BACK} --yes")


def test_a_reassignment_under_way(cluster: Cluster) -> None:
    with cluster.moving(), untouched(cluster):
        played = cluster.plays.play("rolling_restart", *PATIENCE)
        refused(played, "Replicas are being moved.", "No node was touched.")


def test_a_second_play(cluster: Cluster) -> None:
    starts = cluster.starts()
    playing = cluster.plays.start("rolling_restart")
    playing.await_task("Wait until it may be restarted")
    refused(cluster.plays.play("rolling_restart"), "rolling restart by", "No node was touched.")
    drain = cluster.hosts[0].ssh("dlogctl node drain 2", check=False)
    assert drain.returncode != 0
    assert "rolling restart by" in drain.stderr
    assert playing.end().code == 0
    assert cluster.starts() == [count + 1 for count in starts]


def test_a_limit_restarts_only_what_it_names(cluster: Cluster) -> None:
    starts = cluster.starts()
    cluster.plays.must("rolling_restart", "--limit", "h2")
    assert cluster.starts() == [starts[0], starts[1] + 1, starts[2]]


def test_plays_that_cannot_be_tried_out(cluster: Cluster) -> None:
    with untouched(cluster):
        for playbook in ("rolling_restart", "upgrade", "add_node", "remove_node"):
            played = cluster.plays.play(playbook, "-e", cluster.bundle(NEW), "--check")
            refused(played, "This play cannot be tried out with --check.")
