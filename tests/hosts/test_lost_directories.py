"""A data directory that is not mounted is not replaced by an empty one; what waits is told.

The long form.
"""

import json

from tests.hosts.appliance.cluster import OLD, Cluster
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
DISK_MB = 400
PLACE = "/srv/dlog"
OWN = f"{PLACE}/data"


def test_one_of_several_directories_is_not_mounted(bare: Cluster) -> None:
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
    directories = f"['/var/lib/dlog', '{OWN}', '{PLACE}/more']"
    bare.plays.write_inventory(
        {"h2": f"dlog_disks='{disks}' dlog_data_directories=\"{directories}\""}
    )
    played = bare.plays.must("site", "-e", bare.bundle(OLD))
    assert "node 2 waits for a restart: what systemd gives it" in played.words
    assert "node 1 waits for a restart" not in played.words
