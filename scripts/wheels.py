"""Builds the wheel with a compiler and without one, and tries each: `python -m scripts.wheels`.

Needs the network, for pip fetches setuptools. The wheels are built from a source distribution, so
that a file it forgets shows here, and are tried without anything else installed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "setup.py", "README.md", "csrc", "dlog", "dlogd", "dlogctl")
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
NO_COMPILER = "/bin/false"
PIP = ("-m", "pip")
QUIETLY = ("--quiet", "--disable-pip-version-check")
SETUPTOOLS = "setuptools>=69"  # as in pyproject.toml
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
TRY = """
import sys
for name in ("crc32c", "cramjam", "kio"):
    sys.modules[name] = None
from dlog.batch.build import BatchBuilder
from dlog.batch.decoding import decode_records
from dlog.batch.native import IS_COMPILED
from dlog.compression import Codec
builder = BatchBuilder(Codec.GZIP, 1000)
assert builder.append_many([b"k"] * 9, [b"v"] * 9, 5) == 9
assert [r.value for r in decode_records(builder.build())] == [b"v"] * 9
assert IS_COMPILED is (sys.argv[1] == "compiled"), IS_COMPILED
"""


def copy_tree(copy: Path) -> None:
    """Copy what a wheel is built from into a new folder."""
    copy.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=NOT_COPIED)
        else:
            shutil.copy(source, copy / part)


def make_sdist(folder: Path) -> Path:
    """Build the source distribution of a copy of the tree."""
    copy = folder / "tree"
    copy_tree(copy)
    # Not this interpreter's setuptools: pyproject.toml asks for a certain one.
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, *PIP, "install", *QUIETLY, SETUPTOOLS], check=True)
    build = [python, "-c", SDIST, str(folder)]
    subprocess.run(build, cwd=copy, check=True, stdout=subprocess.DEVNULL)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def make_wheel(sdist: Path, folder: Path, compiler: str | None) -> Path:
    """Build the wheel, with another compiler than the machine's when one is named."""
    environment = {**os.environ, **({"CC": compiler} if compiler else {})}
    place = ["--wheel-dir", str(folder)]
    command = [sys.executable, *PIP, "wheel", *QUIETLY, "--no-deps", "--no-cache-dir", *place]
    subprocess.run([*command, str(sdist)], env=environment, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_wheel(wheel: Path, folder: Path, kind: str) -> None:
    """Unpack the wheel and use it by itself."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        names = archive.namelist()
    strays = [name for name in names if name.endswith((".c", ".h")) or name.startswith("tests/")]
    assert not strays, strays
    assert {"dlog/py.typed", "dlog/batch/_speedups.pyi"} <= set(names)
    # -I would leave the folder out too; -S keeps every installed package away.
    environment = {key: value for key, value in os.environ.items() if key != "DLOG_PURE"}
    environment["PYTHONPATH"] = str(folder)
    subprocess.run([sys.executable, "-S", "-c", TRY, kind], cwd=folder, env=environment, check=True)


def main() -> None:
    """Build and try both wheels."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist = make_sdist(folder)
        for kind, compiler in (("compiled", None), ("pure", NO_COMPILER)):
            place = folder / kind
            place.mkdir()
            wheel = make_wheel(sdist, place, compiler)
            check_wheel(wheel, place / "unpacked", kind)
            print(f"wheels: {kind} ok ({wheel.name}, {wheel.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
