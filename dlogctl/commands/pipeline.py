"""`dlogctl pipeline`: its commands, each in a module of its own."""

import click

from dlogctl.groups import LazyGroup

COMMANDS = {
    "archive": (
        "dlogctl.commands.pipeline_archive:archive",
        "Archive topics to Parquet, each record once.",
    ),
    "replay": (
        "dlogctl.commands.pipeline_replay:replay",
        "Write an archived topic to a topic, each record once.",
    ),
    "audit": (
        "dlogctl.commands.pipeline_audit:audit",
        "Find gaps, duplicates and differences.",
    ),
    "delays": (
        "dlogctl.commands.pipeline_delays:delays",
        "An example: delays of flights by airport and hour.",
    ),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=(
        ("dlogctl pipeline archive events --to /srv/archive", "Records that are not archived yet."),
        ("dlogctl pipeline audit events archive:/srv/archive", "Is the archive the same?"),
        ("dlogctl pipeline replay /srv/archive --topic events --to events-2", "And back again."),
    ),
)
def pipeline() -> None:
    """Run jobs on Apache Spark: archive, replay, audit topics.

    They need the extra `spark` and Java 17. Each runs here, on all cores, or on a cluster
    (--master); what is killed goes on where it was when it is started again.
    """
