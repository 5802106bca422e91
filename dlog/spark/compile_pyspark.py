"""Tool that adds compiled modules to the archives from which Spark starts Python.

`python -m dlog.spark.compile_pyspark`, once on each host, as the owner of the Spark installation,
for the Python that runs the tasks; `--undo` restores what was there.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` before everything else on their path, and Python
keeps nothing of what it compiles from an archive: the planner of each streaming query, and the
first task of each executor, compile PySpark for some 0.5 s of CPU (a planner's imports take
1.0 s, from compiled modules 0.5 s; Spark 4.2.0, Python 3.11, EPYC). An archive may hold compiled
modules beside their sources, and Python takes them when they are its own version's
(https://docs.python.org/3/library/zipimport.html); other versions pass them over.

What was there stays where it lies in the archive, behind it comes the new: programs that run
meanwhile read on. The archive as it was is kept beside it, as `NAME.zip.orig`.
"""

import argparse
import os
import py_compile
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ORIGINAL = ".orig"


def archives_of_spark() -> list[Path]:
    """Return the archives of the Spark that this Python would start; none are there: empty."""
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - importable without it

    return sorted(Path(_find_spark_home(), "python", "lib").glob("*.zip"))


def compile_archive(path: Path) -> int:
    """Add the compiled form of each module; return how many. Repeatable, for new versions too.

    Raises OSError where the archive or its folder may not be written, zipfile.BadZipFile.
    """
    original = _original_of(path)
    if not _is_compiled(path):  # perhaps of a newer Spark than the one that was kept
        with _replacing(original, path):
            pass
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(original) as sources:
        compiled = _compiled(sources, path, Path(folder))
        with (
            _replacing(path, original) as new,
            zipfile.ZipFile(new, "a", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, code in compiled:
                archive.write(code, name)
    return len(compiled)


def undo(path: Path) -> bool:
    """Put the archive back that was there; return whether there was anything to undo."""
    original = _original_of(path)
    if not original.exists():
        return False
    if _is_compiled(path):
        original.replace(path)
    else:
        original.unlink()  # Spark was installed anew since
    return True


def _original_of(path: Path) -> Path:
    return path.with_name(path.name + _ORIGINAL)


def _is_compiled(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith(".pyc") for name in archive.namelist())


@contextmanager
def _replacing(target: Path, source: Path) -> Iterator[Path]:
    """Give a copy of `source` that takes the place of `target` in the end, as a whole or not."""
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as made:
        new = Path(made.name)
    try:
        shutil.copy2(source, new)
        yield new
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def _compiled(sources: zipfile.ZipFile, path: Path, folder: Path) -> list[tuple[str, Path]]:
    """Return the name in the archive and the file of each module that compiles."""
    made: list[tuple[str, Path]] = []
    for name in sources.namelist():
        if not name.endswith(".py") or "/tests/" in name:
            continue
        source = folder / f"{len(made)}.py"
        source.write_bytes(sources.read(name))
        code = source.with_suffix(".pyc")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Spark's own code is not ours to mend
                py_compile.compile(
                    str(source),
                    str(code),
                    f"{path}{os.sep}{name}",
                    doraise=True,
                    # Dates in archives are local times: they would not be those of the sources.
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
        except py_compile.PyCompileError:
            continue  # no module: a template, or of another Python
        made.append((f"{name}c", code))
    return made


def main(arguments: list[str] | None = None) -> int:
    """Compile, or undo it; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dlog.spark.compile_pyspark",
        description="Let Spark's Python processes start without compiling PySpark each time.",
    )
    parser.add_argument(
        "archives", nargs="*", type=Path, help="default: $SPARK_HOME/python/lib/*.zip"
    )
    parser.add_argument("--undo", action="store_true", help="restore what was there")
    options = parser.parse_args(arguments)
    archives = options.archives or archives_of_spark()
    if not archives:
        sys.stderr.write("no archives of Spark here: set SPARK_HOME, or name them\n")
        return 2
    for path in archives:
        try:
            if options.undo:
                said = "restored" if undo(path) else "nothing to undo"
            else:
                said = f"{compile_archive(path)} modules compiled"
        except (OSError, zipfile.BadZipFile) as error:
            sys.stderr.write(
                f"{path}: {error}: nothing was changed; run this as the owner of the Spark "
                "installation, on its own archives\n"
            )
            return 1
        sys.stdout.write(f"{path}: {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
