"""`dlogctl perf produce`: how many records a second, and how long until they are acknowledged."""

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from dlog.client.futures import BatchDelivery, BatchResult
from dlog.client.producer import Producer
from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.perf.measurement import Measured
from dlogctl.perf.perf_options import Load, Report, measure, report_options, sending_options
from dlogctl.perf.send_schedule import Pace
from dlogctl.session import client_options, naming_topic
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics

DEFAULT_RECORDS = 1_000_000
VALUES = 1024
"""So many different values take turns."""


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl perf produce bench", "A million records of 100 bytes, as fast as it goes."),
        ("dlogctl perf produce bench --rate 5000 --duration 1min", "Latency at a given load."),
        ("dlogctl perf produce bench -s 1024 -z zstd --acks leader --plot p.png", "A picture."),
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("-n", "--records", type=click.IntRange(min=1), metavar="NUMBER",
              help=f"How many; {DEFAULT_RECORDS} when no --duration is given.")  # fmt: skip
@sending_options
@report_options
@common_options
@click.pass_context
def produce(
    context: click.Context,
    /,
    topic: str,
    records: int | None,
    duration: float | None,
    plot: Path | None,
    quiet: bool,
    **load: Any,
) -> int:
    """Write records to TOPIC and measure.

    Latency is from when a record was to be sent, by --rate, until it was acknowledged.
    """
    settings = settings_of(context)
    if records is None and duration is None:
        records = DEFAULT_RECORDS
    pace = Pace(rate=load["rate"], records_max=records, duration_s=duration)
    report = Report(title="produce", total=records, plot=plot, quiet=quiet)
    with naming_topic(topic):
        measure(settings, report, partial(_work, settings, topic, Load(**load), pace))
    settings.suggest(f"dlogctl perf consume {topic}")
    return exit_codes.OK


def open_producer(settings: Settings, load: Load) -> Producer:
    """Return a producer that writes as `load` says."""
    options, policy = client_options(settings)
    return Producer(
        settings.bootstrap,
        acks=load.acks,
        compression=load.compression,
        linger_ms=load.linger,
        connection=options,
        policy=policy,
    )


class _Watcher:
    """Counts what is acknowledged, when it is."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def watch(self, delivery: BatchDelivery, due_s: float, record_bytes: int) -> None:
        """Count each part of a delivery once its outcome is known."""
        for result, index, indexes in delivery.parts():
            count = len(indexes)
            if result.is_done:
                self._count(result, count, due_s, record_bytes)
            else:
                result.watch(
                    index, partial(self._settled, result, index, count, due_s, record_bytes)
                )

    def _settled(
        self, result: BatchResult, index: int, count: int, due_s: float, record_bytes: int
    ) -> None:
        self._count(result.locate(index)[0], count, due_s, record_bytes)

    def _count(self, result: BatchResult, count: int, due_s: float, record_bytes: int) -> None:
        if result.error is not None:
            self._measured.errors += count
            return
        latency_s = self._measured.clock() - self._measured.started_s - due_s
        self._measured.add(count, count * record_bytes, latency_s)


async def _work(settings: Settings, topic: str, load: Load, pace: Pace, measured: Measured) -> None:
    rng = random.Random()
    values = [load.value(rng) for _ in range(VALUES)]
    keys = load.key_texts()
    watcher = _Watcher(measured)
    async with open_producer(settings, load) as producer:
        await producer.send_many(topic, [])  # finds the topic, before the clock starts
        measured.start()
        while (group := pace.next_group(measured.clock() - measured.started_s)) is not None:
            count, due_s = group
            wait_s = due_s - (measured.clock() - measured.started_s)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            first = pace.sent - count
            delivery = await producer.send_many(
                topic, _cycle(values, first, count), _cycle(keys, first, count) if keys else None
            )
            watcher.watch(delivery, due_s, load.size)
        await producer.flush()


def _cycle(texts: Sequence[bytes], first: int, count: int) -> list[bytes]:
    """Return `count` texts from number `first` on, in turn."""
    size = len(texts)
    start = first % size
    if start + count <= size:
        return list(texts[start : start + count])
    return [texts[(start + each) % size] for each in range(count)]
