"""Renews the lock files of the bundle: `make lock`, which needs the network.

`deploy/bundle/requirements.txt` gets what the daemon and dlogctl need, each at one version for all
hosts that a bundle can be for, with the hash of every file that one of them takes.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.bundle.targets import (
    MACHINES,
    PYTHONS,
    REQUIREMENTS,
    ROOT,
    SOURCE_ONLY,
    TOOLS,
    choices,
)

HEAD = "# Made by `make lock` from pyproject.toml. Do not edit.\n"
TOOL_NAMES = ("pip", "setuptools")

Pins = dict[str, tuple[str, set[str]]]
"""Version and SHA-256 hashes by the normalized name of a package (PEP 503)."""


def normalized(name: str) -> str:
    """Return the name by which a package is known (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _report(requirements: Iterable[str], options: Iterable[str]) -> list[dict[str, Any]]:
    """Ask pip what it would install."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--disable-pip-version-check", "--report", str(report)]
        command += ["--target", str(Path(folder) / "never"), *options, *requirements]
        subprocess.run(command, check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return found


def _add(pins: Pins, installs: Iterable[dict[str, Any]]) -> None:
    for each in installs:
        name = normalized(each["metadata"]["name"])
        version = each["metadata"]["version"]
        sha256 = each["download_info"]["archive_info"]["hashes"]["sha256"]
        known, hashes = pins.setdefault(name, (version, set()))
        if known != version:
            raise SystemExit(f"lock: {name} would be {known} on one host and {version} on another")
        hashes.add(sha256)


def text_of(pins: Pins) -> str:
    """Return a requirements file with hashes, in pip's format."""
    lines = [HEAD]
    for name, (version, hashes) in sorted(pins.items()):
        lines.append(f"{name}=={version}")
        lines[-1] += "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(hashes)) + "\n"
    return "".join(lines)


def read(path: Path) -> dict[str, str]:
    """Return the lines of a lock file by the package's name, hashes included."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found = defaultdict(str)
    for line in text.splitlines():
        if line and not line.startswith("#"):
            found[line.partition("==")[0]] = " ".join(line.split())
    return dict(found)


def wanted() -> list[str]:
    """Return the requirements of pyproject.toml, without those of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["dependencies"])


def main() -> None:
    """Write both files."""
    everything = [each.partition(";")[0].strip() for each in wanted()]
    by_name = {normalized(re.split(r"[<>=!~]", each)[0]): each for each in everything}
    wheels = [each for name, each in by_name.items() if name not in SOURCE_ONLY]
    pins: Pins = {}
    for machine in MACHINES:
        for python in PYTHONS:
            _add(pins, _report(wheels, choices(python, machine)))
            print(f"lock: {python} on {machine}: {len(pins)} packages", flush=True)
    sources = [by_name[name] for name in sorted(SOURCE_ONLY)]
    _add(pins, _report(sources, ["--no-deps", "--no-binary=:all:"]))
    REQUIREMENTS.write_text(text_of(pins), encoding="utf-8")
    tools: Pins = {}
    _add(tools, _report(TOOL_NAMES, ["--no-deps", "--only-binary=:all:"]))
    TOOLS.write_text(text_of(tools), encoding="utf-8")


if __name__ == "__main__":
    main()
