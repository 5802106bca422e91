"""`dlogctl topic trim`: delete the oldest records of a topic, or of one partition of it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from dlog.client.blocking import BlockingClient
from dlog.client.starts import Start
from dlog.errors import NONE, DlogError
from dlog.types import PartitionId, TopicPartition
from dlogctl import exit_codes
from dlogctl.cluster.log_places import FORMS, parse_place
from dlogctl.cluster.partition_names import named
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_count
from dlogctl.output.escaping import confirm, say
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics

COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("FROM", "from", right=True),
    Column("BEFORE", "before", right=True),
    Column("OFFSETS", "offsets", right=True),
    Column("RESULT", "result"),
    Column("LOG START", "log_start_offset", right=True, wide=True),
    Column("ERROR", "error", wide=True),
)
DELETED, NOTHING, FAILED = "deleted", "nothing to delete", "not deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What one partition is to lose: the offsets from `start` to `before`, exclusive."""

    key: TopicPartition
    start: int
    before: int

    @property
    def count(self) -> int:
        """How many offsets; compaction and markers leave fewer records."""
        return max(0, self.before - self.start)

    def __str__(self) -> str:
        if not self.count:
            return f"{self.key}: {NOTHING} before offset {self.before}; it begins at {self.start}"
        return f"{self.key}: offsets {self.start} to {self.before - 1} ({self.count})"


def plan_cuts(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    before: Mapping[TopicPartition, int],
) -> list[Cut]:
    """Return what each partition loses; raise for an offset behind the end. Pure."""
    for key, offset in before.items():
        if offset > ends[key]:
            raise click.ClickException(
                f"{key} ends at {ends[key]}: there is no offset {offset} to delete before;"
                " --before end deletes all records"
            )
    return [Cut(key=key, start=starts[key], before=offset) for key, offset in before.items()]


def _place(_context: click.Context, _option: click.Parameter, text: str) -> Start:
    try:
        return parse_place(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl topic trim events:3 --before 4711", "One partition, below an offset."),
        ("dlogctl topic trim events --before -7d", "Records older than seven days."),
        ("dlogctl topic trim events --before 2026-11-21T12:00 --dry-run", "How much is that?"),
        ("dlogctl topic trim events --before end --yes", "All records, without asking."),
    ),
)
@click.argument("name", metavar="TOPIC[:PARTITION]", shell_complete=complete_topics)
@click.option("--before", "place", required=True, metavar="PLACE", callback=_place,
              help=f"Delete the records before it: {FORMS}.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, change nothing.")
@common_options
@click.pass_context
def trim(context: click.Context, name: str, place: Start, yes: bool, dry_run: bool) -> int:
    """Delete the records of a topic, or of one of its partitions, that lie before a place.

    An offset is for one partition. A time deletes the records in front of the first one that is
    not older; -N keeps the last N of each partition. What is deleted cannot be had back.
    """
    settings = settings_of(context)
    with connected(settings) as client:
        cuts = _cuts(client, name, place)
        wanted = [cut for cut in cuts if cut.count]
        if wanted and not dry_run and not yes:
            for cut in cuts:
                say(str(cut), err=True)
            total = format_count(sum(cut.count for cut in wanted), "offset")
            confirm(f"Delete {total} of {format_count(len(wanted), 'partition')} of {name}?")
        found: dict[TopicPartition, int | DlogError] = {}
        if not dry_run and wanted:
            before = {cut.key: cut.before for cut in wanted}
            found = client.run(lambda: client.admin.delete_records(before))
    return _report(settings, cuts, found, dry_run=dry_run)


def _cuts(client: BlockingClient, name: str, place: Start) -> list[Cut]:
    keys = _keys(client, name)
    if isinstance(place, int) and place >= 0 and len(keys) > 1:
        raise click.ClickException(
            f"{name} has {len(keys)} partitions, and each has offsets of its own: name one of"
            f" them, {keys[0].topic}:0, or give a time, -N or end"
        )
    find = client.admin.find_offsets
    starts = client.run(lambda: find(dict.fromkeys(keys, "earliest")))
    before = client.run(lambda: find(dict.fromkeys(keys, place)))
    ends = client.run(lambda: find(dict.fromkeys(keys, "latest")))
    return plan_cuts(starts, ends, before)


def _keys(client: BlockingClient, name: str) -> list[TopicPartition]:
    """Return the partitions that are meant: `events:3`, `events-3` or all of `events`."""
    topic, colon, number = name.partition(":")
    text = f"{topic}-{number}" if colon else name
    asked = dict.fromkeys((text, text.rpartition("-")[0] or text))
    view = client.run(lambda: client.admin.describe_topics(list(asked)))
    there = {
        each: topic_view
        for each, topic_view in view.topics.items()
        # Of two topics `a` and `a-3`, `a:3` names a partition of the first.
        if topic_view.error_code == NONE and not (colon and each == text)
    }
    found = named(replace(view, topics=there), [text])
    return [TopicPartition(each, PartitionId(index)) for each, index in found]


def _report(
    settings: Settings,
    cuts: Sequence[Cut],
    found: Mapping[TopicPartition, int | DlogError],
    *,
    dry_run: bool,
) -> int:
    output = Output(settings)
    rows = [_row(cut, found.get(cut.key), dry_run=dry_run) for cut in cuts]
    if output.for_people:
        for cut, row in zip(cuts, rows, strict=True):
            if row["result"] != FAILED:
                say(f"{cut} {row['result']}" if cut.count else str(cut))
    else:
        output.rows(rows, COLUMNS)
    failed = [row for row in rows if row["error"] is not None]
    for row in failed:
        say(f"dlogctl: {row['topic']}-{row['partition']}: {FAILED}: {row['error']}", err=True)
    settings.suggest(f"dlogctl topic describe {cuts[0].key.topic}")
    return exit_codes.FAILURE if failed else exit_codes.OK


def _row(cut: Cut, outcome: int | DlogError | None, *, dry_run: bool) -> dict[str, Any]:
    error = str(outcome) if isinstance(outcome, DlogError) else None
    result = "would be deleted" if dry_run else DELETED
    if not cut.count:
        result = NOTHING
    elif error is not None:
        result = FAILED
    return {
        "topic": cut.key.topic,
        "partition": cut.key.partition,
        "from": cut.start,
        "before": cut.before,
        "offsets": cut.count,
        "result": result,
        "log_start_offset": outcome if isinstance(outcome, int) else None,
        "error": error,
    }
