"""Frame of a pipeline as a job: session, metrics, repetition, end.

`dlogctl pipeline` and programs for spark-submit use it; docs/spark.md.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dlog.spark.errors import SparkSourceError
from dlog.spark.pipelines.events import Ended, Event, Observer, nobody
from dlog.spark.pipelines.metrics import Names, exported
from dlog.spark.pipelines.session import running_session

Result = TypeVar("Result")
_OURS = re.compile(r"\[((?:DLOG|KAFKA|MISMATCHED|RESOLVED|UNRESOLVED)_[A-Z_.]+)\] (.+)")

_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)
_CAUSED_BY = "Caused by: "


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFrame:
    """What all jobs have in common."""

    pipeline: str
    job: str
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    metrics_path: Path | None = None
    metrics_address: tuple[str, int] | None = None


@contextmanager
def running(frame: JobFrame, observe: Observer) -> Iterator[tuple[SparkSession, Observer]]:
    """Give the session, and the observer that a pipeline is to tell.

    What Spark raises meanwhile, here or for a task, becomes a SparkSourceError.
    """
    names = Names(frame.pipeline, frame.job)
    with exported(names, frame.metrics_path, frame.metrics_address) as count:

        def tell(event: Event) -> None:
            count(event)
            observe(event)

        name = f"dlog {frame.pipeline} {frame.job}"
        try:
            with running_session(name, master=frame.master, conf=frame.conf) as session:
                yield session, tell
        except (PySparkException, Py4JError) as error:
            raise in_words(error) from error


def in_words(error: Exception) -> SparkSourceError:
    """Return what is told of an error of Spark: ours, that it carries as text, or else its own."""
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        return SparkSourceError(ours[1], ours[2], "")
    if "JAVA_GATEWAY_EXITED" in text:
        return SparkSourceError(
            "DLOG_NO_JAVA",
            "Spark's JVM has not started.",
            "It needs Java 17: let JAVA_HOME name one, or have java in the PATH.",
        )
    return SparkSourceError(
        "DLOG_SPARK_FAILED",
        f"{type(error).__name__}: {_telling(text)}",
        "Spark's own log says more, and dlogctl --debug.",
    )


def _telling(text: str) -> str:
    """Return the line of a long error that says what it was."""
    lines = [line for line in text.strip().splitlines() if line.strip()] or [""]
    _, traceback, below = text.partition("Traceback (most recent call last):")
    raised = _RAISED.findall(below) if traceback else []
    if raised:
        return str(raised[-1])
    said = lines[0].strip()
    if said.startswith("An error occurred while calling") and len(lines) > 1:
        said = lines[1].removeprefix(": ").strip()
    # Of Java's chain the last is what happened: no space left on the disk, say.
    causes = [line for line in lines if line.startswith(_CAUSED_BY)]
    return f"{said} ({causes[-1].removeprefix(_CAUSED_BY).strip()})" if causes else said


def run(
    frame: JobFrame,
    work: Callable[[SparkSession, Observer], Result],
    observe: Observer = nobody,
) -> Result:
    """Run a pipeline once and return its result; an error is counted and raised."""
    with running(frame, observe) as (session, tell):
        return _run_once(session, work, tell)


def run_every(
    frame: JobFrame,
    work: Callable[[SparkSession, Observer], object],
    interval_s: float,
    observe: Observer = nobody,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Run a pipeline again and again in one session, `interval_s` after the last one began.

    Ends with an error, or with what `wait` raises.
    """
    with running(frame, observe) as (session, tell):
        while True:
            started_s = time.monotonic()
            _run_once(session, work, tell)
            wait(max(0.0, started_s + interval_s - time.monotonic()))


def _run_once(
    session: SparkSession, work: Callable[[SparkSession, Observer], Result], tell: Observer
) -> Result:
    started_s = time.monotonic()
    error = "interrupted"
    try:
        result = work(session, tell)
        error = ""
        return result
    finally:
        tell(Ended(seconds=time.monotonic() - started_s, error=error))
