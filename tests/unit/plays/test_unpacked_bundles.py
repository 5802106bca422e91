"""Bundles that a play unpacks on a host: none stays, whatever becomes of the play."""

import os
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.local_plays import LocalPlays, Said

HOUR_S = 3600
INSTALL = """#!/bin/sh
echo "$*" >> {log}
[ "$1" = {fails} ] && {{ echo "install: no $1" >&2; exit 1; }}
echo version=1.0 changed=yes
"""


def release(plays: LocalPlays, part: str, place: Path, **variables: Any) -> Said:
    """Run a part of the role."""
    role = {"ansible.builtin.include_role": {"name": "release", "tasks_from": part}}
    given = {"release_low_priority": [], "release_temporary": str(place), **variables}
    return plays.run([role], given)


@pytest.mark.parametrize("fails", ["nothing", "make", "switch"])
def test_an_installer_leaves_no_bundle(tmp_path: Path, fails: str) -> None:
    plays = LocalPlays(tmp_path)
    place = tmp_path / "dlog-bundle-x"
    (place / "bundle").mkdir(parents=True)
    log = tmp_path / "log"
    install = plays.program("install", INSTALL.format(log=log, fails=fails))
    install.rename(place / "bundle" / "install")
    said = release(
        plays, "made.yml", tmp_path, release_place={"path": str(place)}, release_has_current=False
    )
    assert not place.exists()
    assert (said.code == 0) == (fails == "nothing"), said.output
    assert (f"install: no {fails}" in said.words) == (fails != "nothing")
    verbs = [line.split()[0] for line in log.read_text().splitlines()]
    assert verbs == (["make"] if fails == "make" else ["make", "switch"])


def test_the_next_play_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    plays = LocalPlays(tmp_path)
    place = tmp_path / "temporary"
    old, young, other = (place / f"dlog-{name}" for name in ("bundle-old", "bundle-young", "other"))
    for folder in (old, young, other):
        (folder / "bundle").mkdir(parents=True)
    for folder in (old, other):
        past_s = time.time() - 2 * HOUR_S
        os.utime(folder, (past_s, past_s))
    bundle, install = tmp_path / "b.tar.gz", plays.program("install", "#!/bin/sh\n")
    with tarfile.open(bundle, "w:gz") as archive:
        archive.add(install, "dlog-1.0/install")
    said = release(plays, "unpacked.yml", place, dlog_bundle=str(bundle))
    assert said.code == 0, said.output
    assert not old.exists()
    assert young.exists() and other.exists()
    (new,) = {each.name for each in place.iterdir()} - {young.name, other.name}
    assert (place / new / "bundle" / "install").exists()
