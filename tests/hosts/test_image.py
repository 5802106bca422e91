"""The base image is made once, by one of many, and never half. mmdebstrap itself is replaced."""

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.hosts.rig import image
from tests.hosts.rig.commands import RigError

pytestmark = pytest.mark.skipif(shutil.which("zstd") is None, reason="needs zstd")


def bootstrap(folder: Path, lock: int) -> None:
    """Make an image with one file."""
    assert lock >= 0
    (folder / "file").write_text("content")
    command = ["tar", "-I", "zstd", "-C", str(folder), "-cf", str(folder / "base.tar.zst"), "file"]
    subprocess.run(command, check=True)


def test_runs_at_once_make_one_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def count(folder: Path, lock: int) -> None:
        made.append(folder)
        bootstrap(folder, lock)

    monkeypatch.setattr(image, "_bootstrap", count)
    threads = [threading.Thread(target=image.make, args=(tmp_path,)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 1
    assert (image.make(tmp_path) / "file").read_text() == "content"


def test_half_made_images_and_old_ones_are_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "making-before").mkdir()
    (tmp_path / "base-0123.tar.zst").touch()

    def fail(folder: Path, lock: int) -> None:
        bootstrap(folder, lock)
        raise RigError("no mirror")

    monkeypatch.setattr(image, "_bootstrap", fail)
    with pytest.raises(RigError, match="no mirror"):
        image.make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]

    monkeypatch.setattr(image, "_bootstrap", bootstrap)
    image.make(tmp_path)
    wanted = {"lock", image.archive(tmp_path).name, image.tree(tmp_path).name}
    assert {path.name for path in tmp_path.iterdir()} == wanted


def test_a_lost_tree_comes_out_of_the_packed_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_bootstrap", bootstrap)
    shutil.rmtree(image.make(tmp_path))
    monkeypatch.setattr(image, "_bootstrap", pytest.fail)
    assert (image.make(tmp_path) / "file").exists()
