"""Interpreters with nothing but some packages, as executors have them: no dlog, no pip."""

import sys
import sysconfig
import venv
from pathlib import Path


def bare_python(folder: Path, *packages: str) -> str:
    """Make an environment that has these packages of ours alone; return its interpreter."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    ours = Path(sysconfig.get_path("purelib"))
    theirs = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for package in packages:
        for name in (package, f"{package}.libs"):
            if (ours / name).is_dir():
                (theirs / name).symlink_to(ours / name)
    return str(folder / "bin" / "python")
