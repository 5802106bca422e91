"""What a host refuses before it changes anything: one sentence, with the cure."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dlogctl.__main__ import main
from dlogctl.release import bundle, directory, installer
from dlogctl.release.bundle import RefusedError, check, read_manifest
from tests.fakes.bundles import bundle_of, seal


def test_a_whole_bundle_is_taken(tmp_path: Path) -> None:
    manifest = check(bundle_of(tmp_path / "b", "1.5"), feature_level=3)
    assert (manifest.version, manifest.level_newest) == ("1.5", 3)


def _damage(name: str) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        path = next(folder.glob(name))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return work


def _resealed(folder: Path) -> None:
    (folder / bundle.MANIFEST).write_text('{"format": 1}', encoding="utf-8")
    seal(folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_damage("wheels/*.whl"), r"damaged: wheels/dlog-1.0-.* has other bytes. Copy it again"),
        (_damage("MANIFEST.json"), r"MANIFEST.json has other bytes"),
        (lambda folder: next(folder.glob("pip/*")).unlink(), r"damaged: pip/pip-.* is missing"),
        (lambda folder: (folder / "wheels" / "x").touch(), r"wheels/x is not listed"),
        (lambda folder: (folder / "SHA256SUMS").unlink(), r"SHA256SUMS is missing or damaged"),
        (lambda folder: (folder / "SHA256SUMS").write_text("x"), r"SHA256SUMS is damaged"),
        (lambda folder: (folder / "SHA256SUMS").write_bytes(b"\xff"), r"missing or damaged"),
        (_resealed, r"MANIFEST.json is missing or damaged .*feature_levels"),
    ],
)
def test_a_damaged_bundle_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    folder = bundle_of(tmp_path / "b")
    damage(folder)
    with pytest.raises(RefusedError, match=words):
        check(folder)


def test_several_damaged_files_are_counted(tmp_path: Path) -> None:
    folder = bundle_of(tmp_path / "b")
    for name in ("wheels/*.whl", "pip/*.whl", "MANIFEST.json"):
        _damage(name)(folder)
    with pytest.raises(RefusedError, match="has other bytes and 2 more"):
        check(folder)


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"machine": "riscv64"}, {}, r"is for riscv64, this host is .* Take the bundle for"),
        ({"pythons": {"3.9": "pure", "3.10": "pure"}}, {}, r"nothing for Python .* only for 3.10"),
        ({}, {"feature_level": 4}, r"at feature level 4, release 1.0 knows levels 1 to 3. A level"),
        ({}, {"feature_level": 0}, r"at feature level 0, release 1.0 begins at 1. Upgrade"),
        ({"format": 2}, {}, r"format 2 is not known here, only 1: use the installer that came"),
    ],
)
def test_a_bundle_for_others_is_refused(
    tmp_path: Path, changed: dict[str, object], options: dict[str, int], words: str
) -> None:
    folder = bundle_of(tmp_path / "b", **changed)
    with pytest.raises(RefusedError, match=words):
        check(folder, **options)


def test_the_manifest_of_a_folder_without_one(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"MANIFEST.json is missing or damaged .*copy it again"):
        read_manifest(tmp_path)


def test_a_release_that_skips_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that runs knows level 3; the bundle follows a release that knows level 4."""
    root = tmp_path / "opt"
    present = directory.path_of("1.0", root)
    bundle_of(present, "1.0")
    directory.switch("1.0", root)
    levels = {"feature_levels": {"oldest": 1, "newest": 5}}
    place = ["check", "--root", str(root)]
    far = bundle_of(tmp_path / "far", "3.0", **levels, predecessor_newest_level=4)
    assert installer.main(place, far) == 1
    said = capsys.readouterr().err
    assert "Release 3.0 follows one that knows feature level 4, and 1.0, which runs here," in said
    near = bundle_of(tmp_path / "near", "2.0", **levels, predecessor_newest_level=3)
    assert installer.main(place, near) == 0


def test_deleting_old_releases_is_rehearsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in ("1.0", "2.0", "3.0"):
        bundle_of(directory.path_of(version, tmp_path), version)
    directory.switch("3.0", tmp_path)
    place = ["release", "clean", "--root", str(tmp_path), "--keep", "1", "-o", "json"]
    assert main([*place, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": ["1.0", "2.0"]}
    assert directory.versions(tmp_path) == ["1.0", "2.0", "3.0"]
    assert main(place) == 0
    assert directory.versions(tmp_path) == ["3.0"]
    assert main(place) == 0
