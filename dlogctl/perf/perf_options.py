"""Options that the `perf` commands share, and the frame in which they run."""

import asyncio
import contextlib
import importlib.util
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from dlog.client.admin import Admin
from dlog.client.cluster.cluster import Cluster
from dlog.errors import DlogError
from dlogctl.output.escaping import say
from dlogctl.perf.measurement import Measured, Progress
from dlogctl.perf.perf_report import check_plot, show
from dlogctl.session import client_options
from dlogctl.settings import Settings, take_seconds

Command = TypeVar("Command", bound=Callable[..., Any])


_REPORT = (
    click.option("--duration", metavar="SECONDS", callback=take_seconds,
                 help="End after this time."),
    click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.png",
                 callback=check_plot,
                 help="Draw it, too; needs matplotlib (the extra `plot`)."),
    click.option("-q", "--quiet", is_flag=True, help="No progress while it runs."),
)  # fmt: skip
_SENDING = (
    click.option("-s", "--size", type=click.IntRange(min=0), default=100, show_default=True,
                 metavar="BYTES", help="Bytes of each value."),
    click.option("-r", "--rate", type=click.FloatRange(min=0.1), metavar="NUMBER",
                 help="Records per second."),
    click.option("--keys", type=click.IntRange(min=1), metavar="NUMBER",
                 help="Give records one of so many keys, in turn; otherwise none."),
    click.option("--acks", type=click.Choice(("none", "leader", "all")),
                 help="Required acknowledgement; by default the topic's ack.default."),
    click.option("-z", "--compression", default="none", show_default=True,
                 type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
                 help="Compress batches. Values are random letters: half of their size is left."),
    click.option("--linger", type=click.FloatRange(min=0), default=5.0, show_default=True,
                 metavar="MS", help="How long a record may wait for company."),
)  # fmt: skip


def report_options(command: Command) -> Command:
    """Add what every measurement takes."""
    for option in reversed(_REPORT):
        command = option(command)
    return command


def sending_options(command: Command) -> Command:
    """Add what every measurement that writes takes."""
    for option in reversed(_SENDING):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is written."""

    size: int
    rate: float | None
    keys: int | None
    acks: Any
    compression: str
    linger: float

    def value(self, rng: random.Random) -> bytes:
        """Return a value of random letters."""
        return bytes(rng.choices(b"abcdefghijklmnop", k=self.size))

    def key_texts(self) -> list[bytes] | None:
        """Return all keys; None without."""
        return None if self.keys is None else [b"key-%d" % each for each in range(self.keys)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How the results are shown."""

    title: str
    total: int | None
    plot: Path | None
    quiet: bool


def measure(
    settings: Settings,
    report: Report,
    work: Callable[[Measured], Coroutine[Any, Any, None]],
) -> None:
    """Run `work`, which measures, show how it goes, and what it found; Ctrl-C ends it early."""
    measured = Measured()
    progress = Progress(measured, settings.environ, total=report.total, quiet=report.quiet)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(work(measured))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, running.cancel)
        shown = asyncio.ensure_future(progress.run())
        try:
            await running
        except asyncio.CancelledError:
            pass
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            shown.cancel()
            progress.end()

    asyncio.run(main())
    show(measured, settings, report.title, report.plot)


@contextlib.asynccontextmanager
async def admin_of(settings: Settings) -> AsyncIterator[Admin]:
    """Give an admin of the cluster on this loop."""
    options, policy = client_options(settings)
    cluster = Cluster(
        settings.bootstrap,
        loop=asyncio.get_running_loop(),
        rng=random.Random(),
        options=options,
        policy=policy,
    )
    try:
        yield Admin(cluster)
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def topic_or_temporary(
    settings: Settings, name: str | None, partitions: int
) -> AsyncIterator[str]:
    """Give the topic's name; make one when none is named, and delete it afterwards."""
    if name is not None:
        yield name
        return
    made = f"dlogctl-perf-{os.getpid()}-{random.randrange(1 << 32):08x}"
    async with admin_of(settings) as admin:
        await admin.create_topic(made, partitions=partitions)
    try:
        yield made
    finally:
        async with admin_of(settings) as admin:
            try:
                await asyncio.shield(admin.delete_topic(made))
            except DlogError as error:
                say(
                    f"dlogctl: topic {made} is left over ({error}); delete it: dlogctl topic "
                    f"delete {made}",
                    err=True,
                )


def has_arrow() -> bool:
    """Return whether records can be read as Arrow batches here."""
    return importlib.util.find_spec("pyarrow") is not None
