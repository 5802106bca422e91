"""`dlogctl produce`: lines of standard input become records of a topic."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from dlog.client.blocking import Producer
from dlog.client.produce_options import CODECS
from dlog.errors import DlogError, TransportError
from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.interrupts import Interrupts
from dlogctl.output.documents import Output, format_bytes, format_duration, is_terminal
from dlogctl.output.escaping import say
from dlogctl.records.deliveries import Deliveries, format_lines
from dlogctl.records.record_formats import (
    CellFormat,
    Entry,
    FormatError,
    Headers,
    LineFormat,
    LineSplitter,
    decode_cell,
    parse_header,
)
from dlogctl.records.record_options import JSON, LINES, line_format, record_options
from dlogctl.session import client_options, naming_topic
from dlogctl.settings import Settings, common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_topics

READ_BYTES = 1 << 16
STDIN = 0


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run: where to, what every record has, and how far it has come."""

    topic: str
    form: LineFormat
    key: bytes | None
    headers: Headers
    partition: int | None
    skip_invalid: bool
    deliveries: Deliveries
    line: int = 0
    bytes_sent: int = 0
    skipped: int = 0
    error: str | None = None
    is_unreachable: bool = False
    """Whether that error is that the cluster cannot be reached."""

    def entry(self, line: bytes) -> Entry | None:
        """Return the record of the next line; None when it is none and skipped."""
        self.line += 1
        try:
            return self.form.parse(line)
        except FormatError as error:
            if not self.skip_invalid:
                raise
            self.skipped += 1
            say(f"dlogctl: line {self.line} skipped: {error}", err=True)
            return None


def _headers(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> Headers:
    try:
        return tuple(parse_header(os.fsencode(each)) for each in given)
    except FormatError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    cls=ExampleCommand,
    examples=(
        ("echo hello | dlogctl produce events", "One record."),
        ("dlogctl produce events -K '\\t' < pairs.tsv", "A key, a tab, a value on each line."),
        ("dlogctl produce events -z zstd --acks leader < big.log", "Compressed, quicker."),
        ("dlogctl produce events -k alice -H source=shell < file", "All with a key, a header."),
        ("echo 'alice:' | dlogctl produce events -K : --null ''", "A tombstone."),
        ("dlogctl consume a --format json | dlogctl produce b --format json", "Copy a topic."),
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("-k", "--key", metavar="TEXT", help="The key of every record, in --key-format.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", callback=_headers,
              help="A header of every record; may be given many times.")  # fmt: skip
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="NUMBER",
              help="Into this partition; otherwise keys choose it, or chance.")  # fmt: skip
@click.option("--acks", type=click.Choice(("none", "leader", "all")),
              help="Required acknowledgement; by default the topic's ack.default.")  # fmt: skip
@click.option("-z", "--compression", type=click.Choice(sorted(CODECS)), default="none",
              show_default=True, help="Compress batches.")  # fmt: skip
@click.option("--delivery-timeout", metavar="SECONDS", callback=take_seconds, default="120s",
              show_default=True, help="When to give a record up.")  # fmt: skip
@click.option("--skip-invalid", is_flag=True, help="Continue after lines that are not records.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong.")
@record_options
@common_options
@click.pass_context
def produce(
    context: click.Context,
    /,
    topic: str,
    key: str | None,
    headers: Headers,
    partition: int | None,
    acks: Any,
    compression: str,
    delivery_timeout: float,
    skip_invalid: bool,
    quiet: bool,
    delimiter: bytes,
    form: str | None,
    **lines: Any,
) -> int:
    """Write the lines of standard input to TOPIC, one record each.

    Ends at the end of the input, or at Ctrl-C, when everything that was read has been acknowledged;
    what was not is named by its lines. A second Ctrl-C gives up. Records are written in order and
    once, whatever fails on the way.
    """
    settings = settings_of(context)
    if sys.stdin is None:
        raise click.ClickException("standard input is closed: there is nothing to write")
    run = _Run(
        topic=topic,
        form=line_format(form=form or LINES, **lines),
        key=_key(context, key, lines["key_format"], form, lines["key_delimiter"]),
        headers=headers,
        partition=partition,
        skip_invalid=skip_invalid,
        deliveries=Deliveries(),
    )
    options, policy = client_options(settings)
    timeout_ms = round(settings.timeout_s * 1000)
    producer = Producer(
        settings.bootstrap,
        acks=acks,
        compression=compression,
        delivery_timeout_ms=round(delivery_timeout * 1000),
        request_timeout_ms=min(30_000, round(delivery_timeout * 1000)),
        block_ms=max(timeout_ms, round(delivery_timeout * 1000)),
        connection=options,
        policy=policy,
    )
    started_s = time.monotonic()
    with Interrupts() as interrupts:
        with naming_topic(topic):
            _pump(producer, run, LineSplitter(delimiter), interrupts)
        return _report(run, settings, time.monotonic() - started_s, quiet=quiet)


def _key(
    context: click.Context,
    key: str | None,
    cell: CellFormat,
    form: str | None,
    key_delimiter: bytes | None,
) -> bytes | None:
    if key is None:
        return None
    if key_delimiter is not None or form == JSON:
        raise click.UsageError("--key, or keys in the lines, not both", context)
    try:
        return decode_cell(cell, os.fsencode(key))
    except FormatError as error:
        raise click.UsageError(f"--key: {error}", context) from None


def _pump(producer: Producer, run: _Run, splitter: LineSplitter, interrupts: Interrupts) -> None:
    """Send until the input ends, a line is wrong, or somebody interrupts; then wait for the end."""
    producer.start()
    with interrupts.waiting():
        # Also without a line to send: a topic that is not there is no place to write to.
        producer.send_many(run.topic, [])
    if os.isatty(STDIN):
        say("reading from the terminal, a record a line; Ctrl-D ends", err=True)
    try:
        for line in _lines(splitter, interrupts):
            _send(producer, run, line)
            if interrupts.count:
                break
    except FormatError as error:
        run.error = f"line {run.line}: {error}"
    except (DlogError, ValueError) as error:
        # Whatever it is, such as the end of the topic: what was sent before is told of.
        run.error = f"line {run.line}: {error}"
        run.is_unreachable = isinstance(error, TransportError)
    except KeyboardInterrupt:
        run.error = f"line {run.line}: interrupted; it may have been written"
    finally:
        _finish(producer, run, interrupts)


def _lines(splitter: LineSplitter, interrupts: Interrupts) -> Iterator[bytes]:
    """Yield the records of standard input; those read are yielded though it is interrupted."""
    while True:
        try:
            with interrupts.waiting():
                data = os.read(STDIN, READ_BYTES)
        except KeyboardInterrupt:
            return
        yield from splitter.feed(data) if data else splitter.finish()
        if not data:
            return


def _send(producer: Producer, run: _Run, line: bytes) -> None:
    entry = run.entry(line)
    if entry is None:
        return
    delivery = producer.send(
        run.topic,
        entry.value,
        run.key if run.key is not None else entry.key,
        run.headers + entry.headers,
        entry.timestamp_ms,
        run.partition if run.partition is not None else entry.partition,
    )
    run.bytes_sent += len(entry.value or b"") + len(entry.key or run.key or b"")
    run.deliveries.add(delivery, run.line)


def _finish(producer: Producer, run: _Run, interrupts: Interrupts) -> None:
    """Wait until all outcomes are known; a second Ctrl-C takes those that are not as unknown."""
    if interrupts.count == 1 and is_terminal(sys.stderr):
        say("waiting for acknowledgements; Ctrl-C again stops the wait", err=True)
    try:
        producer.close(timeout_ms=0 if interrupts.count > 1 else None)
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            producer.close(timeout_ms=0)
    run.deliveries.finish()


def _report(run: _Run, settings: Settings, elapsed_s: float, *, quiet: bool) -> int:
    found = run.deliveries
    for failure in found.failures:
        lines = ("line " if len(failure.lines) == 1 else "lines ") + format_lines(failure.lines)
        what = "it is not known whether written" if failure.is_unknown else "not written"
        say(f"dlogctl: {lines}: {what}: {failure.error}", err=True)
    if run.error is not None:
        say(f"dlogctl: {run.error}; nothing behind it was sent", err=True)
    output = Output(settings)
    if not output.for_people:
        output.done(
            "",
            topic=run.topic,
            written=found.written,
            refused=found.refused,
            unknown=found.unknown,
            skipped=run.skipped,
            bytes=run.bytes_sent,
            seconds=round(elapsed_s, 3),
        )
    elif not quiet:
        size, spent = format_bytes(run.bytes_sent), format_duration(elapsed_s)
        say(_summary(run, f"{size} in {spent}"), err=True)
    if found.unknown:
        settings.suggest(f"dlogctl consume {run.topic} --from -{found.unknown} --place")
    elif found.written:
        settings.suggest(f"dlogctl consume {run.topic}")
    return _exit_code(run)


def _summary(run: _Run, amount: str) -> str:
    found = run.deliveries
    records = "record" if found.written == 1 else "records"
    text = f"{found.written} {records} written to {run.topic} ({amount})"
    for count, what in (
        (found.refused, "not written"),
        (found.unknown, "unknown"),
        (run.skipped, "skipped"),
    ):
        if count:
            text += f", {count} {what}"
    return text


def _exit_code(run: _Run) -> int:
    causes = [failure.error.__cause__ for failure in run.deliveries.failures]
    found = [isinstance(cause, TransportError) for cause in causes] or [run.is_unreachable]
    if all(found):
        return exit_codes.UNREACHABLE
    failed = bool(run.error or causes or run.skipped)
    return exit_codes.FAILURE if failed else exit_codes.OK
