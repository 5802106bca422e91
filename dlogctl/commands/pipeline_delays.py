"""`dlogctl pipeline delays`: the windowed aggregation of the example flights."""

from datetime import UTC
from typing import Any

import click

from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output
from dlogctl.pipeline_options import Job, job_options, module
from dlogctl.settings import common_options, settings_of
from dlogctl.shell.completion import complete_topics

COLUMNS = (
    Column("AIRPORT", "origin"),
    Column("FROM", "start"),
    Column("FLIGHTS", "flights", right=True),
    Column("DELAY", "delay", right=True),
    Column("LATE", "late", right=True),
)


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl pipeline delays flights", "Delays of each airport and hour."),
        (
            "dlogctl pipeline delays flights --window '1 day' -o tsv",
            "Delays of each day, as a table.",
        ),
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--window", default="1 hour", show_default=True, metavar="TIME",
              help="How long a window is, as Spark says it.")  # fmt: skip
@click.option("--to", "folder", metavar="FOLDER",
              help="Write Parquet there instead; existing files are replaced.")  # fmt: skip
@job_options
@common_options
@click.pass_context
def delays(
    context: click.Context, /, topic: str, window: str, folder: str | None, **common: object
) -> int:
    """Show how late flights left, from a topic of flights as `make demo` writes it.

    An aggregation over windows of the events' own time: of each airport and window the number of
    flights, their mean delay in minutes, and how many left more than 15 minutes late.
    """
    settings = settings_of(context)
    job = Job(**common)  # type: ignore[arg-type]
    examples, jobs = module("delays"), module("jobs")
    options = {**job.options(settings), "subscribe": topic}

    def work(spark: Any, _tell: Any) -> list[Any]:
        records = spark.read.format("dlog").options(**options).load()
        found = examples.delays(records, window)
        if folder is not None:
            found.write.mode("overwrite").parquet(folder)
            return []
        rows: list[Any] = found.toArrow().to_pylist()
        return rows

    job.reach(settings, options)
    rows = jobs.run(job.frame("delays", topic), work, job.observer())
    shown = [
        {
            **row,
            "start": f"{row['start'].astimezone(UTC):%Y-%m-%dT%H:%M}",
            "delay": round(row["delay"], 1),
        }
        for row in rows
    ]
    if folder is None:
        Output(settings).rows(shown, COLUMNS)
    return exit_codes.OK
