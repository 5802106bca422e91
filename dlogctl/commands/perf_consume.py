"""`dlogctl perf consume`: how many records a second can be read, and how long polls take."""

import importlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from dlog.client.consumer import Consumer
from dlog.client.starts import Start
from dlogctl import exit_codes
from dlogctl.cluster.log_places import FORMS, parse_place
from dlogctl.groups import ExampleCommand
from dlogctl.perf.measurement import Measured
from dlogctl.perf.perf_options import Report, has_arrow, measure, report_options
from dlogctl.session import client_options, naming_topic
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics

POLL_MS = 200
ARROW_MODULES = ("numpy", "pyarrow.compute", "dlog.batch.arrow", "dlog.batch.columns")


def _place(_context: click.Context, _option: click.Parameter, text: str) -> Start:
    try:
        return parse_place(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _check_arrow(_context: click.Context, _option: click.Parameter, wanted: bool) -> bool:
    if wanted and not has_arrow():
        raise click.ClickException(
            "--arrow needs pyarrow, which is not installed; install it: pip install 'dlog[arrow]'"
        )
    return wanted


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl perf consume bench", "From the start to the present end."),
        ("dlogctl perf consume bench --arrow", "The same as Arrow batches."),
        ("dlogctl perf consume bench --from end --duration 30s", "Records that come meanwhile."),
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("-n", "--records", type=click.IntRange(min=1), metavar="NUMBER",
              help="End after so many.")  # fmt: skip
@click.option("--from", "start", metavar="PLACE", callback=_place, default="start",
              show_default=True, help=f"Where to begin: {FORMS}.")  # fmt: skip
@click.option("--arrow", is_flag=True, callback=_check_arrow,
              help="Read Arrow batches, without an object per record.")  # fmt: skip
@report_options
@common_options
@click.pass_context
def consume(
    context: click.Context,
    /,
    topic: str,
    records: int | None,
    start: Start,
    duration: float | None,
    **shown: Any,
) -> int:
    """Read TOPIC and measure.

    Latency is how long the poll took that brought a record: waiting and decoding.

    Ends at the present end, or with --duration or --records when these are reached.
    """
    settings = settings_of(context)
    plot: Path | None = shown["plot"]
    title = "consume as Arrow" if shown["arrow"] else "consume"
    report = Report(title=title, total=records, plot=plot, quiet=shown["quiet"])
    work = partial(_work, settings, topic, start, records, duration, shown["arrow"])
    with naming_topic(topic):
        measure(settings, report, work)
    settings.suggest(f"dlogctl perf end-to-end {topic}")
    return exit_codes.OK


def open_consumer(settings: Settings, topic: str, start: Start) -> Consumer:
    """Return a consumer of a topic."""
    options, policy = client_options(settings)
    return Consumer(settings.bootstrap, topic, start=start, connection=options, policy=policy)


async def _work(
    settings: Settings,
    topic: str,
    start: Start,
    records_max: int | None,
    duration_s: float | None,
    with_arrow: bool,
    measured: Measured,
) -> None:
    async with open_consumer(settings, topic, start) as consumer:
        ends = await consumer.end_offsets()
        if with_arrow:
            for name in ARROW_MODULES:  # loaded on first use, which takes a second
                importlib.import_module(name)
        ends_at_end = duration_s is None and records_max is None
        measured.start()
        while records_max is None or measured.records < records_max:
            if ends_at_end and all(consumer.position(key) >= end for key, end in ends.items()):
                return
            if duration_s is not None and measured.clock() - measured.started_s >= duration_s:
                return
            asked_s = measured.clock()
            left = 1_000_000 if records_max is None else records_max - measured.records
            if with_arrow:
                batch = await consumer.poll_arrow(max_records=left, timeout_ms=POLL_MS)
                if batch.num_rows:
                    took_s = measured.clock() - asked_s
                    measured.add(batch.num_rows, _arrow_bytes(batch), took_s)
            else:
                records = await consumer.poll(max_records=min(left, 10_000), timeout_ms=POLL_MS)
                if records:
                    took_s = measured.clock() - asked_s
                    size = sum(len(each.value or b"") + len(each.key or b"") for each in records)
                    measured.add(len(records), size, took_s)


def _arrow_bytes(batch: Any) -> int:
    """Return the bytes of keys and values, from the offsets of their columns alone."""
    compute: Any = importlib.import_module("pyarrow.compute")
    sizes = (compute.sum(compute.binary_length(batch.column(each))) for each in ("key", "value"))
    return sum(each.as_py() or 0 for each in sizes)
