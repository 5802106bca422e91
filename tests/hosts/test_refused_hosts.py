"""Plays refuse bundles, disks and data that do not fit, before they change anything.

The long form.
"""

import json

import pytest

from tests.hosts.appliance.cluster import NEW, NEWEST, OLD, Cluster
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
LITTLE_MB = 400
LEFT_KB = 5_000


def another_python(manifest: dict[str, object]) -> None:
    """Let a bundle be for a Python that no host has."""
    manifest["pythons"] = {"3.99": "pure"}


def older_levels(manifest: dict[str, object]) -> None:
    """Let a bundle know only feature levels below those of every cluster."""
    manifest["feature_levels"] = {"oldest": 0, "newest": 0}


def another_machine(manifest: dict[str, object]) -> None:
    """Let a bundle be for another processor."""
    manifest["machine"] = "riscv64"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (another_python, "The bundle has nothing for Python 3.11"),
        (another_machine, "The bundle is for riscv64"),
        (older_levels, "The cluster is at feature level"),
    ],
)
def test_a_bundle_that_does_not_fit(cluster: Cluster, change: object, reason: str) -> None:
    name = change.__name__  # type: ignore[attr-defined]
    bundle = cluster.bundles.with_manifest(NEW, name, change)  # type: ignore[arg-type]
    before = cluster.fingerprints()
    for playbook in ("upgrade", "site"):
        played = cluster.plays.play(playbook, "-e", f"dlog_bundle={bundle}")
        assert played.code != 0
        assert reason in played.words
        assert "No host was changed." in played.words
        assert cluster.fingerprints() == before


def test_a_file_that_is_no_bundle(cluster: Cluster) -> None:
    before = cluster.fingerprints()
    other = cluster.folder / "other.tar.gz"
    other.write_text("no bundle\n")
    for path in (other, cluster.folder / "nothing.tar.gz"):
        played = cluster.plays.play("upgrade", "-e", f"dlog_bundle={path}")
        assert played.code != 0
        assert str(path) in played.words
        assert cluster.fingerprints() == before


def test_a_disk_with_data(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    disk = second.disk(LITTLE_MB)
    second.enter(f"mkfs.ext4 -q {disk.path}")
    before = cluster.fingerprints()
    disks = json.dumps([{"device": disk.path, "path": "/srv/dlog"}])
    cluster.plays.write_inventory(own={"h2": f"dlog_disks='{disks}'"})
    try:
        played = cluster.plays.play("site", "-e", cluster.bundle(OLD))
    finally:
        cluster.plays.write_inventory()
    assert played.code != 0
    assert f"{disk.path} is not empty (ext4)" in played.words
    assert cluster.fingerprints() == before
    assert "ext4" in second.enter(f"blkid --probe {disk.path}").stdout


def test_no_space_for_a_release(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    disk = second.disk(LITTLE_MB)
    second.enter(
        f"mkfs.ext4 -q -m 0 {disk.path} && mount {disk.path} /mnt && cp -a /opt/dlog/. /mnt/"
        f" && fallocate -l $(( $(df --output=avail /mnt | tail -1) - {LEFT_KB} ))K /mnt/full"
        f" && umount /mnt && mount {disk.path} /opt/dlog"
    )
    try:
        current, pids = cluster.current(), cluster.pids()
        played = cluster.plays.play("upgrade", "-e", cluster.bundle(NEWEST))
        assert played.code != 0
        assert "h2" in played.words
        assert "make room there" in played.words
        assert cluster.pids() == pids
        assert cluster.current() == current
    finally:
        second.enter("umount -l /opt/dlog")
    # Half a release is thrown away by the next play.
    cluster.plays.must("upgrade", "-e", cluster.bundle(NEWEST))
    assert set(cluster.current().values()) == {NEWEST}
    listed = second.enter("ls -A /opt/dlog/releases").stdout.split()
    assert not [name for name in listed if name.startswith(".")]


def test_lost_data_are_not_replaced_by_nothing(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    (version,) = set(cluster.current().values())
    second.enter(
        "systemctl stop dlogd && mkdir /root/lost"
        " && find /var/lib/dlog -mindepth 1 -maxdepth 1 -exec mv -t /root/lost {} +"
    )
    starts = cluster.starts()
    played = cluster.plays.play("site", "-e", cluster.bundle(version))
    assert played.code != 0
    assert "-e dlog_accept_empty=h2" in played.words
    assert cluster.starts() == starts
    cluster.plays.must("site", "-e", cluster.bundle(version), "-e", "dlog_accept_empty=h2")
    assert cluster.is_healthy()


def test_a_host_does_not_become_another_node(cluster: Cluster) -> None:
    (version,) = set(cluster.current().values())
    before = cluster.fingerprints()
    cluster.plays.write_inventory(own={"h1": "dlog_node_id=2", "h2": "dlog_node_id=1"})
    try:
        played = cluster.plays.play("site", "-e", cluster.bundle(version))
    finally:
        cluster.plays.write_inventory()
    assert played.code != 0
    assert "Numbers and names are never changed" in played.words
    assert cluster.fingerprints() == before
