"""`dlogctl release`: what is installed, and whether it is whole."""

import json
from pathlib import Path

import pytest

from dlogctl import exit_codes
from dlogctl.__main__ import main
from dlogctl.commands.release import COLUMNS
from dlogctl.release import bundle, directory
from tests.fakes.bundles import seal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two releases with one file each; the second one is in use."""
    for version in ("1.0", "2.0"):
        program = directory.path_of(version, tmp_path) / "bin" / "dlogd"
        program.parent.mkdir(parents=True)
        program.write_text(version, encoding="utf-8")
        manifest = {
            "format": bundle.FORMAT,
            "version": version,
            "commit": f"c{version}",
            "machine": "any",
            "pythons": {},
            "feature_levels": {"oldest": 1, "newest": 1},
            "predecessor_newest_level": 1,
        }
        (program.parents[1] / bundle.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        seal(program.parents[1])
        directory.switch(version, tmp_path)
    return tmp_path


def test_releases_are_listed_with_their_links(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "list", "--root", str(root), "-o", "json"]) == exit_codes.OK
    rows = json.loads(capsys.readouterr().out)
    assert [(row["version"], row["link"], row["commit"]) for row in rows] == [
        ("1.0", "previous", "c1.0"),
        ("2.0", "current", "c2.0"),
    ]
    assert all(set(row) == {column.key for column in COLUMNS} for row in rows)


def test_what_is_no_release_is_not_listed_and_not_deleted(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = root / "releases"
    (place / "notes.txt").write_text("mine", encoding="utf-8")
    (place / "backup").mkdir()
    assert main(["release", "list", "--root", str(root), "-o", "json"]) == exit_codes.OK
    said = capsys.readouterr()
    assert [row["version"] for row in json.loads(said.out)] == ["1.0", "2.0"]
    for name in ("notes.txt", "backup"):
        assert f"{place / name} is not a release: it has no MANIFEST.json; move it" in said.err
    assert main(["release", "verify", "--root", str(root)]) == exit_codes.OK
    assert main(["release", "clean", "--keep", "0", "--root", str(root)]) == exit_codes.OK
    assert {path.name for path in place.iterdir()} >= {"notes.txt", "backup"}
    (place / "2.0" / bundle.MANIFEST).unlink()
    capsys.readouterr()
    assert main(["release", "list", "--root", str(root), "-o", "json"]) == exit_codes.OK
    rows = json.loads(capsys.readouterr().out)
    assert ("2.0", "damaged") in [(row["version"], row["commit"]) for row in rows]


def test_whole_releases_are_said_to_be_whole(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "verify", "--root", str(root)]) == exit_codes.OK
    assert capsys.readouterr().out == "whole: 1.0, 2.0\n"


def test_a_changed_release_is_unhealthy(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory.path_of("1.0", root) / "bin" / "dlogd").write_text("x", encoding="utf-8")
    command = ["release", "verify", "--root", str(root), "-o", "json"]
    assert main(command) == exit_codes.UNHEALTHY
    assert json.loads(capsys.readouterr().out) == [
        {"version": "1.0", "problem": "bin/dlogd has other bytes"}
    ]
    assert main([*command[:2], "2.0", *command[2:]]) == exit_codes.OK


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["verify", "3.0"], exit_codes.UNHEALTHY, "no release '3.0'"),
        (["verify", "--root", "/nonexistent/dlog"], exit_codes.FAILURE, "there is no release in"),
        (["list", "--root", "/nonexistent/dlog"], exit_codes.OK, "unpack a bundle"),
    ],
)
def test_what_is_not_there_is_said(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    command = ["release", *arguments]
    assert main(command if "--root" in arguments else [*command, "--root", str(root)]) == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
