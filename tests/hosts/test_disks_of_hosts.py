"""Disks of hosts that are full, not mounted, or cannot be made.

The long form.
"""

import json

from tests.hosts.appliance.cluster import NEW, OLD, Cluster
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
DISK_MB = 400
PLACE = "/srv/dlog"
OWN = f"{PLACE}/data"
PATIENCE = ("-e", "dlog_patience=5")


def test_a_full_disk(bare: Cluster) -> None:
    first, second = bare.hosts[:2]
    disk = second.disk(DISK_MB)
    disks = json.dumps([{"device": disk.path, "path": PLACE}])
    own = {"h2": f"dlog_disks='{disks}' dlog_data_directories=\"['{PLACE}/data']\""}
    bare.plays.write_inventory(own)
    bare.plays.must("site", "-e", bare.bundle(OLD))
    first.ssh("dlogctl topic create held -p 3 -r 3 -s min.insync.replicas=2")
    first.ssh("seq 1000 | dlogctl produce held --acks all")
    second.enter(f"dd if=/dev/zero of={PLACE}/full bs=1M", check=False)
    starts, current = bare.starts(), bare.current()
    for playbook in ("rolling_restart", "upgrade"):
        played = bare.plays.play(playbook, "-e", bare.bundle(NEW), *PATIENCE)
        assert played.code != 0
        assert f"data directory {PLACE}/data is nearly full: appends are refused" in played.words
        assert "No node was touched." in played.words
    assert bare.starts() == starts
    assert bare.current() == current
    second.enter(f"rm {PLACE}/full")
    assert bare.is_healthy()
    read = first.ssh("dlogctl consume held -q").stdout
    assert sorted(map(int, read.split())) == list(range(1, 1001))


def test_a_disk_needs_a_program_that_is_not_there(bare: Cluster) -> None:
    second = bare.hosts[1]
    disks = json.dumps([{"device": "/dev/disk/by-id/none", "path": PLACE}])
    bare.plays.write_inventory({"h2": f"dlog_disks='{disks}'"})
    second.enter("mv /usr/sbin/mkfs.xfs /root/")
    try:
        before = bare.fingerprints()
        played = bare.plays.play("site", "-e", bare.bundle(OLD))
        assert played.code != 0
        assert "dlog_disks needs mkfs.xfs, which h2 does not have: apt-get install xfsprogs." in (
            played.words
        )
        assert bare.fingerprints() == before
    finally:
        second.enter("mv /root/mkfs.xfs /usr/sbin/")
        bare.plays.write_inventory()


def test_one_of_several_directories_is_not_mounted(bare: Cluster) -> None:
    bare.rig.renew()
    second = bare.hosts[1]
    disk = second.disk(DISK_MB)
    disks = json.dumps([{"device": disk.path, "path": PLACE}])
    directories = f"['/var/lib/dlog', '{OWN}']"
    bare.plays.write_inventory(
        {"h2": f"dlog_disks='{disks}' dlog_data_directories=\"{directories}\""}
    )
    bare.plays.must("site", "-e", bare.bundle(OLD))
    second.enter(f"systemctl stop dlogd && umount {PLACE}")
    before = bare.fingerprints()
    played = bare.plays.play("site", "-e", bare.bundle(OLD))
    assert played.code != 0
    assert f"{OWN} is empty now. Mount what belongs there." in played.words
    assert bare.fingerprints() == before
    assert second.enter(f"stat -c %U {PLACE}; ls -A {PLACE}").stdout.split() == ["root"]
    second.enter("systemctl start srv-dlog.mount")
    bare.plays.must("site", "-e", bare.bundle(OLD))
    assert bare.is_healthy()
    # A directory that is new in the inventory is no lost one.
    other = {"device": second.disk(DISK_MB).path, "path": "/srv/more"}
    disks = json.dumps([{"device": disk.path, "path": PLACE}, other])
    directories = f"['/var/lib/dlog', '{OWN}', '/srv/more/data']"
    bare.plays.write_inventory(
        {"h2": f"dlog_disks='{disks}' dlog_data_directories=\"{directories}\""}
    )
    played = bare.plays.must("site", "-e", bare.bundle(OLD))
    assert "node 2 waits for a restart: what systemd gives it" in played.words
    assert "node 1 waits for a restart: what systemd" not in played.words
    assert bare.plays.must("site", "-e", bare.bundle(OLD)).changes == []
