"""Spark Connect: a client, and a server that has dlog installed, or not."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.spark.bundle import make_bundle
from tests.spark.bare import bare_python
from tests.spark.long_form import long_form
from tests.spark.reading import Topics

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240
PROGRAM = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; "
PROGRAM += "runpy.run_module('tests.spark.connect_job', run_name='__main__')"


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    with Topics(bootstrap) as made:
        yield made


def run(
    topics: Topics, folder: Path, python: str, name: str, *paths: Path, **settings: Any
) -> dict[str, Any]:
    """Run a client whose server's workers are of this interpreter; return what it told.

    The server has `paths` in its PYTHONPATH, or, where `register` is not called, all of dlog.
    """
    names = [topics.create(f"{name}-in", 2), topics.create(f"{name}-out", 2)]
    given = {"bootstrap": topics.bootstrap, "topics": names, **settings}
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [each for each in path if each and Path(each).resolve() != ROOT]
    if paths:
        kept = [*map(str, paths), *kept]
    elif not settings["register"]:
        kept.insert(0, str(ROOT))  # installed, for all that start with it
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(given)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(kept),
            "PYSPARK_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false"
            " --conf spark.sql.shuffle.partitions=2 --driver-memory 1g pyspark-shell",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    told["found"] = [
        Counter(int(each.value or b"-1") for log in topics.read_all(topic, 2) for each in log)
        for topic in names
    ]
    return told


def test_dlog_on_the_server(topics: Topics, tmp_path: Path) -> None:
    """Spark finds the source by its name, and everything works."""
    told = run(topics, tmp_path, sys.executable, "installed", register=False)
    assert told["stream_error"] == ""
    assert told["found"] == [Counter(range(1000))] * 2


@long_form
def test_nothing_on_the_server(topics: Topics, tmp_path: Path) -> None:
    """`register` sends what batches need. The planner of streams cannot be reached.

    With `ship=False`, `register` says what is missing, and can be called again.
    """
    python = bare_python(tmp_path / "bare", "pyarrow", "numpy")
    given = {"register": True, "check": True, "ship": False, "goes_on": True}
    told = run(topics, tmp_path, python, "sent", **given)
    assert told["refused"].startswith("[DLOG_NOT_IMPORTABLE] Python on")
    assert python in told["refused"]
    assert told["found"] == [Counter(range(1000)), Counter()]
    assert "No module named 'dlog'" in told["stream_error"]


@long_form
def test_an_archive_on_the_server(topics: Topics, tmp_path: Path) -> None:
    """What the guide says against the error above, where nothing may be installed."""
    python = bare_python(tmp_path / "bare", "pyarrow", "numpy")
    archive = tmp_path / "dlog.zip"
    archive.write_bytes(make_bundle())
    told = run(topics, tmp_path, python, "archive", archive, register=False)
    assert told["stream_error"] == ""
    assert told["found"] == [Counter(range(1000))] * 2


@long_form
def test_what_the_server_lacks_is_said_when_it_is_asked(topics: Topics, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare", "numpy")
    told = run(topics, tmp_path, python, "asked", register=True, check=True)
    assert told["refused"].startswith("[DLOG_PACKAGE_MISSING] Python on")
    assert python in told["refused"] and "pyarrow" in told["refused"]
