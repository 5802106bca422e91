"""A disk that dlog has formatted, and that is mounted elsewhere: it is refused, and not touched."""

from pathlib import Path

import pytest

from tests.fakes.local_plays import LocalPlays

DEVICE = "/dev/disk/by-id/one"
PROGRAMS = {
    "blkid": "printf 'LABEL=dlog\\nTYPE=xfs\\n'",
    "lsblk": "echo sdb",
    "wipefs": "echo xfs",
    "mkfs.xfs": "exit 1",
    "systemd-escape": "echo 'the end' >&2; exit 1",
}
REFUSAL = f"{DEVICE} is a disk of dlog that is mounted on /srv/old, and dlog_disks says /data/1."


@pytest.mark.parametrize(
    ("mounts", "is_refused"),
    [("echo /srv/old", True), ("echo /srv/old; echo /data/1", False), ("exit 1", False)],
    ids=["elsewhere", "there as well", "nowhere"],
)
def test_where_a_disk_is_mounted(tmp_path: Path, mounts: str, is_refused: bool) -> None:
    plays = LocalPlays(tmp_path)
    for name, text in PROGRAMS.items():
        plays.program(name, f"#!/bin/sh\n{text}\n")
    # Without --source the play asks for the mount point itself: something is mounted there.
    plays.program("findmnt", f'#!/bin/sh\ncase "$*" in *--source*) {mounts} ;; esac\n')
    role = {"ansible.builtin.include_role": {"name": "host", "tasks_from": "disks.yml"}}
    said = plays.run([role], {"dlog_disks": [{"device": DEVICE, "path": "/data/1/"}]})
    # All looks are over when names of units are asked for.
    assert ("the end" in said.words) != is_refused
    assert (REFUSAL.replace("/data/1.", "/data/1/.") in said.words) == is_refused, said.output
    assert ("umount /srv/old" in said.words) == is_refused
