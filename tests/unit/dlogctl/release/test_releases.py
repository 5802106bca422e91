"""Releases: made whole or not at all, never changed afterwards, never deleted while in use."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dlogctl.release import directory, installer, making
from dlogctl.release.bundle import RefusedError
from dlogctl.release.directory import HALF_MADE, PREVIOUS, linked, path_of, switch, versions
from tests.fakes.bundles import bundle_of, seal


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("bundles")
    return {version: bundle_of(place / version, version) for version in ("1.0", "2.0")}


@pytest.fixture(scope="module")
def made(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both releases; tests may only read it."""
    root = tmp_path_factory.mktemp("opt") / "dlog"
    for version, folder in bundles.items():
        assert making.make(folder, root) == (version, True)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory whose releases are names only."""
    for number, version in enumerate(("1.0", "2.0", "3.0", "4.0", "5.0")):
        program = path_of(version, tmp_path) / "bin" / "dlogd"
        program.parent.mkdir(parents=True)
        program.touch()
        manifest = path_of(version, tmp_path) / "MANIFEST.json"
        manifest.write_text("{}")
        os.utime(manifest, (number, number))
    return tmp_path


def _says(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip()


def test_a_release_works_under_its_final_name(made: Path) -> None:
    for version in ("1.0", "2.0"):
        release = path_of(version, made)
        assert _says(release / "bin" / "dlogd") == f"dlogd {version} {release}"
        assert directory.verify(version, made) == []
        compiled = list(release.glob("lib/*/site-packages/__pycache__/tinydlog.*.pyc"))
        assert compiled and os.fsencode(HALF_MADE) not in compiled[0].read_bytes()
        assert not list((made / "releases").glob(".*"))


def test_a_release_names_its_python_in_full(made: Path) -> None:
    python = path_of("1.0", made) / "bin" / "python"
    assert python.resolve() == Path(sys.executable).resolve()
    last = next(p for p in python.parent.iterdir() if p.is_symlink() and p.readlink().is_absolute())
    assert str(last.readlink()) == os.path.realpath(sys.executable)


def test_nobody_but_its_owner_may_write_a_release(made: Path) -> None:
    for path in path_of("1.0", made).rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_mode & 0o022 == 0, path
            assert path.stat().st_mode & 0o044 == 0o044, path


def test_a_second_time_changes_nothing(made: Path, bundles: dict[str, Path]) -> None:
    before = path_of("1.0", made).stat().st_mtime_ns
    assert making.make(bundles["1.0"], made) == ("1.0", False)
    assert path_of("1.0", made).stat().st_mtime_ns == before


def test_another_bundle_of_the_same_version_is_refused(made: Path, tmp_path: Path) -> None:
    other = bundle_of(tmp_path / "b", "1.0", commit="another")
    with pytest.raises(RefusedError, match=r"1\.0 is there already, of another bundle"):
        making.make(other, made)


@pytest.mark.parametrize(
    ("commit", "name", "is_same"),
    [
        ("c" * 40, "tinydlog", True),
        ("c" * 40 + "-changed", "tinydlog", False),
        ("unknown", "tinydlog", False),
        ("c" * 40, "pip", False),
    ],
)
def test_another_build_of_a_commit_is_the_same_release(
    tmp_path: Path, commit: str, name: str, is_same: bool
) -> None:
    root = tmp_path / "opt"
    folders = [bundle_of(tmp_path / each, "1.0", commit=commit) for each in ("a", "b")]
    making.make(folders[0], root)
    (wheel,) = (folders[1] / ("pip" if name == "pip" else "wheels")).glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    seal(folders[1])
    if is_same:
        assert making.make(folders[1], root) == ("1.0", False)
        return
    with pytest.raises(RefusedError, match=r"1\.0 is there already, of another bundle"):
        making.make(folders[1], root)


def test_a_changed_file_of_a_release_is_found(made: Path, tmp_path: Path) -> None:
    root = tmp_path / "opt"
    shutil.copytree(made, root, symlinks=True)
    module = next(path_of("1.0", root).glob("lib/*/site-packages/tinydlog.py"))
    module.write_text("")
    assert [each.partition("/")[2] for each in directory.verify("1.0", root)] == [
        f"{module.parent.parent.name}/site-packages/tinydlog.py has other bytes"
    ]


def test_what_fails_in_the_middle_leaves_nothing(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, "_set_modes", full)
    with pytest.raises(RefusedError, match="No space left"):
        making.make(bundles["1.0"], tmp_path)
    assert list((tmp_path / "releases").iterdir()) == []


def test_a_half_made_one_of_an_interrupted_run_is_thrown_away(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    half = path_of(f"{HALF_MADE}1.0", tmp_path)
    (half / "lib").mkdir(parents=True)
    assert versions(tmp_path) == []
    making.make(bundles["1.0"], tmp_path)
    assert [path.name for path in (tmp_path / "releases").iterdir()] == ["1.0"]


def test_a_host_without_room_is_refused(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "FREE_BYTES", 1 << 60)
    with pytest.raises(RefusedError, match="MiB free, a release needs"):
        making.make(bundles["1.0"], tmp_path)
    assert not (tmp_path / "releases").exists()


def test_two_at_once_do_not_meet(bundles: dict[str, Path], tmp_path: Path) -> None:
    with making.locked(tmp_path), pytest.raises(RefusedError, match="Another process works"):
        making.make(bundles["1.0"], tmp_path)


def test_links_follow_the_switch(root: Path) -> None:
    assert switch("2.0", root) and linked("current", root) == "2.0"
    assert linked(PREVIOUS, root) is None
    assert switch("4.0", root) and not switch("4.0", root)
    assert (linked("current", root), linked(PREVIOUS, root)) == ("4.0", "2.0")
    assert (root / "current" / "bin" / "dlogd").is_file()
    assert sorted(path.name for path in root.iterdir()) == ["current", "previous", "releases"]


@pytest.mark.parametrize("version", ["6.0", "..", "../releases/1.0", ""])
def test_a_switch_to_nothing_is_refused(root: Path, version: str) -> None:
    switch("1.0", root)
    with pytest.raises(RefusedError, match=r"There is no release .*; there are: 1\.0, 2\.0"):
        switch(version, root)
    assert linked("current", root) == "1.0"


def test_old_releases_go_but_never_what_is_in_use(root: Path) -> None:
    switch("1.0", root)
    switch("2.0", root)
    assert directory.old(2, root) == ["3.0"]
    directory.delete(["3.0"], root)
    assert versions(root) == ["1.0", "2.0", "4.0", "5.0"]
    assert directory.old(0, root) == ["4.0", "5.0"]
    directory.delete(["4.0", "5.0"], root)
    assert [path.name for path in sorted((root / "releases").iterdir())] == ["1.0", "2.0"]


def test_a_release_out_of_which_a_daemon_runs_stays(made: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for number, version, program in ((7, "2.0", "dlogd"), (8, "1.0", "dlogctl"), (9, "x", "dlogd")):
        release = path_of(version, made) if version != "x" else Path("/usr")
        arguments = [f"{release}/bin/python3.11", f"{release}/bin/{program}", "--config", "x"]
        (proc / str(number)).mkdir(parents=True)
        (proc / str(number) / "cmdline").write_bytes(b"\0".join(map(os.fsencode, arguments)))
    (proc / "10").mkdir()  # has ended
    (proc / "meminfo").touch()
    assert directory.processes(made, proc) == {"2.0": (7,)}


def test_the_installer_makes_links_programs_and_says_what_it_did(
    bundles: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    place = ["--root", str(tmp_path / "opt"), "--bin", str(programs)]
    for version, verb, line in (
        ("1.0", "check", "version=1.0 changed=no"),
        ("1.0", "make", "version=1.0 changed=yes"),
        ("1.0", "switch", "version=1.0 changed=yes"),
        ("1.0", "switch", "version=1.0 changed=no"),
        ("2.0", "make", "version=2.0 changed=yes"),
        ("2.0", "switch", "version=2.0 changed=yes"),
    ):
        assert installer.main([verb, *place], bundles[version]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == line
    assert _says(programs / "dlogctl").startswith("dlogd 2.0 ")
    assert installer.main(["switch", "--version", "1.0", *place], bundles["2.0"]) == 0
    assert _says(programs / "dlogctl").startswith("dlogd 1.0 ")
    assert installer.main(["clean", "--keep", "0", *place], bundles["2.0"]) == 0
    assert versions(tmp_path / "opt") == ["1.0", "2.0"]


def test_the_installer_tells_why_not(
    bundles: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--root", str(tmp_path / "opt"), "--bin", str(tmp_path)]
    assert installer.main(["check", "--feature-level", "9", *place], bundles["1.0"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("install: The cluster is at feature level 9") and said.count("\n") == 1
    assert not (tmp_path / "opt").exists()
    assert installer.main(["make", *place], bundles["1.0"]) == 0
    (tmp_path / "dlogd").write_text("somebody's own")
    assert installer.main(["switch", *place], bundles["1.0"]) == 1
    assert "is there and no link" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        installer.main(["walk"], bundles["1.0"])
    assert ended.value.code == os.EX_USAGE
