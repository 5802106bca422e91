"""Unpacked bundles with a tiny dlog in them, for tests of releases."""

import ensurepip
import json
import platform
import shutil
import zipfile
from pathlib import Path
from typing import Any

from dlogctl.release import bundle

PROGRAM = "import sys\n\ndef main() -> None:\n    print('dlogd', {version!r}, sys.prefix)\n"
INFO = "Metadata-Version: 2.1\nName: dlog\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRIES = "[console_scripts]\ndlogd = tinydlog:main\ndlogctl = tinydlog:main\n"


def write_wheel(place: Path, version: str) -> None:
    """Write the wheel of a dlog whose programs tell their version and their place."""
    info = f"dlog-{version}.dist-info"
    files = {
        "tinydlog.py": PROGRAM.format(version=version),
        f"{info}/METADATA": INFO.format(version=version),
        f"{info}/WHEEL": WHEEL,
        f"{info}/entry_points.txt": ENTRIES,
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(place / f"dlog-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


def bundle_of(folder: Path, version: str = "1.0", **changed: Any) -> Path:
    """Lay out a bundle for this host; `changed` are fields of its manifest."""
    for part in ("wheels", "pip", "systemd"):
        (folder / part).mkdir(parents=True)
    write_wheel(folder / "wheels", version)
    (pip,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    shutil.copy(pip, folder / "pip")
    (folder / "systemd" / "dlogd.service").write_text("[Unit]\n", encoding="utf-8")
    manifest = {
        "format": bundle.FORMAT,
        "version": version,
        "commit": f"commit of {version}",
        "machine": platform.machine(),
        "pythons": {bundle.this_python(): "pure"},
        "feature_levels": {"oldest": 1, "newest": 3},
        "predecessor_newest_level": 2,
        **changed,
    }
    (folder / bundle.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    seal(folder)
    return folder


def seal(folder: Path) -> None:
    """Write SHA256SUMS for what lies there now."""
    (folder / bundle.SUMS).write_text(bundle.sums_of(folder), encoding="utf-8")
