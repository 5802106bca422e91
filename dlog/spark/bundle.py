"""Archive that brings dlog to hosts where it is not installed.

`python -m dlog.spark.bundle FILE.zip` writes one for `spark-submit --py-files`; `register` makes
one by itself. Python imports from it:

    dlog/..., kio/...                        what runs, in Python
    pyspark_dlog.py                          by which Spark finds the source
    dlog_compiled/<tag>/packages/...         crc32c, cramjam
    dlog_compiled/<tag>/dlog_batch/...       dlog's own extension

Compiled parts are those that are installed here; `dlog.spark.install.shipped` unpacks them on hosts
whose tag is the same, others do without. The same content gives the same bytes, whoever makes it
when.
"""

import hashlib
import importlib.util
import io
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from dlog.spark.install.shipped import BATCH_FOLDER, COMPILED, PACKAGES_FOLDER, platform_tag

# kio's readers and writers are compiled and not used; its messages are plain classes.
_KIO = ("kio/__init__.py", "kio/_version.py", "kio/schema/", "kio/static/")
_COMPILED_PACKAGES = ("crc32c", "cramjam")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip can say
_MODE = 0o644 << 16


def make_bundle() -> bytes:
    """Return the archive; raises ModuleNotFoundError where dlog itself is not complete."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_files()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _MODE
            archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


def bundle_name(content: bytes) -> str:
    """Return a file name that is another one for another content."""
    return f"dlog-{hashlib.sha256(content).hexdigest()[:12]}.zip"


def _files() -> Iterator[tuple[str, Path]]:
    """Yield what belongs into the archive, by its name there."""
    dlog = _folder("dlog")
    yield from _python_files(dlog)
    shim = dlog.parent / "pyspark_dlog.py"
    if shim.is_file():
        yield shim.name, shim
    for name, path in _python_files(_folder("kio")):
        if name.startswith(_KIO):
            yield name, path
    root = f"{COMPILED}/{platform_tag()}"
    for path in (dlog / "batch").iterdir():
        if path.name.startswith("_speedups.") and path.name.endswith(tuple(EXTENSION_SUFFIXES)):
            yield f"{root}/{BATCH_FOLDER}/{path.name}", path
    for package in _COMPILED_PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        folder = _folder(package)
        yield from (
            (f"{root}/{PACKAGES_FOLDER}/{path.relative_to(folder.parent).as_posix()}", path)
            for path in folder.rglob("*")
            if path.suffix == ".py" or path.name.endswith(tuple(EXTENSION_SUFFIXES))
        )


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package}", name=package)
    return Path(next(iter(spec.submodule_search_locations)))


def _python_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*.py"):
        yield path.relative_to(folder.parent).as_posix(), path


def main(arguments: list[str]) -> int:
    """Write the archive to the file that is named; return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m dlog.spark.bundle FILE.zip\n")
        return 2
    Path(arguments[0]).write_bytes(make_bundle())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
