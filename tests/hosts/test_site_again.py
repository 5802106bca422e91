"""`site.yml` on hosts with disks of their own, and on a cluster that runs.

The long form.
"""

import json

from tests.hosts.appliance.cluster import OLD, Cluster
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
DISK_MB = 400
PLACE = "/srv/dlog"
RESTART_KEY, RESTART_VALUE = "recovery.parallelism", 3


def test_site_formats_an_empty_disk_once(bare: Cluster) -> None:
    disks = {host.name: host.disk(DISK_MB) for host in bare.hosts}
    own = {
        name: f"dlog_disks='{json.dumps([{'device': disk.path, 'path': PLACE}])}'"
        for name, disk in disks.items()
    }
    bare.plays.write_inventory(own, {"dlog_data_directories": f"['{PLACE}/data']"})
    bare.plays.must("site", "-e", bare.bundle(OLD))
    first = bare.hosts[0]
    assert first.enter(f"stat -c %U {PLACE}/data; findmnt -no FSTYPE,OPTIONS {PLACE}").stdout
    assert "noatime" in first.enter(f"findmnt -no OPTIONS {PLACE}").stdout
    identity = first.enter(f"cat {PLACE}/data/identity").stdout
    assert bare.plays.must("site", "-e", bare.bundle(OLD)).changes == []
    assert first.enter(f"cat {PLACE}/data/identity").stdout == identity
    # A disk that is missing at a boot: nothing is written where it should be.
    first.enter(f"systemctl stop dlogd && umount {PLACE}")
    assert first.enter(f"stat -c %U {PLACE}; ls -A {PLACE}").stdout.split() == ["root"]
    first.enter("systemctl start dlogd")
    assert bare.is_healthy()
    assert first.enter(f"findmnt -no FSTYPE {PLACE}").stdout.strip() == "xfs"


def test_a_check_of_a_running_cluster_shows_and_changes_nothing(cluster: Cluster) -> None:
    before = cluster.fingerprints()
    variables = json.dumps({"dlog_config": {RESTART_KEY: RESTART_VALUE}})
    arguments = ("-e", cluster.bundle(OLD), "-e", variables, "--check", "--diff")
    played = cluster.plays.must("site", *arguments)
    assert f"+{RESTART_KEY}: {RESTART_VALUE}" in played.output
    assert cluster.fingerprints() == before


def test_the_secret_is_in_no_output(cluster: Cluster) -> None:
    secret = next(cluster.plays.folder.glob("dlog-*.secret"))
    assert secret.stat().st_mode & 0o777 == 0o600
    played = cluster.plays.must("site", "-e", cluster.bundle(OLD), "-vvv", "--diff")
    assert secret.read_text().strip() not in played.output
    for host in cluster.hosts:
        shown = host.enter("stat -c '%U %a' /etc/dlog/secret").stdout
        assert shown.split() == ["dlog", "400"]


def test_a_key_is_reloaded_and_another_one_waits_for_a_rolling_restart(cluster: Cluster) -> None:
    pids, starts = cluster.pids(), cluster.starts()
    reloaded = json.dumps({"dlog_config": {"http.connections.per_ip.max": 9}})
    played = cluster.plays.must("site", "-e", cluster.bundle(OLD), "-e", reloaded)
    assert "node 1 waits for a restart" not in played.words
    waiting = json.dumps({"dlog_config": {RESTART_KEY: RESTART_VALUE}})
    played = cluster.plays.must("site", "-e", cluster.bundle(OLD), "-e", waiting)
    assert "node 1 waits for a restart" in played.words
    assert RESTART_KEY in played.words
    assert cluster.pids() == pids
    cluster.plays.must("rolling_restart", "-e", waiting)
    assert cluster.starts() == [count + 1 for count in starts]
    played = cluster.plays.must("site", "-e", cluster.bundle(OLD), "-e", waiting)
    assert "node 1 waits for a restart" not in played.words
    assert played.changes == []
    cluster.forget()
