"""Options that the `pipeline` commands share, and the frame in which they run.

pyspark is loaded when a pipeline runs: it is an extra, and heavy.
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from dlog.spark.install.missing_packages import missing_packages
from dlogctl.output.documents import format_bytes, format_count, format_duration
from dlogctl.output.escaping import say
from dlogctl.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

_PORT_MAX = 65_535


def take_pairs(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Parse `KEY=VALUE` each; raise click.BadParameter."""
    for text in texts:
        if "=" not in text:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return dict(text.split("=", 1) for text in texts)


def take_address(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[str, int] | None:
    """Parse `[HOST:]PORT`; raise click.BadParameter."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port) or int(port) > _PORT_MAX:
        raise click.BadParameter(f"{text!r} is not HOST:PORT")
    return host or "127.0.0.1", int(port)


_JOB = (
    click.option("--master", metavar="URL",
                 help="Where Spark runs; by default all cores of this host. Below spark-submit "
                 "that is said there."),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", callback=take_pairs,
                 help="Config of Spark; may be given many times."),
    click.option("--option", "source", multiple=True, metavar="KEY=VALUE", callback=take_pairs,
                 help="Option of the data source, such as dlog.tls.ca; may be given many times."),
    click.option("--job", metavar="NAME", help="The name of this job in its metrics."),
    click.option("--metrics", "metrics_path", metavar="FILE.prom",
                 type=click.Path(path_type=Path, dir_okay=False),
                 help="Keep its metrics in this file, for node_exporter's textfile collector."),
    click.option("--metrics-address", metavar="[HOST:]PORT", callback=take_address,
                 help="Serve its metrics there while it runs."),
    click.option("-q", "--quiet", is_flag=True, help="No progress while it runs."),
)  # fmt: skip


def job_options(command: Command) -> Command:
    """Add what every pipeline takes."""
    for option in reversed(_JOB):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the options of every pipeline said."""

    master: str | None
    conf: Mapping[str, str]
    source: Mapping[str, str]
    job: str | None
    metrics_path: Path | None
    metrics_address: tuple[str, int] | None
    quiet: bool

    def frame(self, pipeline: str, name: str) -> Any:
        """Return the frame of a run; `name` is that of the job where none was given."""
        return module("jobs").JobFrame(
            pipeline=pipeline,
            job=self.job or name,
            master=self.master,
            conf=self.conf,
            metrics_path=self.metrics_path,
            metrics_address=self.metrics_address,
        )

    def options(self, settings: Settings) -> dict[str, str]:
        """Return the options of the data source, with the cluster's address."""
        bootstrap = ",".join(map(str, settings.bootstrap))
        return {"kafka.bootstrap.servers": bootstrap, **self.source}

    def reach(self, settings: Settings, options: Mapping[str, str]) -> None:
        """Raise SparkSourceError where no node answers in `--timeout`.

        Before Spark starts, which takes seconds, and whose own patience is that of a job that runs.
        """
        seconds = settings.timeout_s
        hurried = replace(
            client_settings(options),
            connect_timeout_s=seconds,
            request_timeout_s=seconds,
            lookup_deadline_s=seconds,
        )
        with importlib.import_module("dlog.spark.reading.lookup").Lookup(hurried) as lookup:
            lookup.reach()

    def observer(self) -> Callable[[Any], None]:
        """Return what tells people how it goes, on standard error."""
        return (lambda _: None) if self.quiet else _tell


def module(name: str) -> Any:
    """Load a module of the pipelines; a click error says what is not installed."""
    missing = missing_packages()
    if missing:
        raise click.ClickException(
            f"pipelines need {', '.join(missing)}, which is not installed; install it: "
            "pip install 'dlog[spark]' (and Java 17)"
        )
    return importlib.import_module(f"dlog.spark.pipelines.{name}")


def client_settings(options: Mapping[str, str]) -> Any:
    """Return how to reach the cluster, as the data source understands its options."""
    return importlib.import_module("dlog.spark.options.options").client_settings(options)


def _tell(event: Any) -> None:
    kind = type(event).__name__
    if kind != "BatchDone":
        return
    rate = event.records / event.seconds if event.seconds > 0 else 0
    lost = f", {format_count(event.lost, 'offset')} lost" if event.lost else ""
    if event.missing:
        lost += f", {format_count(event.missing, 'offset')} without a record"
    say(
        f"batch {event.batch}: {event.records:,} records, {format_bytes(event.record_bytes)}, "
        f"{format_duration(event.seconds)}, {rate:,.0f} records/s{lost}; {event.lag:,} left",
        err=True,
    )
    sys.stderr.flush()
