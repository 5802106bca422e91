"""A pipeline in a process of its own, which kills itself at a moment that is given.

`python -m tests.spark.pipeline_process JSON`: `pipeline`, the fields of the job, and `kill`:
a phase and a batch (`["sealed", 1]`), or the number of bytes in the folder, or of records in the
target's first partition, at which SIGKILL strikes.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlog.client.blocking import Consumer
from dlog.spark.pipelines.archive import ArchiveJob, archive
from dlog.spark.pipelines.events import Event, Phase
from dlog.spark.pipelines.jobs import JobFrame, run
from dlog.spark.pipelines.replay import ReplayJob, replay
from dlog.spark.settings import ClientSettings

CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _when(holds: Callable[[], bool]) -> None:
    """Die, from another thread, as soon as something holds."""

    def watch() -> None:
        while not holds():
            time.sleep(0.005)
        _die()

    threading.Thread(target=watch, daemon=True).start()


def _bytes_staged(folder: Path) -> int:
    """Return the bytes of all data files; folders come and go meanwhile, which `walk` forgives."""
    total = 0
    for below, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(below, name).stat().st_size if name.endswith(".parquet") else 0
            except FileNotFoundError:
                continue
    return total


def _at_phase(wanted: Phase) -> Callable[[Event], None]:
    def observe(event: Event) -> None:
        if event == wanted:
            _die()

    return observe


def _archive(given: dict[str, Any], settings: ClientSettings, kill: Any) -> None:
    folder = Path(given["folder"])
    job = ArchiveJob(
        topics=(given["topic"],),
        folder=given["folder"],
        settings=settings,
        source={"kafka.bootstrap.servers": settings.bootstrap},
        batch_offsets=given["batch_offsets"],
    )
    observe: Callable[[Event], None] = lambda _: None  # noqa: E731
    if isinstance(kill, list):
        observe = _at_phase(Phase(name=kill[0], batch=kill[1]))
    else:
        _when(lambda: _bytes_staged(folder) >= kill)
    frame = JobFrame(pipeline="archive", job="killed", master="local[2]", conf=CONF)
    run(frame, lambda spark, tell: archive(spark, job, tell), observe)


def _replay(given: dict[str, Any], settings: ClientSettings, kill: Any) -> None:
    job = ReplayJob(
        folder=given["folder"], topic=given["topic"], target=given["target"], settings=settings
    )
    observe: Callable[[Event], None] = lambda _: None  # noqa: E731
    if isinstance(kill, list):
        observe = _at_phase(Phase(name=kill[0], batch=kill[1]))
    else:
        key = (given["target"], 0)
        consumer = Consumer(settings.bootstrap)
        consumer.start()
        _when(lambda: sum(consumer.end_offsets([key]).values()) >= kill)
    frame = JobFrame(pipeline="replay", job="killed", master="local[2]", conf=CONF)
    run(frame, lambda spark, tell: replay(spark, job, tell), observe)


def main() -> None:
    """Run until killed; a run that gets to its end has the exit code 0."""
    given = json.loads(sys.argv[1])
    settings = ClientSettings(bootstrap=given["bootstrap"])
    work = {"archive": _archive, "replay": _replay}[given["pipeline"]]
    work(given, settings, given["kill"])


if __name__ == "__main__":
    main()
