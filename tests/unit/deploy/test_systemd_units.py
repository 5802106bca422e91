"""The systemd units: systemd's own check, and that they agree with the daemon and each other."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dlogd.config.schema import Config
from scripts.units import UNITS, VALUES, unit

EXPOSURE_MAX = 15
"""In tenths, as `systemd-analyze security` counts."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze here"
)


def settings(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit by name; one may stand several times."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", VALUES)
def test_they_are_made_from_the_template(name: str) -> None:
    again = "write them again: python -m scripts.units"
    assert (UNITS / name).read_text(encoding="utf-8") == unit(name), again


@needs_systemd
@pytest.mark.parametrize("name", VALUES)
def test_little_of_the_host_is_exposed(name: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}"]
    done = subprocess.run([*command, UNITS / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


@needs_systemd
def test_systemd_accepts_them(tmp_path: Path) -> None:
    for name in ("dlogd.service", "dlogd@.service"):
        text = (UNITS / name).read_text().replace("/opt/dlog/current/bin/dlogd", "/bin/true")
        for key in ("User", "Group"):  # the account is not on this machine
            text = text.replace(f"\n{key}=dlog\n", f"\n{key}=root\n")
        (tmp_path / name).write_text(text)
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None
    verified = subprocess.run(
        [analyze, "verify", tmp_path / "dlogd.service", tmp_path / "dlogd@1.service"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": str(tmp_path)},  # a bare host has no `man`
    )
    complaints = [line for line in verified.stderr.splitlines() if "dlogd" in line]
    assert (verified.returncode, complaints) == (0, [])


def test_they_agree_with_the_daemon() -> None:
    unit = settings("dlogd.service")
    assert unit["Type"] == ["notify"]
    assert unit["RestartPreventExitStatus"] == [f"{os.EX_USAGE} {os.EX_CONFIG}"]
    # Connections are cut before the service manager loses its patience.
    assert int(unit["TimeoutStopSec"][0]) * 1000 > 2 * Config().shutdown.timeout_ms
    assert Config().data.directories == ("/var/lib/dlog",)
    assert unit["StateDirectory"] == ["dlog"]
    assert "--check-config" in unit["ExecReload"][0]
    assert unit["ExecStart"][0] in unit["ExecReload"][0]


def test_the_template_differs_in_the_instance_only() -> None:
    one, template = settings("dlogd.service"), settings("dlogd@.service")
    differing = {key for key in one | template if one.get(key) != template.get(key)}
    assert differing == {"Description", "ExecStart", "ExecReload", "StateDirectory"}
    for key in differing:
        assert any("%i" in value for value in template[key])
