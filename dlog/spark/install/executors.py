"""Check, by a small job, that the Python of executors has what tasks need.

On a classic session, or through Spark Connect, which has no RDDs: there a function of rows looks.

Without it, what is wrong shows as "Python worker exited unexpectedly", and why only on the
executor's standard error.
"""

import importlib
import importlib.util
import json
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.errors import PySparkException

from dlog.spark.errors import SparkSourceError
from dlog.spark.install.missing_packages import PACKAGES, not_installed

Facts = dict[str, Any]
ASKED_ROWS = 256
"""Of a client of Spark Connect, which cannot tell how many tasks run at once."""


def check_executors(spark: Any) -> list[Facts]:
    """Return what the executors' interpreters are; raises SparkSourceError for what is missing.

    Asks as many tasks as run at once; a host without a free place is not asked.
    """
    # Clients of Spark Connect do without it.
    from py4j.protocol import Py4JError  # noqa: PLC0415

    context = spark.sparkContext
    count = max(1, context.defaultParallelism)
    try:
        found: list[Facts] = context.parallelize(range(count), count).map(_look()).collect()
    except (PySparkException, Py4JError) as error:
        raise _no_task(f" ({context.pythonExec})", error) from error
    return _checked(found)


def check_server(spark: Any) -> list[Facts]:
    """Do the same through Spark Connect; the tasks are as many as the server makes of some rows."""
    # Classic sessions do without its packages.
    from pyspark.sql.connect.functions import udf  # noqa: PLC0415

    # Not by Arrow: pyarrow may be what is missing.
    look: Any = udf(_look_in_words(), "string", useArrow=False)
    try:
        rows = spark.range(ASKED_ROWS).select(look("id").alias("facts")).distinct().collect()
    except PySparkException as error:
        raise _no_task("", error) from error
    return _checked(json.loads(row["facts"]) for row in rows)


def _no_task(python: str, error: Exception) -> SparkSourceError:
    return SparkSourceError(
        "DLOG_EXECUTOR_PYTHON",
        f"No Python task runs on the executors{python}: {_why(error)}",
        "PYSPARK_PYTHON (or spark.pyspark.python) names an interpreter that each host has, of"
        f" version {sys.version_info[0]}.{sys.version_info[1]} as here.",
    )


def _checked(found: Iterable[Facts]) -> list[Facts]:
    told = list(found)
    for facts in told:
        if facts["missing"]:
            raise not_installed(facts["missing"], f"Python on {facts['host']} ({facts['python']})")
        if facts["error"]:
            raise SparkSourceError(
                "DLOG_NOT_IMPORTABLE",
                f"Python on {facts['host']} ({facts['python']}) cannot import dlog:"
                f" {facts['error']}.",
                "Register with ship=True, or install dlog there.",
            )
    return told


def _why(error: Exception) -> str:
    """Return the line of a long error that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = ("Cannot run program", "PYTHON_VERSION_MISMATCH", "Error:", "No such file")
    return next((line for line in lines if any(each in line for each in telling)), lines[0])


def _look() -> Callable[[int], Facts]:
    """Return the task. A nested function travels whole: nothing of dlog need be there for it."""
    wanted = [name for name in PACKAGES if name != "pyspark"]

    def look(_number: int) -> Facts:
        facts: dict[str, Any] = {
            "host": socket.gethostname(),
            "python": sys.executable,
            "missing": [name for name in wanted if importlib.util.find_spec(name) is None],
            "error": "",
            "without": [],
        }
        if not facts["missing"]:
            try:
                importlib.import_module("dlog.spark.source")
                shipped = importlib.import_module("dlog.spark.install.shipped")
                facts["without"] = shipped.missing_parts()
            except ImportError as error:
                facts["error"] = str(error)
        return facts

    return look


def _look_in_words() -> Callable[[int], str]:
    """Return the same as JSON."""
    look = _look()

    def told(number: int) -> str:
        return json.dumps(look(number), sort_keys=True)

    return told
