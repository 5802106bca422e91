"""`dlogctl perf end-to-end`: how long a record takes from a producer to a consumer."""

import asyncio
import random
import secrets
import struct
from functools import partial
from pathlib import Path
from typing import Any

import click

from dlogctl import exit_codes
from dlogctl.commands.perf_consume import open_consumer
from dlogctl.commands.perf_produce import open_producer
from dlogctl.groups import ExampleCommand
from dlogctl.perf.measurement import Measured
from dlogctl.perf.perf_options import (
    Load,
    Report,
    measure,
    report_options,
    sending_options,
    topic_or_temporary,
)
from dlogctl.perf.send_schedule import Pace
from dlogctl.session import naming_topic
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics

DEFAULT_RATE = 1000.0
DEFAULT_DURATION_S = 10.0
STAMP = struct.Struct("<Qd")
"""A run's number, and when the record was due, in seconds since the start."""
PATIENCE_S = 30.0
"""How long to wait for records that were written and do not come."""


@click.command(
    "end-to-end",
    cls=ExampleCommand,
    examples=(
        ("dlogctl perf end-to-end", "1000 records/s for 10 s, in a topic of its own."),
        ("dlogctl perf end-to-end bench --rate 10000 --duration 1min", "In a topic that is there."),
        ("dlogctl perf end-to-end --linger 0 -o json | jq .latency_ms", "For a script."),
    ),
)
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("-n", "--records", type=click.IntRange(min=1), metavar="NUMBER", help="How many.")
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True,
              metavar="NUMBER", help="Partitions of a topic that it creates.")  # fmt: skip
@sending_options
@report_options
@common_options
@click.pass_context
def end_to_end(
    context: click.Context,
    /,
    topic: str | None,
    records: int | None,
    partitions: int,
    duration: float | None,
    plot: Path | None,
    quiet: bool,
    **given: Any,
) -> int:
    """Write records and read them at the same time; measure how long each is on its way.

    Without TOPIC it makes one, and deletes it afterwards. Latency is from when a record was to be
    sent until it was in the program's hands; both are this process, so that one clock counts.
    """
    settings = settings_of(context)
    if given["size"] < STAMP.size:
        raise click.UsageError(f"--size is at least {STAMP.size}: the time stands in it", context)
    if records is None and duration is None:
        duration = DEFAULT_DURATION_S
    load = Load(**{**given, "rate": given["rate"] or DEFAULT_RATE})
    pace = Pace(rate=load.rate, records_max=records, duration_s=duration)
    total = records if records is not None else round((duration or 0) * (load.rate or 0))
    report = Report(title="end-to-end", total=total, plot=plot, quiet=quiet)
    with naming_topic(topic or ""):
        measure(settings, report, partial(_work, settings, topic, partitions, load, pace))
    settings.suggest(f"{context.command_path} --rate {10 * (load.rate or 0):g}")
    return exit_codes.OK


async def _work(
    settings: Settings,
    given_topic: str | None,
    partitions: int,
    load: Load,
    pace: Pace,
    measured: Measured,
) -> None:
    rng = random.Random()
    run_number = secrets.randbits(64)
    async with (
        topic_or_temporary(settings, given_topic, partitions) as topic,
        open_producer(settings, load) as producer,
        open_consumer(settings, topic, "latest") as consumer,
    ):
        await producer.send_many(topic, [])
        filler = load.value(rng)[STAMP.size :]
        keys = load.key_texts()
        measured.start()

        async def read() -> None:
            while True:
                records = await consumer.poll(timeout_ms=200)
                now_s = measured.clock() - measured.started_s
                for each in records:
                    if each.value is None or len(each.value) < STAMP.size:
                        continue  # somebody else's
                    number, due_s = STAMP.unpack_from(each.value)
                    if number == run_number:
                        measured.add(1, len(each.value), now_s - due_s)

        reading = asyncio.ensure_future(read())
        try:
            while (group := pace.next_group(measured.clock() - measured.started_s)) is not None:
                count, due_s = group
                wait_s = due_s - (measured.clock() - measured.started_s)
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                value = STAMP.pack(run_number, due_s) + filler
                first = pace.sent - count
                chosen = keys and [keys[(first + each) % len(keys)] for each in range(count)]
                await producer.send_many(topic, [value] * count, chosen)
            await producer.flush()
            measured.errors = pace.sent - producer.counters.records_written
            await _wait_for(reading, measured, producer.counters.records_written)
        finally:
            reading.cancel()


async def _wait_for(reading: "asyncio.Future[None]", measured: Measured, count: int) -> None:
    """Wait until all that was written is read, or nothing comes any more."""
    seen, patient_until_s = measured.records, measured.clock() + PATIENCE_S
    while measured.records < count and measured.clock() < patient_until_s:
        if reading.done():
            await reading
        if measured.records != seen:
            seen, patient_until_s = measured.records, measured.clock() + PATIENCE_S
        await asyncio.sleep(0.02)
    if measured.records < count:
        missing = count - measured.records
        raise click.ClickException(f"{missing} records were written and did not come back")
