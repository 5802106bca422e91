"""`install` of a bundle: what a play or an operator calls on a host, before dlog is there.

Exit codes: 0 done; 1 refused, for the reason on standard error; 64 wrong usage. The last line of
the output is `version=x changed=yes|no`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dlogctl.release import bundle, directory, making
from dlogctl.release.bundle import RefusedError

BIN = Path("/usr/local/bin")
PROGRAMS = ("dlogd", "dlogctl")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(os.EX_USAGE, f"{self.prog}: {message}\n")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="install", description="Makes a release of dlog on this host.")
    parser.add_argument("verb", choices=("check", "make", "switch", "clean"))
    parser.add_argument("--root", type=Path, default=directory.ROOT, help="default: %(default)s")
    parser.add_argument("--bin", type=Path, default=BIN, help="where the programs are linked")
    parser.add_argument("--feature-level", type=int, help="the cluster's; refused if it is unknown")
    parser.add_argument("--version", help="the release to switch to (default: the bundle's)")
    parser.add_argument("--keep", type=int, default=3, help="how many releases stay (clean)")
    return parser.parse_args(arguments)


def link_programs(root: Path, place: Path) -> bool:
    """Link the programs through `current`; return whether a link changed."""
    changed = False
    for name in PROGRAMS:
        target = root / directory.CURRENT / "bin" / name
        link = place / name
        if link.is_symlink() and Path(os.readlink(link)) == target:
            continue
        if link.exists() and not link.is_symlink():
            raise RefusedError(f"{link} is there and no link: remove it, or move it away.")
        new = place / f".{name}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.rename(link)
        changed = True
    return changed


def _run(options: argparse.Namespace, folder: Path) -> tuple[str, bool]:
    if options.verb == "check":
        manifest = bundle.check(folder, options.feature_level)
        present = directory.linked(directory.CURRENT, options.root)
        if present is not None:
            path = directory.path_of(present, options.root)
            bundle.check_predecessor(manifest, bundle.read_manifest(path))
        return manifest.version, False
    if options.verb == "make":
        made: tuple[str, bool] = making.make(folder, options.root, options.feature_level)
        return made
    with making.locked(options.root):
        if options.verb == "clean":
            gone = directory.old(options.keep, options.root)
            directory.delete(gone, options.root)
            return ",".join(gone), bool(gone)
        version = options.version or bundle.read_manifest(folder).version
        switched = directory.switch(version, options.root)
        return version, link_programs(options.root, options.bin) or switched


def main(arguments: Sequence[str], folder: Path) -> int:
    """Run the installer of the bundle that is unpacked in `folder`."""
    options = _parse(arguments)
    try:
        version, changed = _run(options, folder)
    except RefusedError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"install: {error}: run it as root, with sudo", file=sys.stderr)
        return 1
    print(f"version={version} changed={'yes' if changed else 'no'}")
    return 0
