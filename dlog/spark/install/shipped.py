"""Compiled parts of an archive, for hosts where dlog runs from the archive.

Python imports no compiled module from a zip. So they are unpacked, if they fit this interpreter
(`platform_tag`), and used where nothing is installed: by workers beside the archive, which is in a
folder of the job's own, once per host; by a driver into a folder that ends with it. Where they do
not fit, everything works without them, slower; that is said once by each process.
"""

import atexit
import importlib
import logging
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath

_log = logging.getLogger(__name__)

COMPILED = "dlog_compiled"
PACKAGES_FOLDER = "packages"
BATCH_FOLDER = "dlog_batch"


def platform_tag() -> str:
    """Return the name of what compiled modules must be made for to run here."""
    return f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"


def archive_of(spec: ModuleSpec | None) -> Path | None:
    """Return the zip that a module was imported from; None when it is installed."""
    found = getattr(getattr(spec, "loader", None), "archive", None)
    return None if found is None else Path(found)


def use_compiled_parts(spec: ModuleSpec | None) -> None:
    """Let imports from now on find the archive's compiled parts; does nothing without an archive.

    Never raises for what cannot be unpacked: all of it is there in Python, too.
    """
    archive = archive_of(spec)
    if archive is None:
        return
    try:
        folder = _unpacked(archive)
    except (OSError, zipfile.BadZipFile) as error:
        folder = None
        _log.warning("Could not unpack compiled parts archive=%s reason=%s", archive, error)
    if folder is not None:
        # Behind everything that is installed.
        sys.path.append(str(folder / PACKAGES_FOLDER))
        package = importlib.import_module("dlog.batch")
        package.__path__.append(str(folder / BATCH_FOLDER))
        importlib.invalidate_caches()
    missing = missing_parts()
    if missing:
        _log.warning(
            "Running without compiled parts missing=%s platform=%s: the same, slower",
            ",".join(missing),
            platform_tag(),
        )


def missing_parts() -> list[str]:
    """Return which compiled parts this process does without."""
    parts = {
        "dlog.batch._speedups": ("dlog.batch.native", "IS_COMPILED"),
        "crc32c": ("dlog.checksum", "IS_NATIVE"),
        "cramjam": ("dlog.compression", "IS_NATIVE"),
    }
    return [
        part
        for part, (module, flag) in parts.items()
        if not getattr(importlib.import_module(module), flag)
    ]


def _unpacked(archive: Path) -> Path | None:
    """Return the folder with the parts that fit, unpacking it when nobody has yet."""
    prefix = f"{COMPILED}/{platform_tag()}/"
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if name.startswith(prefix)]
        if not names:
            return None
        if not _is_with_worker(archive):
            folder = Path(tempfile.mkdtemp(prefix="dlog-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            _unpack(opened, prefix, names, folder)
            return folder
        folder = archive.with_name(f"{archive.stem}-{platform_tag()}")
        if folder.is_dir():
            return folder
        # Other processes of this host may be at it, too: the first one to rename it has made it.
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=archive.parent))
        try:
            _unpack(opened, prefix, names, making)
            os.rename(making, folder)
        except OSError:
            shutil.rmtree(making, ignore_errors=True)
            if not folder.is_dir():
                raise
    return folder


def _is_with_worker(archive: Path) -> bool:
    """Return whether this is one of Spark's workers, and the archive among its files."""
    files = sys.modules.get("pyspark.core.files")
    root = None if files is None else files.SparkFiles._root_directory
    return root is not None and Path(root).resolve() in archive.resolve().parents


def _unpack(opened: zipfile.ZipFile, prefix: str, names: list[str], folder: Path) -> None:
    for name in names:
        path = folder / PurePosixPath(name.removeprefix(prefix))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(opened.read(name))
