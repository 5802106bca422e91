"""Changeover of a host to another release, configuration and unit file, and the way back."""

import os
from pathlib import Path

import pytest

from dlogctl.release import changeover, directory
from dlogctl.release.bundle import MANIFEST, RefusedError
from dlogctl.release.changeover import Changeover, Places, replace

UNIT = "dlogd.service"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Give a host that runs release 1.0, with 2.0 beside it."""
    root = tmp_path / "opt"
    for version in ("1.0", "2.0"):
        units = directory.path_of(version, root) / "share" / "systemd"
        units.mkdir(parents=True)
        (units / UNIT).write_text(f"unit of {version}")
        (directory.path_of(version, root) / MANIFEST).write_text("{}")
    directory.switch("1.0", root)
    found = Places(root=root, config=tmp_path / "etc" / "dlog.yaml", unit_files=tmp_path / "units")
    for folder, name, text in ((found.config.parent, "dlog.yaml", "node.id: 1"),
                               (found.unit_files, UNIT, "unit of 1.0")):  # fmt: skip
        folder.mkdir()
        (folder / name).write_text(text)
    reloads: list[int] = []
    monkeypatch.setattr(changeover, "_reload_units", lambda: reloads.append(1))
    return found


def state(places: Places) -> tuple[str | None, str, str]:
    """Return what the next start would use."""
    unit = (places.unit_files / UNIT).read_text()
    return directory.linked("current", places.root), places.config.read_text(), unit


@pytest.fixture
def new_config(tmp_path: Path) -> Path:
    path = tmp_path / "dlog.yaml.next"
    path.write_text("node.id: 1\nflush.policy: always")
    path.chmod(0o640)
    return path


def test_all_three_change_and_are_taken_back(places: Places, new_config: Path) -> None:
    before = state(places)
    change = Changeover(UNIT, "2.0", new_config, places)
    change.check()
    assert change.program == directory.path_of("2.0", places.root) / "bin" / "dlogd"
    assert not change.is_made
    change.make()
    assert state(places) == ("2.0", new_config.read_text(), "unit of 2.0")
    assert places.config.stat().st_mode & 0o777 == 0o640
    assert change.is_made
    assert directory.linked("previous", places.root) == "1.0"
    change.take_back()
    assert state(places) == before
    assert not change.is_made


def test_the_way_back_restores_the_owner(places: Places, new_config: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(places.config, 12345, 23456)
    change = Changeover(UNIT, None, new_config, places)
    change.make()
    change.take_back()
    status = places.config.stat()
    assert (status.st_uid, status.st_gid) == (12345, 23456)


def test_what_is_the_same_is_not_made_again(places: Places, new_config: Path) -> None:
    new_config.write_text(places.config.read_text())
    change = Changeover(UNIT, "1.0", new_config, places)
    change.make()
    assert not change.is_made
    assert not (places.config.with_name("dlog.yaml.before")).exists()
    change.take_back()
    assert state(places)[0] == "1.0"


def test_a_restart_alone_changes_nothing(places: Places) -> None:
    change = Changeover(UNIT, None, None, places)
    change.check()
    assert change.program == directory.path_of("1.0", places.root) / "bin" / "dlogd"
    assert change.config == places.config
    before = state(places)
    change.make()
    assert (state(places), change.is_made) == (before, False)


def test_an_instance_has_its_own_configuration_and_the_unit_of_all(
    places: Places, new_config: Path
) -> None:
    own = places.config.with_name("dlog-1.yaml")
    own.write_text("node.id: 11")
    assert Changeover("dlogd@1.service", None, None, places).config == own
    units = directory.path_of("2.0", places.root) / "share" / "systemd"
    (units / "dlogd@.service").write_text("template of 2.0")
    template = places.unit_files / "dlogd@.service"
    template.write_text("template of 1.0")
    before = state(places)
    change = Changeover("dlogd@1.service", "2.0", new_config, places)
    change.make()
    assert (own.read_text(), template.read_text()) == (new_config.read_text(), "template of 2.0")
    assert state(places) == ("2.0", *before[1:])
    change.take_back()
    assert (own.read_text(), template.read_text()) == ("node.id: 11", "template of 1.0")
    assert state(places) == before


def test_a_unit_file_that_is_not_there_is_not_made(places: Places) -> None:
    change = Changeover("dlogd@1.service", "2.0", None, places)
    change.make()
    assert [path.name for path in places.unit_files.iterdir()] == [UNIT]
    assert directory.linked("current", places.root) == "2.0"


def test_what_is_not_there_is_refused_before_anything_stops(places: Places, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"there is no release 3\.0 on this host, only: .*1\.0"):
        Changeover(UNIT, "3.0", None, places).check()
    with pytest.raises(RefusedError, match="is not there: name the new configuration"):
        Changeover(UNIT, None, tmp_path / "nothing", places).check()
    (places.root / "current").unlink()
    with pytest.raises(RefusedError, match="leads to no release"):
        _ = Changeover(UNIT, None, None, places).program


def test_a_file_is_whole_at_every_moment(
    places: Places, new_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that loses its power in the middle starts with one of the two."""
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("power")))
    with pytest.raises(OSError, match="power"):
        replace(places.config, new_config)
    assert places.config.read_text() == "node.id: 1"
