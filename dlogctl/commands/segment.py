"""`dlogctl segment`: what is in segment files, and whether they are whole; offline, read-only."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from dlog.batch.records import Record, decode
from dlog.errors import WireError
from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand, LazyGroup
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say
from dlogctl.segments.segment_files import (
    BatchPlace,
    SegmentReport,
    check_segment,
    iter_batches,
    iter_entries,
)
from dlogctl.segments.segment_paths import SegmentPath, find_segments
from dlogctl.settings import Settings, common_options, settings_of
from dlogd.storage.io.files import File
from dlogd.storage.segment.segment_names import IDX, LOG, file_name

BATCH_COLUMNS = (
    Column("POSITION", "position", right=True),
    Column("BYTES", "bytes", right=True),
    Column("OFFSETS", "offsets"),
    Column("RECORDS", "records", right=True),
    Column("CODEC", "codec"),
    Column("EPOCH", "leader_epoch", right=True),
    Column("MAX TIMESTAMP", "max_timestamp_ms", right=True),
    Column("PRODUCER", "producer_id", wide=True, right=True),
    Column("P-EPOCH", "producer_epoch", wide=True, right=True),
    Column("SEQUENCE", "base_sequence", wide=True, right=True),
    Column("CRC", "crc"),
)
RECORD_COLUMNS = (
    Column("OFFSET", "offset", right=True),
    Column("TIMESTAMP", "timestamp_ms", right=True),
    Column("KEY", "key"),
    Column("VALUE", "value"),
    Column("HEADERS", "headers", wide=True),
)
INDEX_COLUMNS = (Column("OFFSET", "offset", right=True), Column("POSITION", "position", right=True))
TIME_COLUMNS = (
    Column("MAX TIMESTAMP", "timestamp_ms", right=True),
    Column("BELOW OFFSET", "offset", right=True),
)
PARTITION_COLUMN = Column("PARTITION", "partition")
SEGMENT_COLUMN = Column("SEGMENT", "segment")
CHECK_COLUMNS = (
    SEGMENT_COLUMN,
    Column("OFFSETS", "offsets"),
    Column("BATCHES", "batches", right=True),
    Column("RECORDS", "records", right=True),
    Column("BYTES", "data_bytes", right=True),
    Column("TAIL", "tail"),
    Column("STATE", "state"),
)

PATH = click.Path(path_type=Path, exists=True)


@click.group(
    cls=LazyGroup,
    examples=(
        ("dlogctl segment check /var/lib/dlog", "Is all that is stored there whole?"),
        ("dlogctl segment dump /var/lib/dlog/topics/events-0.*", "Batches of a partition."),
    ),
)
def segment() -> None:
    """Look into segment files, offline. Nothing is ever written."""


def _batch_row(place: BatchPlace) -> dict[str, Any]:
    header = place.header
    return {
        "position": place.position,
        "bytes": header.batch_bytes,
        "offsets": f"{header.base_offset}..{header.last_offset}",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "codec": header.codec.name.lower(),
        "leader_epoch": header.leader_epoch,
        "max_timestamp_ms": header.max_timestamp_ms,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": "ok" if place.good_crc else "WRONG",
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _record_row(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [f"{name}={_text(value)}" for name, value in record.headers],
    }


def _wanted(file: File, from_offset: int, limit: int) -> Iterator[BatchPlace]:
    for place in iter_batches(file):
        if limit <= 0:
            return
        if place.header.next_offset > from_offset:
            limit -= 1
            yield place


def _record_rows(file: File, from_offset: int, limit: int) -> Iterator[dict[str, Any]]:
    for place in _wanted(file, from_offset, limit):
        header = place.header
        try:
            records = decode(file.pread(header.batch_bytes, place.position))
        except WireError as error:
            raise click.ClickException(
                f"batch at position {place.position} (offset {header.base_offset}): {error}"
            ) from error
        for record in records:
            if record.offset >= from_offset and limit > 0:
                limit -= 1
                yield _record_row(record)


@segment.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl segment dump 00000000000000000000.log --limit 5", "The first five batches."),
        ("dlogctl segment dump 00000000000000000000.log --records --from 42", "Their records."),
        ("dlogctl segment dump 00000000000000000000.idx", "Entries of an index."),
    ),
)
@click.argument("path", type=PATH)
@click.option("--records", is_flag=True, help="The records in the batches.")
@click.option("--from", "from_offset", type=click.IntRange(min=0), default=0, metavar="OFFSET",
              help="Begin with the batch that holds this offset.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), default=1_000_000_000, metavar="COUNT",
              help="Show at most so many.")  # fmt: skip
@common_options
@click.pass_context
def dump(context: click.Context, path: Path, records: bool, from_offset: int, limit: int) -> int:
    """Show the batches of a segment, or the entries of an .idx or .tdx file.

    PATH is a segment's file; or a partition's directory, or a data directory: all batches in it.
    """
    settings = settings_of(context)
    output = Output(settings)
    found = find_segments(path)
    if not path.is_dir() and found[0].suffix != LOG:
        _dump_index(output, found[0])
        return exit_codes.OK
    rows: list[dict[str, Any]] = []
    for each in found:
        if each.next_base is None or each.next_base > from_offset:
            rows += _dumped(each, from_offset, limit - len(rows), records=records)
    columns = RECORD_COLUMNS if records else BATCH_COLUMNS
    output.rows(rows, (*_place_columns(found), *columns))
    settings.suggest(f"dlogctl segment check {path}")
    return exit_codes.OK


def _place_columns(found: Sequence[SegmentPath]) -> tuple[Column, ...]:
    """Return the columns that say where a row belongs, as far as that differs."""
    partitions = (PARTITION_COLUMN,) if len({each.directory.path for each in found}) > 1 else ()
    return (*partitions, SEGMENT_COLUMN) if len(found) > 1 else partitions


def _dumped(
    place: SegmentPath, from_offset: int, limit: int, *, records: bool
) -> list[dict[str, Any]]:
    opened = place.directory.open(place.name, read_only=True)
    where = {"partition": place.partition, "segment": place.name}
    try:
        rows: Iterator[dict[str, Any]]
        if records:
            rows = _record_rows(opened, from_offset, limit)
        else:
            rows = (_batch_row(each) for each in _wanted(opened, from_offset, limit))
        return [{**where, **row} for row in rows]
    finally:
        opened.close()


def _dump_index(output: Output, place: SegmentPath) -> None:
    try:
        entries = iter_entries(place.directory, place.base_offset, place.suffix)
    except ValueError as error:
        raise click.ClickException(f"{place.path}: {error}") from error
    if place.suffix == IDX:
        output.rows([{"offset": a, "position": b} for a, b in entries], INDEX_COLUMNS)
    else:
        output.rows([{"timestamp_ms": a, "offset": b} for a, b in entries], TIME_COLUMNS)


def _check(place: SegmentPath) -> SegmentReport:
    if not place.directory.exists(file_name(place.base_offset)):
        raise click.UsageError(f"{place.path} has no .log file in its directory")
    return check_segment(place.directory, place.base_offset, place.next_base)


def _report_row(place: SegmentPath, report: SegmentReport) -> dict[str, Any]:
    return {
        "partition": place.partition,
        "segment": Path(report.path).name,
        "path": report.path,
        "offsets": f"{report.base_offset}..{report.next_offset - 1}" if report.batches else None,
        "base_offset": report.base_offset,
        "next_offset": report.next_offset,
        "batches": report.batches,
        "records": report.records,
        "data_bytes": report.data_bytes,
        "file_bytes": report.file_bytes,
        "tail": report.tail,
        "remarks": report.remarks,
        "state": "damaged" if report.problems else "good",
        "problems": report.problems,
    }


def _explain(settings: Settings, damaged: bool) -> None:
    if damaged:
        settings.suggest("restore the partition's directory, or move it away and start the node")


@segment.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl segment check /var/lib/dlog", "Every segment below a data directory."),
        ("dlogctl segment check 00000000000000000000.log -o json", "One of them, for a script."),
    ),
)
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@common_options
@click.pass_context
def check(context: click.Context, paths: tuple[Path, ...]) -> int:
    """Check segments: PATH is a data directory, a partition's directory or a segment's file.

    Every batch's CRC, the row of offsets, what follows the data, and the indexes. Exit code 10 when
    something is damaged.
    """
    settings = settings_of(context)
    output = Output(settings)
    found = [each for path in paths for each in find_segments(path)]
    reports = [_check(each) for each in found]
    rows = [_report_row(each, report) for each, report in zip(found, reports, strict=True)]
    is_several = len({each.directory.path for each in found}) > 1
    output.rows(rows, (PARTITION_COLUMN, *CHECK_COLUMNS) if is_several else CHECK_COLUMNS)
    damaged = False
    for report in reports:
        for remark in report.remarks:
            say(f"note: {report.path}: {remark}", err=True)
        for problem in report.problems:
            damaged = True
            say(f"dlogctl: {report.path}: {problem}", err=True)
    _explain(settings, damaged)
    return exit_codes.UNHEALTHY if damaged else exit_codes.OK
