"""`dlogctl pipeline audit`: is each record there once, and are two copies the same?"""

from dataclasses import asdict
from typing import Any, NamedTuple

import click

from dlog.errors import InvalidTopicError
from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_count
from dlogctl.output.escaping import say
from dlogctl.pipeline_options import Job, client_settings, job_options, module
from dlogctl.settings import Settings, common_options, settings_of
from dlogd.metadata.state import topic_names

ARCHIVE = "archive:"
FIELDS = ("key", "value", "headers", "timestamp")
COLUMNS = (
    Column("PARTITION", "partition", right=True),
    Column("FROM", "start_offset", right=True),
    Column("TO", "end_offset", right=True),
    Column("FOUND", "kind"),
)
FORMS = "TOPIC, TOPIC@HOST:PORT or archive:FOLDER"


class Place(NamedTuple):
    """One side: an archive's folder, or a topic of a cluster ("": the one of --bootstrap)."""

    topic: str
    bootstrap: str
    folder: str


def parse_place(text: str, topic: str | None) -> Place:
    """Parse one side; raise click.UsageError."""
    if text.startswith(ARCHIVE):
        if text == ARCHIVE:
            raise click.UsageError(f"{text} names no folder; valid forms: {FORMS}")
        if topic is None:
            raise click.UsageError(f"{text} names no topic of the archive; give --topic")
        return Place(topic, "", text.removeprefix(ARCHIVE))
    name, _, bootstrap = text.partition("@")
    if not name:
        raise click.UsageError(f"{text!r} names no topic; valid forms: {FORMS}")
    try:
        topic_names.validate(name)
    except InvalidTopicError as error:
        # A folder, most likely. Nodes would say no more than the first half, and much later.
        raise click.UsageError(
            f"{text!r} names no topic ({error}): a place is {FORMS}; for a folder write "
            f"{ARCHIVE}{text}"
        ) from error
    return Place(name, bootstrap, "")


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl pipeline audit events", "Is every offset there, once?"),
        ("dlogctl pipeline audit events archive:/srv/archive", "Does the archive have the same?"),
        ("dlogctl pipeline audit archive:/srv/archive --topic events", "Is it whole by itself?"),
        ("dlogctl pipeline audit events events@other:9092", "Do two clusters have the same?"),
        ("dlogctl pipeline audit events events-2 --align", "By place instead of by offset."),
    ),
)
@click.argument("left", metavar="PLACE")
@click.argument("right", metavar="[PLACE]", required=False)
@click.option("--topic", metavar="NAME",
              help="Topic of an archive; by default that of the other place.")  # fmt: skip
@click.option("--align", is_flag=True,
              help="Compare by how far records are from where each place begins.")  # fmt: skip
@click.option("--ignore", multiple=True, type=click.Choice(FIELDS),
              help="Not compared; may be given many times.")  # fmt: skip
@click.option("--gaps", "may_have_gaps", is_flag=True,
              help="Offsets may be missing, as in a topic that is compacted.")  # fmt: skip
@job_options
@common_options
@click.pass_context
def audit(
    context: click.Context,
    /,
    left: str,
    right: str | None,
    topic: str | None,
    align: bool,
    ignore: tuple[str, ...],
    may_have_gaps: bool,
    **common: object,
) -> int:
    """Find gaps and duplicates in one PLACE, or what differs between two of them.

    A PLACE is TOPIC, TOPIC@HOST:PORT of another cluster, or archive:FOLDER. Two are compared
    where both should have records: keys, values, headers and timestamps at the same offsets. The
    ranges that differ are named; the exit code is 10 then, and where two have nothing in common.
    """
    settings = settings_of(context)
    job = Job(**common)  # type: ignore[arg-type]
    named = next((each for each in (left, right) if each and not each.startswith(ARCHIVE)), None)
    topic = topic or (named.partition("@")[0] if named else None)
    places = [parse_place(each, topic) for each in (left, right) if each is not None]
    audits, jobs = module("audit"), module("jobs")
    rules = audits.AuditRules(
        fields=tuple(each for each in FIELDS if each not in ignore),
        align=align,
        may_have_gaps=may_have_gaps,
    )

    def work(spark: Any, tell: Any) -> Any:
        sides = [_side(spark, each, job, settings) for each in places]
        return audits.audit(sides[0], sides[1] if right is not None else None, rules, tell)

    for each in places:
        if not each.folder:
            job.reach(settings, _options(each, job, settings))
    frame = job.frame("audit", left if right is None else f"{left} {right}")
    return _report(jobs.run(frame, work, job.observer()), settings)


def _side(spark: Any, place: Place, job: Job, settings: Settings) -> Any:
    sides = module("sides")
    if place.folder:
        return sides.ArchiveSide(spark, place.folder, place.topic)
    options = _options(place, job, settings)
    return sides.TopicSide(spark, client_settings(options), place.topic, options)


def _options(place: Place, job: Job, settings: Settings) -> dict[str, str]:
    options = job.options(settings)
    if place.bootstrap:
        options["kafka.bootstrap.servers"] = place.bootstrap
    return options


def _report(done: Any, settings: Settings) -> int:
    output = Output(settings)
    rows = [asdict(each) for each in done.findings]
    output.rows(rows, COLUMNS)
    # In every format: the exit code is because of these, or says nothing of those.
    for each in done.problems:
        say(each, err=True)
    for each in done.not_compared:
        place = f"partition {each.partition}, offsets {each.start_offset} to {each.end_offset}"
        say(f"not compared: {place}: {each.kind}", err=True)
    if output.for_people:
        found = len(rows) + len(done.problems)
        said = "no differences" if not found else format_count(found, "finding")
        say(f"{done.offsets:,} offsets, {done.records:,} records: {said}", err=True)
    return exit_codes.OK if done.good else exit_codes.UNHEALTHY
