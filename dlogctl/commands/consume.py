"""`dlogctl consume`: records of topics become lines of standard output."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import click

from dlog.batch.records import RECORDS_BYTES_MAX
from dlog.client.bad_batches import BadBatch, UndecodableBatchError
from dlog.client.blocking import Consumer
from dlog.client.consumed import ConsumedRecord
from dlog.client.gaps import Gap
from dlog.client.starts import Start
from dlog.errors import TransportError, UnknownTopicOrPartitionError
from dlog.offset_specs import Isolation
from dlog.types import PartitionId, TopicPartition
from dlogctl import exit_codes
from dlogctl.cluster.log_places import FORMS, parse_place
from dlogctl.groups import ExampleCommand
from dlogctl.interrupts import Interrupts
from dlogctl.output.documents import Column, Output, format_bytes, is_terminal
from dlogctl.output.escaping import escaped_record, say, write_records
from dlogctl.records.record_formats import FormatError, LineFormat, Located
from dlogctl.records.record_options import JSON, LINES, line_format, record_options
from dlogctl.session import client_options, no_topic
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics
from dlogd.config.units import parse_bytes

LATEST: Start = "latest"
POLL_RECORDS = 10_000
POLL_MS = 500
WRITE_BYTES = 1 << 20
"""Lines are put together to about that before they are written."""
COUNT_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("RECORDS", "records", right=True),
    Column("BYTES", "bytes", right=True),
    Column("FIRST", "first_offset", right=True),
    Column("LAST", "last_offset", right=True),
)


@dataclass(slots=True)
class _Count:
    """What was read of one partition."""

    records: int = 0
    bytes: int = 0
    first_offset: int = -1
    last_offset: int = -1

    def add(self, record: ConsumedRecord) -> None:
        """Count one more."""
        if not self.records:
            self.first_offset = record.offset
        self.records += 1
        self.bytes += len(record.key or b"") + len(record.value or b"")
        self.last_offset = record.offset


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run: what to write and where to end."""

    form: LineFormat
    delimiter: bytes
    count_max: int | None
    counts_only: bool
    escapes: bool = False
    """Whether records are shown to a person."""
    is_json: bool = False
    ends: dict[TopicPartition, int] | None = None
    """Where each partition ends for this run (exclusive); None: nowhere."""
    counts: dict[tuple[str, int], _Count] = field(default_factory=dict)
    records: int = 0
    gaps: int = 0
    bad: list[BadBatch] = field(default_factory=list)
    """Where partitions could not be read on."""

    def wanted(self, record: ConsumedRecord) -> bool:
        """Return whether the record lies before the end, and count it then."""
        if self.ends is not None:
            key = TopicPartition(record.topic, PartitionId(record.partition))
            # A partition that its topic was given since has its end where it begins.
            if record.offset >= self.ends.get(key, 0):
                return False
        place = (record.topic, record.partition)
        if place not in self.counts:
            self.counts[place] = _Count()
        self.counts[place].add(record)
        self.records += 1
        return True

    @property
    def is_full(self) -> bool:
        """Whether as many records as asked for were written."""
        return self.count_max is not None and self.records >= self.count_max

    def on_gap(self, gap: Gap) -> None:
        """Tell of records that are gone."""
        self.gaps += 1
        say(f"dlogctl: gap: {gap}", err=True)


def _place(_context: click.Context, _option: click.Parameter, text: str | None) -> Start | None:
    try:
        return None if text is None else parse_place(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _size(_context: click.Context, _option: click.Parameter, text: str | None) -> int:
    try:
        size = RECORDS_BYTES_MAX if text is None else parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if size < 1:
        raise click.BadParameter("no batch is so small")
    return size


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl consume events", "All records, from the start to the present end."),
        ("dlogctl consume events --from end --follow", "Records from now on."),
        ("dlogctl consume events --from -10 -K ': ' --place", "The last ten of each partition."),
        (
            "dlogctl consume events --from -15min -o json | jq .value",
            "Records of the last minutes.",
        ),
        ("dlogctl consume events -p 3 --from 4711 -n 1 --value-format hex", "One record."),
        ("dlogctl consume events --counts", "How many there are in each partition."),
    ),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...",
                shell_complete=complete_topics)  # fmt: skip
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True,
              metavar="NUMBER", help="Only this partition; may be given many times.")  # fmt: skip
@click.option("--from", "start", metavar="PLACE", callback=_place, default="start",
              show_default=True, help=f"Where to begin: {FORMS}.")  # fmt: skip
@click.option("--until", metavar="PLACE", callback=_place,
              help="End of the read, exclusive; by default the present end.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on at the end, until Ctrl-C.")
@click.option("-n", "--count", "count_max", type=click.IntRange(min=1), metavar="NUMBER",
              help="End after so many records.")  # fmt: skip
@click.option("--place", "with_place", is_flag=True,
              help="Begin lines with partition, offset, timestamp (ms), a tab each.")  # fmt: skip
@click.option("--counts", is_flag=True, help="Show how many there are, not the records.")
@click.option("--max-decompressed-batch", "batch_bytes_max", metavar="SIZE", callback=_size,
              help="Take batches that decompress to so much; default 128MiB.")  # fmt: skip
@click.option("--uncommitted", is_flag=True, help="Also records of open transactions.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say at the end how many there were.")
@click.option("--raw", is_flag=True,
              help="Do not escape control characters on a terminal.")  # fmt: skip
@record_options
@common_options
@click.pass_context
def consume(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    start: Start,
    until: Start | None,
    follow: bool,
    count_max: int | None,
    with_place: bool,
    counts: bool,
    batch_bytes_max: int,
    uncommitted: bool,
    quiet: bool,
    raw: bool,
    delimiter: bytes,
    form: str | None,
    **lines: Any,
) -> int:
    """Write the records of topics to standard output, one line each.

    Ends where the topics end when it begins, unless --follow. Records of one partition come in
    order. On a terminal control characters are shown as \\x1b; files and pipes get the bytes as
    they are. Records that are gone before they are read are told of, and make the exit code 1.
    A partition ends before a batch that cannot be decoded; the error says where to go on.
    """
    if follow and until is not None:
        raise click.UsageError("--follow or --until, not both", context)
    settings = settings_of(context)
    if sys.stdout is None:
        raise click.ClickException("standard output is closed: there is nowhere to write to")
    form = form or (JSON if settings.output == JSON else LINES)
    run = _Run(
        form=line_format(form=form, with_place=with_place, **lines),
        delimiter=delimiter,
        count_max=count_max,
        counts_only=counts,
        escapes=is_terminal(sys.stdout) and not raw,
        is_json=form == JSON,
    )
    options, policy = client_options(settings)
    consumer = Consumer(
        settings.bootstrap,
        () if partitions else topics,
        partitions=[(topic, number) for topic in topics for number in partitions],
        start=start,
        isolation=Isolation.READ_UNCOMMITTED if uncommitted else Isolation.READ_COMMITTED,
        on_gap=run.on_gap,
        max_decompressed_batch_bytes=batch_bytes_max,
        connection=options,
        policy=policy,
    )
    try:
        with Interrupts() as interrupts:
            end = LATEST if until is None else until
            _read(consumer, run, interrupts, until=end, follow=follow)
    except UnknownTopicOrPartitionError:
        raise _nowhere(topics, partitions) from None
    return _report(run, settings, topics, quiet=quiet)


def _nowhere(topics: tuple[str, ...], partitions: tuple[int, ...]) -> UnknownTopicOrPartitionError:
    if not partitions:
        return no_topic(", ".join(topics))
    numbers = ", ".join(map(str, partitions))
    return UnknownTopicOrPartitionError(
        f"there is no topic {', '.join(topics)}, or no partition {numbers} in it; see: "
        f"dlogctl topic describe {topics[0]}"
    )


def _read(
    consumer: Consumer, run: _Run, interrupts: Interrupts, *, until: Start, follow: bool
) -> None:
    try:
        with interrupts.waiting():
            consumer.start()
            if not follow:
                run.ends = consumer.offsets_at(dict.fromkeys(consumer.assignment, until))
                if until == LATEST:
                    _tell_of_short_ones(consumer, run.ends)
        _pump(consumer, run, interrupts)
    except KeyboardInterrupt:
        pass  # what was written is whole, and more was not asked for
    finally:
        consumer.close()


def _tell_of_short_ones(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> None:
    """Say which partitions end before the offset where reading was to begin."""
    for key, end in ends.items():
        if (start := consumer.position(key)) > end:
            say(f"note: {key} ends at {end}, before {start}", err=True)


def _pump(consumer: Consumer, run: _Run, interrupts: Interrupts) -> None:
    """Write records until the end is reached; raise KeyboardInterrupt between two polls."""
    live = _live(consumer, run, consumer.assignment)
    while live is None or live:
        with interrupts.waiting():
            try:
                records = consumer.poll(max_records=POLL_RECORDS, timeout_ms=POLL_MS)
            except UndecodableBatchError as error:
                run.bad.append(error.batch)
                if live is None:
                    return
                # The other partitions are written to their ends.
                consumer.pause(error.batch.topic_partition)
                live.remove(error.batch.topic_partition)
                continue
            except TransportError as error:
                if live is not None:
                    raise
                # Who follows waits for the cluster to come back.
                say(f"dlogctl: {error}; waiting", err=True)
                records = []
        _write(run, records)
        # The next poll is made without them.
        records.clear()
        if run.is_full:
            return
        if live is not None:
            still = cast(list[TopicPartition], _live(consumer, run, live))
            done = [key for key in live if key not in still]
            if done:
                consumer.pause(*done)
            live = still


def _live(
    consumer: Consumer, run: _Run, keys: Iterable[TopicPartition]
) -> list[TopicPartition] | None:
    """Return the partitions that are not at their ends; None when there are no ends."""
    if run.ends is None:
        return None
    return [key for key in keys if consumer.position(key) < run.ends[key]]


def _write(run: _Run, records: Sequence[ConsumedRecord]) -> None:
    """Write whole records, as many as are wanted."""
    written: list[bytes] = []
    written_bytes = 0
    failure: FormatError | None = None
    for record in records:
        if run.is_full:
            break
        if not run.wanted(record) or run.counts_only:
            continue
        try:
            line = run.form.format(_located(record))
        except FormatError as error:
            place = f"{record.topic}-{record.partition} at offset {record.offset}"
            failure = FormatError(f"{place}: {error}")
            break
        written.append(escaped_record(line, is_json=run.is_json) if run.escapes else line)
        written_bytes += len(line)
        if written_bytes >= WRITE_BYTES:
            _write_lines(run, written)
            written, written_bytes = [], 0
    _write_lines(run, written)
    if failure is not None:
        raise click.ClickException(str(failure))


def _write_lines(run: _Run, lines: list[bytes]) -> None:
    if lines:
        write_records(run.delimiter.join([*lines, b""]))


def _located(record: ConsumedRecord) -> Located:
    return Located(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def _report(run: _Run, settings: Settings, topics: Sequence[str], *, quiet: bool) -> int:
    if run.counts_only:
        rows = [
            {
                "topic": topic,
                "partition": partition,
                "records": each.records,
                "bytes": each.bytes,
                "first_offset": each.first_offset,
                "last_offset": each.last_offset,
            }
            for (topic, partition), each in sorted(run.counts.items())
        ]
        Output(settings).rows(rows, COUNT_COLUMNS)
    elif not quiet and is_terminal(sys.stderr):
        size = format_bytes(sum(each.bytes for each in run.counts.values()))
        say(f"{run.records} {'record' if run.records == 1 else 'records'} ({size})", err=True)
    for bad in run.bad:
        say(f"dlogctl: {_stopped(bad)}", err=True)
    settings.suggest(f"dlogctl topic describe {topics[0]}")
    return exit_codes.FAILURE if run.gaps or run.bad else exit_codes.OK


def _stopped(bad: BadBatch) -> str:
    """Return where a partition could not be read on, why, and the command that goes on."""
    key = bad.topic_partition
    cure = "Take it with a larger --max-decompressed-batch, or go" if bad.is_too_large else "Go"
    return (
        f"{bad.problem}. {cure} on behind the batch:"
        f" dlogctl consume {key.topic} -p {key.partition} --from {bad.resume_offset}"
    )
