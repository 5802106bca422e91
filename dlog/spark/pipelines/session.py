"""Spark session of a pipeline: the caller's, the submitted one, or a new one."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from dlog.spark import registration

MASTER = "local[*]"
SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
}
"""Of a session of our own; `conf` overrides them."""


@contextmanager
def running_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Give the session in which dlog is registered; one that was made here is stopped at the end.

    Below spark-submit, master and settings are those that were submitted.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        registration.register(active)
        yield active
        return
    # Workers take the first python3 of the PATH otherwise, which may not have pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master(master or MASTER)
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        registration.register(session)
        yield session
    finally:
        session.stop()
