"""The version of the software: one place says it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.client.cluster.node import SOFTWARE_NAME
from dlog.version import UNKNOWN, VERSION, version_in, wire_version
from dlogd.server.handlers import api_versions

PROJECT = '[project]\nname = "dlog"\nversion = "1.2.3"\n'


def test_a_checkout_says_what_its_project_says() -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    assert f'\nversion = "{VERSION}"\n' in project.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("infos", "project", "version"),
    [
        ([], None, UNKNOWN),
        (["dlog-0.2.0.dist-info"], None, "0.2.0"),
        (["dlog-0.2.0+local.1.dist-info", "dlog_other-7.dist-info"], None, "0.2.0+local.1"),
        (["dlog-0.2.0.dist-info"], PROJECT, "1.2.3"),
        (["dlog-0.2.0.dist-info"], PROJECT.replace("dlog", "another"), "0.2.0"),
    ],
)
def test_a_folder_says_its_version(
    tmp_path: Path, infos: list[str], project: str | None, version: str
) -> None:
    for info in infos:
        (tmp_path / info).mkdir()
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    assert version_in(tmp_path) == version


def test_an_archive_has_none(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    archive.write_bytes(b"PK")
    assert version_in(archive) == UNKNOWN


def test_no_module_says_it_again() -> None:
    root = Path(__file__).parents[3]
    modules = [
        path for name in ("dlog", "dlogd", "dlogctl") for path in (root / name).rglob("*.py")
    ]
    assert len(modules) > 600
    text = re.compile(rf"[\"']{re.escape(VERSION)}[\"']")
    assert [path for path in modules if text.search(path.read_text(encoding="utf-8"))] == []


def test_the_daemon_tells_it() -> None:
    command = [sys.executable, "-m", "dlogd", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"dlogd {VERSION}\n"


@pytest.mark.parametrize("version", [VERSION, UNKNOWN, "1.2.3+site.4", "1.0rc1", "1!2.0", "+", ""])
def test_every_version_can_be_told_to_a_node(version: str) -> None:
    told = wire_version(version)
    assert all(map(api_versions.SOFTWARE_NAME.fullmatch, (told, SOFTWARE_NAME)))
