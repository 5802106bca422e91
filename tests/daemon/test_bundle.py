"""The bundle: built twice, made into releases, and run in place of the checkout."""

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlog.version import VERSION
from dlogctl.release import directory
from tests.daemon.one_partition import append, read_all
from tests.daemon.process import daemon
from tests.daemon.raw import client_of
from tests.tidy.sources import ROOT

NEXT = f"{VERSION}.post1"


@dataclass(frozen=True)
class Built:
    """Bundles by version, and a host's directory of releases."""

    files: dict[str, Path]
    again: Path
    root: Path
    programs: Path


def _build(to: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "scripts.bundle", "--to", str(to), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    fields = dict(each.split("=", 1) for each in done.stdout.splitlines()[-1].split())
    assert int(fields["bytes"]) == Path(fields["bundle"]).stat().st_size
    return Path(fields["bundle"])


def _install(built: Path, place: Path, *arguments: str) -> str:
    """Unpack a bundle as a host does and run its installer with nothing of this checkout."""
    place.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xzf", built, "-C", place], check=True)
    (folder,) = [path for path in place.iterdir() if built.name.startswith(f"{path.name}-x")]
    bare = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-E", str(folder / "install"), *arguments],
        cwd="/",
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("bundle")
    first = _build(folder / "first")
    second = _build(folder / "second", "--version", NEXT)
    found = Built(
        {VERSION: first, NEXT: second}, _build(folder / "again"), folder / "opt", folder / "bin"
    )
    found.programs.mkdir()
    options = ["--root", str(found.root), "--bin", str(found.programs)]
    for version, file in found.files.items():
        place = folder / f"unpacked-{version}"
        assert _install(file, place, "make", *options) == f"version={version} changed=yes"
    return found


def test_two_builds_differ_in_nothing_but_what_a_compiler_makes(built: Built) -> None:
    contents = []
    for file in (built.files[VERSION], built.again):
        with tarfile.open(file) as archive:
            members = {each.name: each for each in archive.getmembers()}
            assert {each.uid for each in members.values()} == {0}
            contents.append(
                {
                    name: (each.mode, archive.extractfile(each).read() if each.isfile() else b"")  # type: ignore[union-attr]
                    for name, each in members.items()
                }
            )
    one, other = contents
    assert one.keys() == other.keys()
    differing = {name.partition("/")[2] for name in one if one[name] != other[name]}
    compiled = f"wheels/dlog-{VERSION}-cp311-cp311-linux_"
    assert all(each == "SHA256SUMS" or each.startswith(compiled) for each in differing)


def test_it_holds_no_extras_and_few_bytes(built: Built) -> None:
    with tarfile.open(built.files[VERSION]) as archive:
        names = archive.getnames()
    assert any("/wheels/uvloop-" in name for name in names)
    assert not any(each in name for name in names for each in ("pyspark", "matplotlib", "pyarrow"))
    assert built.files[VERSION].stat().st_size < 30_000_000


def test_releases_take_turns_on_the_same_data(built: Built, tmp_path: Path) -> None:
    records = []
    with daemon(tmp_path) as node:
        for number, version in enumerate((VERSION, NEXT, VERSION)):
            directory.switch(version, built.root)
            node.program = built.root / "current" / "bin" / "dlogd"
            node.start()
            assert node.status()["version"] == version
            assert node.process is not None
            running = directory.processes(built.root)
            assert running == {version: (node.process.pid,)}
            with client_of(node) as client:
                if not number:
                    client.run(lambda: client.admin.create_topic("t", partitions=1))
                records.append(b"%d" % number)
                assert append(client, records[-1]) == number
                assert read_all(client) == records
            assert node.stop() == 0
    for version in built.files:
        assert directory.verify(version, built.root) == []


def test_a_running_daemon_stays_in_its_release(built: Built, tmp_path: Path) -> None:
    directory.switch(VERSION, built.root)
    with daemon(tmp_path) as node:
        node.program = built.root / "current" / "bin" / "dlogd"
        node.start()
        directory.switch(NEXT, built.root)
        assert directory.old(0, built.root) == []
        assert node.status()["version"] == VERSION
        assert node.stop() == 0
