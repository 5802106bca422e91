"""Three bare hosts become a cluster, which is upgraded while clients write and nobody notices.

The short form; `make appliance` has the rest.
"""

from tests.hosts.appliance.cluster import NEW, OLD, Cluster
from tests.hosts.appliance.forms import short_form

pytestmark = short_form
STALL_S_MAX = 10.0  # a machine with other work; `make appliance` has the figures
LITTLE = "systemctl cat dlogd.service; id dlog; ls /opt/dlog /etc/dlog /var/lib/dlog"


def test_a_check_of_bare_hosts_changes_nothing(bare: Cluster) -> None:
    bare.bundles.build([OLD, NEW])
    before = bare.fingerprints()
    played = bare.plays.must("site", "-e", bare.bundle(OLD), "--check", "--diff")
    assert set(played.recap) == {"h1", "h2", "h3"}
    assert played.changed > 0
    assert "dlog.yaml" in played.output
    assert bare.fingerprints() == before
    for host in bare.hosts:
        assert host.enter(LITTLE, check=False).stdout == ""


def test_a_second_run_of_site_changes_nothing(cluster: Cluster) -> None:
    pids = cluster.pids()
    assert all(pids)
    played = cluster.plays.must("site", "-e", cluster.bundle(OLD))
    assert {name: each.changed for name, each in played.recap.items()} == {
        "h1": 0,
        "h2": 0,
        "h3": 0,
    }
    assert cluster.pids() == pids


def test_dlogctl_needs_no_option_on_any_host(cluster: Cluster) -> None:
    for host in cluster.hosts:
        assert "healthy" in host.ssh("dlogctl status").stdout
        assert host.ssh("cat /etc/dlog/secret", check=False).returncode


def test_a_damaged_bundle_is_refused_before_anything_is_changed(cluster: Cluster) -> None:
    before = cluster.fingerprints()
    damaged = cluster.bundles.damaged(NEW)
    played = cluster.plays.play("upgrade", "-e", f"dlog_bundle={damaged}")
    assert played.code != 0
    assert "The bundle is damaged: wheels/" in played.words
    assert "No host was changed." in played.words
    assert cluster.fingerprints() == before


def test_nobody_who_writes_notices_an_upgrade(cluster: Cluster) -> None:
    starts = cluster.starts()
    with cluster.outside("upgrade", measured=3) as outside:
        played = cluster.plays.must("upgrade", "-e", cluster.bundle(NEW))
    outside.checked.must_be_clean()
    assert outside.checked.stall_s < STALL_S_MAX
    assert sorted(played.order) == ["h1", "h2", "h3"]
    assert cluster.current() == {"h1": NEW, "h2": NEW, "h3": NEW}
    assert cluster.starts() == [count + 1 for count in starts]
    assert cluster.drained() == []
    assert cluster.lock() is None
