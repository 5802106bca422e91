"""`dlogctl pipeline replay`: what was archived back into a topic, each record once."""

import click

from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Output, format_count
from dlogctl.pipeline_options import Job, client_settings, job_options, module
from dlogctl.settings import common_options, settings_of
from dlogctl.shell.completion import complete_topics


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl pipeline replay /srv/archive --topic events --to events-2", "Into a new topic."),
        (
            "dlogctl pipeline replay /srv/archive --topic events --to wide --place key",
            "Into one with another number of partitions.",
        ),
    ),
)
@click.argument("folder", metavar="FOLDER")
@click.option("--topic", required=True, metavar="NAME", help="Which of the archived topics.")
@click.option("--to", "target", required=True, metavar="TOPIC", shell_complete=complete_topics,
              help="The topic to write to; it must be there.")  # fmt: skip
@click.option("--place", "placing", type=click.Choice(("keep", "key")), default="keep",
              show_default=True,
              help="Into the partition that it was in, or that of its key.")  # fmt: skip
@click.option("--name", default="", metavar="NAME",
              help="Of this replay, which keeps its progress below FOLDER under this name; by "
              "default the names of both topics.")  # fmt: skip
@click.option("-z", "--compression", default="none", show_default=True,
              type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
              help="Compression of the sent batches.")  # fmt: skip
@job_options
@common_options
@click.pass_context
def replay(
    context: click.Context,
    /,
    folder: str,
    topic: str,
    target: str,
    placing: str,
    name: str,
    compression: str,
    **common: object,
) -> int:
    """Write the records of an archived topic to a topic, with keys, headers and timestamps.

    In order, each once, to the present end of the archive. What was killed goes on where it was;
    what was archived meanwhile comes with the next run. Nobody else may write to the target until
    it is done: that is noticed and ends it with an error.
    """
    settings = settings_of(context)
    job = Job(**common)  # type: ignore[arg-type]
    replays, jobs = module("replay"), module("jobs")
    options = job.options(settings)
    wanted = replays.ReplayJob(
        folder=folder,
        topic=topic,
        target=target,
        settings=client_settings(options),
        placing=placing,
        name=name,
        compression=compression,
    )
    frame = job.frame("replay", name or f"{topic}-to-{target}")
    job.reach(settings, options)
    done = jobs.run(frame, lambda spark, tell: replays.replay(spark, wanted, tell), job.observer())
    there = f", {done.passed_over:,} were there already" if done.passed_over else ""
    Output(settings).done(
        f"replayed {format_count(done.written, 'record')}{there}",
        batches=done.batches,
        written=done.written,
        passed_over=done.passed_over,
    )
    return exit_codes.OK
