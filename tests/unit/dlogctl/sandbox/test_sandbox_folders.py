"""A sandbox in a directory that somebody else prepared: refused, and nothing is written."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dlogctl.__main__ import main
from dlogctl.sandbox import control
from dlogctl.sandbox.folders import (
    FolderError,
    check_folder,
    make_folder,
    open_log,
    read_secret,
    replace_file,
)
from dlogctl.sandbox.layout import OWN_NAMES, free_ports, plan_nodes

MINE = "mine\n"


@pytest.fixture(autouse=True)
def no_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sandbox that was not refused end at once."""
    monkeypatch.setattr("dlogctl.commands.sandbox._supervise", lambda *_: 0)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file of the user that others would like to have overwritten."""
    path = tmp_path / "bashrc"
    path.write_text(MINE)
    return path


def link(at: str) -> Callable[[Path, Path], None]:
    def prepare(folder: Path, victim: Path) -> None:
        (folder / at).parent.mkdir(exist_ok=True)
        (folder / at).symlink_to(victim)

    return prepare


def hard_link(folder: Path, victim: Path) -> None:
    (folder / "node-1").mkdir()
    (folder / "node-1" / "dlogd.log").hardlink_to(victim)


def open_folder(folder: Path, _victim: Path) -> None:
    folder.chmod(0o777)


def open_node(folder: Path, _victim: Path) -> None:
    (folder / "node-1").mkdir()
    (folder / "node-1").chmod(0o770)


def open_secret(folder: Path, _victim: Path) -> None:
    (folder / "secret").write_text("known to others\n")
    (folder / "secret").chmod(0o666)


def linked_data(folder: Path, victim: Path) -> None:
    (folder / "node-1" / "data").mkdir(parents=True)
    (folder / "node-1" / "data" / "meta").symlink_to(victim.parent)


PREPARED = {
    "configuration": (link("node-1/dlog.yaml"), "dlog.yaml is a symbolic link: remove it"),
    "fresh configuration": (link("node-1/dlog.yaml.new"), "is a symbolic link"),
    "log": (link("node-1/dlogd.log"), "dlogd.log is a symbolic link"),
    "node": (link("node-1"), "node-1 is a symbolic link"),
    "another node": (link("node-7"), "node-7 is a symbolic link"),
    "deep in the data": (linked_data, "meta is a symbolic link"),
    "state": (link("sandbox.json"), "sandbox.json is a symbolic link"),
    "secret": (link("secret"), "secret is a symbolic link"),
    "control socket": (link("control.sock"), "control.sock is a symbolic link"),
    "ports": (link("raft-ports"), "raft-ports is a symbolic link"),
    "hard link": (hard_link, "dlogd.log has another name elsewhere"),
    "folder of all": (open_folder, "other users may write to .*; if .*: chmod -R go-w "),
    "node of a group": (open_node, "other users may write to .*node-1"),
    "secret of all": (open_secret, "other users may write to .*secret"),
}


def test_a_folder_without_a_sandbox_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    assert main(["sandbox", "restart", "1", "--dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err.lower()
    assert f"no sandbox runs in {str(tmp_path).lower()}; start one: dlogctl sandbox" in told


@pytest.mark.parametrize("name", PREPARED)
@pytest.mark.parametrize("nodes", ["1", "3"])
def test_a_prepared_directory_is_refused(
    tmp_path: Path, victim: Path, capsys: pytest.CaptureFixture[str], name: str, nodes: str
) -> None:
    folder = tmp_path / "sb"
    folder.mkdir()
    prepare, cause = PREPARED[name]
    prepare(folder, victim)
    before = sorted(folder.rglob("*"))
    code = main(["sandbox", "--dir", str(folder), "--port", "0", "--nodes", nodes])
    assert code == 1
    said = capsys.readouterr().err
    assert said.startswith("dlogctl: not safe to use: ")
    with pytest.raises(FolderError, match=cause):
        check_folder(folder, OWN_NAMES)
    assert victim.read_text() == MINE
    assert sorted(folder.rglob("*")) == before


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: own + 1)
    for command in (["sandbox"], ["sandbox", "restart", "1"]):
        assert main([*command, "--dir", str(tmp_path)]) == 1
        said = capsys.readouterr().err
        assert f"{tmp_path} belongs to another user: name another directory with --dir" in said
    assert not list(tmp_path.iterdir())


def test_a_link_in_the_place_of_the_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sb").symlink_to(tmp_path / "elsewhere")
    assert main(["sandbox", "--dir", str(tmp_path / "sb")]) == 1
    assert "sb is a symbolic link" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_else_lies_in_the_directory_does_not_matter(tmp_path: Path, victim: Path) -> None:
    folder = tmp_path / "sb"
    make_folder(folder)
    (folder / "notes").symlink_to(victim)
    (folder / "notes.txt").hardlink_to(victim)
    check_folder(folder, OWN_NAMES)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_everything_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        folder = tmp_path / "sb"
        make_folder(folder)
        for layout in plan_nodes(folder, free_ports(2), free_ports(2)):
            layout.write_config({})
            layout.write_config({})
            os.close(open_log(layout.log_path))
        with control._listen(folder):
            modes = {
                path.relative_to(folder).as_posix(): mode_of(path) for path in folder.rglob("*")
            }
    finally:
        os.umask(mask)
    assert mode_of(folder) == 0o700
    assert modes == {
        "control.sock": 0o600,
        "secret": 0o600,
        **{f"node-{n}": 0o700 for n in (1, 2)},
        **{f"node-{n}/data": 0o700 for n in (1, 2)},
        **{f"node-{n}/dlog.yaml": 0o600 for n in (1, 2)},
        **{f"node-{n}/dlogd.log": 0o600 for n in (1, 2)},
    }
    check_folder(folder, OWN_NAMES)


def test_files_follow_no_link(tmp_path: Path, victim: Path) -> None:
    at = tmp_path / "file"
    at.symlink_to(victim)
    with pytest.raises(FolderError, match="is a symbolic link"):
        open_log(at)
    with pytest.raises(FolderError, match="is a symbolic link"):
        read_secret(at)
    (tmp_path / "file.new").symlink_to(victim)
    replace_file(at, "text\n")  # the links themselves are replaced
    assert at.read_text() == "text\n"
    assert not at.is_symlink()
    assert victim.read_text() == MINE
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises((FolderError, OSError)):
        open_log(tmp_path / "fifo")


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert read_secret(path) is None
    replace_file(path, "00ff\n")
    assert read_secret(path) == "00ff\n"
    path.chmod(0o640)
    with pytest.raises(FolderError, match="chmod 600 "):
        read_secret(path)


def test_a_control_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    with control._listen(tmp_path):
        pass
    with control._listen(tmp_path) as listening:
        listening.listen()
        with control.socket_path(tmp_path) as path, socket.socket(socket.AF_UNIX) as asking:
            asking.connect(path)


def test_the_restart_of_a_prepared_sandbox_asks_nobody(
    tmp_path: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sandbox.json").symlink_to(victim)
    assert main(["sandbox", "restart", "1", "--dir", str(tmp_path)]) == 1
    assert "sandbox.json is a symbolic link" in capsys.readouterr().err
