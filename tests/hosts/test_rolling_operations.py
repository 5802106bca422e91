"""No client notices a rolling operation: restarts, upgrades, the way back, restarts by hand.

The long form; figures go to the file that DLOG_APPLIANCE_RESULTS names.
"""

from tests.hosts.appliance.cluster import NEW, NEWEST, OLD, Cluster
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
STALL_S_MAX = 0.5


def test_a_rolling_restart(cluster: Cluster) -> None:
    starts = cluster.starts()
    with cluster.outside("rolling restart") as outside:
        played = cluster.plays.must("rolling_restart")
    outside.checked.must_be_clean()
    assert outside.checked.stall_s < STALL_S_MAX
    assert sorted(played.order) == ["h1", "h2", "h3"]
    assert cluster.starts() == [count + 1 for count in starts]


def test_an_upgrade_another_one_and_the_way_back(cluster: Cluster) -> None:
    for version in (NEW, NEWEST, OLD):
        starts = cluster.starts()
        bundle = cluster.bundle(version)
        with cluster.outside(f"upgrade to {version}") as outside:
            played = cluster.plays.must("upgrade", "-e", bundle)
        outside.checked.must_be_clean()
        assert outside.checked.stall_s < STALL_S_MAX
        assert sorted(played.order) == ["h1", "h2", "h3"]
        assert set(cluster.current().values()) == {version}
        assert cluster.starts() == [count + 1 for count in starts]


def test_an_upgrade_to_what_runs_restarts_nobody(cluster: Cluster) -> None:
    pids = cluster.pids()
    (version,) = set(cluster.current().values())
    played = cluster.plays.must("upgrade", "-e", cluster.bundle(version))
    assert "No node has to be restarted." in played.words
    assert played.changes == []
    assert cluster.pids() == pids


def test_site_with_another_version_restarts_nobody(cluster: Cluster) -> None:
    pids, current = cluster.pids(), cluster.current()
    played = cluster.plays.must("site", "-e", cluster.bundle(NEWEST))
    assert cluster.pids() == pids
    assert cluster.current() == current
    assert "node 1 waits for a restart" in played.words


def test_restarts_by_hand(cluster: Cluster) -> None:
    for host in cluster.hosts:
        with cluster.outside(f"systemctl restart on {host.name}", is_rolling=False) as outside:
            host.ssh("sudo systemctl restart dlogd", timeout=60)
            assert cluster.is_healthy()
        outside.checked.must_be_clean()
        assert outside.checked.stall_s < STALL_S_MAX


def test_topics_that_no_wait_can_help_do_not_block(cluster: Cluster) -> None:
    first = cluster.hosts[0]
    first.ssh("dlogctl topic create alone -p 3 -r 1")
    first.ssh("dlogctl topic create tight -p 3 -r 2 -s min.insync.replicas=2")
    try:
        starts = cluster.starts()
        cluster.plays.must("rolling_restart")
        assert cluster.starts() == [count + 1 for count in starts]
    finally:
        first.ssh("dlogctl topic delete alone --yes; dlogctl topic delete tight --yes")
