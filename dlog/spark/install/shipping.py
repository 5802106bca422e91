"""Shipping of dlog to every process of a session; called by `register`.

On a classic session: `addPyFile`, and a link for the planner of streaming queries, which looks for
files one folder too deep. That is a bug of Spark 4: it asks for the files of the job
"streaming_job", of which nobody put any there. On Spark Connect: an artifact, which reaches
everything but that planner.
"""

import atexit
import contextlib
import os
import shutil
import site
import sys
import tempfile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException

import dlog
from dlog.spark.bundle import bundle_name, make_bundle
from dlog.spark.errors import SparkSourceError
from dlog.spark.install.shipped import archive_of

_STREAMING = "streaming_job"
# What was made for whom. Another context may get another archive: dlog may be a newer one by then.
_made: WeakKeyDictionary[Any, Path] = WeakKeyDictionary()


def is_connect(spark: Any) -> bool:
    """Return whether the session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def same_python_everywhere(spark: Any) -> bool:
    """Return whether all processes of a classic session run here, by this interpreter."""
    context = spark.sparkContext
    if context.master.partition("[")[0] != "local":
        return False
    python = context.pythonExec
    found = python if os.sep in python else _on_path(python)
    return found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)


def _on_path(program: str) -> str | None:
    for folder in os.get_exec_path():
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK):
            return path
    return None


def is_found_by_others() -> bool:
    """Return whether an interpreter that is started as this one was finds dlog by itself."""
    root = Path(next(iter(dlog.__path__))).resolve().parent
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [*site.getsitepackages(), site.getusersitepackages(), *filter(None, python_path)]
    return any(Path(place).resolve() == root for place in places)


def ship(spark: Any) -> None:
    """Make dlog importable in all Python processes of the session. Idempotent."""
    if is_connect(spark):
        _ship_as_artifact(spark)
        return
    if not (same_python_everywhere(spark) and is_found_by_others()):
        _ship_as_file(spark)
    link_streaming_files()


def _ship_as_file(spark: Any) -> None:
    context = spark.sparkContext
    archive = _archive_for(context)
    if archive.name in (context._python_includes or ()):
        return
    before = list(sys.path)
    context.addPyFile(str(archive))
    # It puts the archive before what is installed here, where kio, say, is complete.
    sys.path[:] = before


def _ship_as_artifact(spark: Any) -> None:
    archive = _archive_for(spark)
    try:
        spark.addArtifacts(str(archive), pyfile=True)
    except PySparkException as error:
        raise SparkSourceError(
            "DLOG_SHIPPING_FAILED",
            f"The server refused the artifact: {error}",
            "Install dlog on the server and its executors, and register with ship=False.",
        ) from error


def _archive_for(target: Any) -> Path:
    """Return the archive for a context or a session of Connect: made once, for it takes a while."""
    archive = archive_of(dlog.__spec__) or _made.get(target)
    if archive is None or not archive.exists():
        archive = _made[target] = _written(make_bundle())
    return archive


def _written(content: bytes) -> Path:
    """Return the archive's file, in a folder of this user alone that goes with this program."""
    folder = Path(tempfile.mkdtemp(prefix="dlog-spark-"))
    # Executors fetch it from there for as long as there is a driver.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / bundle_name(content)
    path.write_bytes(content)
    return path


def link_streaming_files() -> None:
    """Let the planner of streaming queries find what `addPyFile` added, ours and the user's."""
    from pyspark import SparkFiles  # a client of Spark Connect may not have it

    root = SparkFiles.getRootDirectory()
    link = os.path.join(root, _STREAMING)
    # Not by a look before: threads register at the same time, each has to.
    with contextlib.suppress(FileExistsError):
        os.symlink(root, link, target_is_directory=True)
