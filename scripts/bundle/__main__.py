"""Builds the bundle: `make bundle`, or `make bundle VERSION=x` for the same code with another name.

The first run fetches packages; later ones need no network. Two builds of one commit are equal, byte
for byte, but for the extension that a compiler makes.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from dlog.version import VERSION
from dlogctl.release import bundle
from dlogctl.shell.shells import SHELLS, script
from dlogd.metadata.state.limits import LEVEL_NEWEST, LEVEL_OLDEST
from scripts.bundle import archive, wheels
from scripts.bundle.targets import MACHINES, ROOT

LEVEL_OF_PREDECESSOR = LEVEL_NEWEST
"""The newest feature level of the release before this one. There is none yet."""

OPERATORS_FILES = ("hosts.ini", "group_vars", "host_vars", "*.secret", "*.serf")
"""Inventory and keys of an operator, beside the plays: every user of a host can read a release."""

_VERSION = re.compile(
    r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)


def checked_version(text: str) -> str:
    """Return a version that pip will not write otherwise (PEP 440, normal form)."""
    if not _VERSION.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no version: write it as in 1.2.3, 1.2.3rc1 or 1.2.3+site.4"
        )
    return text


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def source() -> tuple[str, int]:
    """Return the commit and its time in seconds, which is that of all files of the bundle."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "unknown", wheels.OTHERS_EPOCH_S
    is_changed = _git("status", "--porcelain", "--untracked-files=no")
    epoch_s = int(_git("show", "-s", "--format=%ct", "HEAD"))
    return (f"{commit}-changed" if is_changed else commit), epoch_s


def copy_part(source: Path, target: Path) -> None:
    """Copy units or plays, without what an operator keeps beside them: what git knows, if it can.

    Without a history everything but files of the usual names is taken.
    """
    known = [ROOT / name for name in _git("ls-files", "--", str(source)).splitlines()]
    if not known:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*OPERATORS_FILES))
    for path in filter(Path.is_file, known):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def _fill(folder: Path, version: str, commit: str, epoch_s: int) -> None:
    """Lay out everything in a new folder."""
    machine = platform.machine()
    place = folder / "wheels"
    place.mkdir(parents=True)
    cache = wheels.fetched(machine)
    for wheel in (cache / "wheels").glob("*.whl"):
        shutil.copy(wheel, place)
    kinds = wheels.own(cache, place, version, epoch_s)
    (folder / "pip").mkdir()
    shutil.copy(wheels.pip_wheel(cache), folder / "pip")
    # What makes a release on a host runs before any of this is installed.
    package = folder / "installer" / "dlogctl"
    shutil.copytree(
        ROOT / "dlogctl" / "release",
        package / "release",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(ROOT / "dlogctl" / "__init__.py", package)
    shutil.copy(ROOT / "deploy" / "bundle" / "install", folder)
    for part in ("systemd", "ansible"):
        copy_part(ROOT / "deploy" / part, folder / part)
    (folder / "etc").mkdir()
    shutil.copy(ROOT / "etc" / "dlog.yaml", folder / "etc")
    (folder / "man").mkdir()
    shutil.copy(ROOT / "docs" / "man" / "dlogctl.1", folder / "man")
    (folder / "completions").mkdir()
    for shell in SHELLS:
        text = script(shell)
        (folder / "completions" / f"dlogctl.{shell}").write_text(text, encoding="utf-8")
    manifest = {
        "format": bundle.FORMAT,
        "version": version,
        "commit": commit,
        "machine": machine,
        "pythons": kinds,
        "feature_levels": {"oldest": LEVEL_OLDEST, "newest": LEVEL_NEWEST},
        "predecessor_newest_level": LEVEL_OF_PREDECESSOR,
    }
    text = json.dumps(manifest, indent=2) + "\n"
    (folder / bundle.MANIFEST).write_text(text, encoding="utf-8")
    (folder / bundle.SUMS).write_text(bundle.sums_of(folder), encoding="utf-8")


def main() -> None:
    """Build the file and say where it is."""
    parser = argparse.ArgumentParser(prog="make bundle", description=__doc__.partition("\n")[0])
    parser.add_argument("--version", type=checked_version, default=VERSION)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder for the file")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    name = f"dlog-{options.version}"
    file = options.to / f"{name}-{platform.machine()}.tar.gz"
    if platform.machine() not in MACHINES:
        raise SystemExit(f"bundle: made for {', '.join(MACHINES)}, not for {platform.machine()}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        commit, epoch_s = source()
        _fill(folder, options.version, commit, epoch_s)
        archive.pack(folder, file, epoch_s)
    print(f"bundle={file} version={options.version} bytes={file.stat().st_size}")


if __name__ == "__main__":
    main()
