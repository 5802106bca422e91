"""`dlogctl pipeline archive`: topics to Parquet, each record exactly once."""

import click

from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Output, format_count
from dlogctl.pipeline_options import Job, client_settings, job_options, module
from dlogctl.settings import common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_topics

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl pipeline archive events --to /srv/archive", "All new records."),
        ("dlogctl pipeline archive a b --to s3a://bucket/log --every 5min", "Again and again."),
        (
            "dlogctl pipeline archive events --to /srv/archive --metrics /run/metrics/archive.prom",
            "With its metrics in a file.",
        ),
    ),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...",
                shell_complete=complete_topics)  # fmt: skip
@click.option("--to", "folder", required=True, metavar="FOLDER",
              help="Path or URI of the archive, as Spark takes it.")  # fmt: skip
@click.option("--every", "interval_s", metavar="TIME", callback=take_seconds,
              help="Go on for ever, a run each TIME.")  # fmt: skip
@click.option("--batch-offsets", type=click.IntRange(min=1), default=5_000_000, metavar="NUMBER",
              show_default=True, help="About so many offsets in each batch.")  # fmt: skip
@click.option("--task-records", type=click.IntRange(min=1), default=1_000_000, metavar="NUMBER",
              show_default=True,
              help="A task reads at most so many, and writes a file for each date.")  # fmt: skip
@click.option("-z", "--compression", type=click.Choice(COMPRESSIONS), default="zstd",
              show_default=True, help="Compression of the Parquet files.")  # fmt: skip
@click.option("--accept-loss", is_flag=True,
              help="Continue if retention was faster, and note the missing records.")  # fmt: skip
@job_options
@common_options
@click.pass_context
def archive(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    folder: str,
    interval_s: float | None,
    batch_offsets: int,
    task_records: int,
    compression: str,
    accept_loss: bool,
    **common: object,
) -> int:
    """Write what TOPICs have, and FOLDER does not have yet, to Parquet files there.

    The files are partitioned by topic and date (of the records' timestamps, UTC), below a folder
    for each batch, which is there as a whole or not at all. Any reader of Parquet can read them.
    Where a killed run has stopped, the next one goes on: no record is missing, none is there
    twice. Other topics may be added later.
    """
    settings = settings_of(context)
    job = Job(**common)  # type: ignore[arg-type]
    if len(set(topics)) < len(topics):
        raise click.UsageError("name each topic once", context)
    archives, jobs = module("archive"), module("jobs")
    options = job.options(settings)
    wanted = archives.ArchiveJob(
        topics=topics,
        folder=folder,
        settings=client_settings(options),
        source=options,
        batch_offsets=batch_offsets,
        task_records=task_records,
        compression=compression,
        accept_loss=accept_loss,
    )
    frame = job.frame("archive", "+".join(topics))
    observe = job.observer()
    job.reach(settings, options)
    if interval_s is not None:
        jobs.run_every(
            frame, lambda spark, tell: archives.archive(spark, wanted, tell), interval_s, observe
        )
        return exit_codes.OK
    done = jobs.run(frame, lambda spark, tell: archives.archive(spark, wanted, tell), observe)
    batches = "1 batch" if done.batches == 1 else f"{done.batches} batches"
    missing = f"; {format_count(done.missing, 'offset')} without a record" if done.missing else ""
    Output(settings).done(
        f"archived {format_count(done.records, 'record')} in {batches}{missing}",
        batches=done.batches,
        records=done.records,
        lag=done.lag,
        missing=done.missing,
    )
    return exit_codes.OK
