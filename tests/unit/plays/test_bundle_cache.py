"""Two bundles that are built at once in a new checkout: packages are fetched once."""

import threading
from pathlib import Path

import pytest

from scripts.bundle import wheels


def test_two_builds_at_once_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, let_end = threading.Event(), threading.Event()
    fetched: list[Path] = []

    def slowly(folder: Path, _machine: str) -> None:
        fetched.append(folder)
        began.set()
        assert let_end.wait(60)
        folder.mkdir()
        (folder / ".whole").touch()

    monkeypatch.setattr(wheels, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(wheels, "_fetch", slowly)
    found: list[Path] = []
    builds = [
        threading.Thread(target=lambda: found.append(wheels.fetched("x86_64"))) for _ in range(2)
    ]
    builds[0].start()
    assert began.wait(60)
    builds[1].start()
    # What does not wait is done long before this.
    builds[1].join(0.5)
    assert not found
    let_end.set()
    for build in builds:
        build.join(60)
    assert len(fetched) == 1
    assert found == fetched * 2
