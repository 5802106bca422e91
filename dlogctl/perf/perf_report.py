"""Report of a `perf` run: numbers, percentiles, histogram, picture on request."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import click

from dlogctl.output.documents import Output, format_bytes
from dlogctl.output.escaping import say, say_lines
from dlogctl.perf.histogram import bars, format_latency
from dlogctl.perf.measurement import Measured
from dlogctl.settings import Settings

HISTOGRAM_ROWS = 16
PICTURES = (".png", ".svg", ".pdf")


def check_plot(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse --plot before anything is measured when there is nothing to draw with."""
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.ClickException(
            "--plot needs matplotlib, which is not installed; install it: pip install 'dlog[plot]'"
        )
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no directory {path.parent}")
    if path is not None and path.suffix.lower() not in PICTURES:
        raise click.BadParameter(f"{str(path)!r} does not end in {', '.join(PICTURES)}")
    return path


def show(measured: Measured, settings: Settings, title: str, plot: Path | None) -> None:
    """Write the results to standard output, and the picture to its file."""
    document = {"test": title, **measured.document()}
    output = Output(settings)
    if output.has_documents:
        output.document(document)
    elif not output.for_people:
        latencies = document.pop("latency_ms", {})
        flat = {**document, **{f"{name}_ms": value for name, value in latencies.items()}}
        output.done("", **flat)
    else:
        _show_to_people(measured, document, output)
    if plot is not None:
        _draw(measured, title, plot)
        say(f"picture: {plot}", err=True)


def _show_to_people(measured: Measured, document: dict[str, Any], output: Output) -> None:
    size = format_bytes(document["bytes"])
    pairs: list[tuple[str, Any]] = [
        ("test", document["test"]),
        ("records", f"{document['records']} ({size}) in {document['seconds']:.2f} s"),
        (
            "throughput",
            f"{document['records_per_s']:.0f} records/s, {document['mib_per_s']:.2f} MiB/s",
        ),
    ]
    if document["errors"]:
        pairs.append(("errors", document["errors"]))
    for name, value in document.get("latency_ms", {}).items():
        pairs.append((name, format_latency(value / 1000)))
    output.pairs(pairs)
    rows = measured.latency.rows(HISTOGRAM_ROWS)
    if rows:
        encoding = (sys.stdout.encoding or "ascii").lower()
        say_lines("\n" + "\n".join(bars(rows, ascii_only="utf" not in encoding)))


def marks(measured: Measured) -> list[tuple[float, str]]:
    """Return (milliseconds, name) of percentiles; those too close to tell apart share one."""
    marks: list[tuple[float, str]] = []
    for percent in (50, 99, 99.9):
        at = measured.latency.percentile(percent) * 1000
        if marks and at < marks[-1][0] * 1.05:
            marks[-1] = (marks[-1][0], f"{marks[-1][1]}, p{percent:g}")
        else:
            marks.append((at, f"p{percent:g}"))
    return marks


def _draw(measured: Measured, title: str, path: Path) -> None:
    """Draw rate and p99 over time, and the histogram of latencies."""
    importlib.import_module("matplotlib").use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, (over_time, spread) = pyplot.subplots(2, 1, figsize=(9, 7), constrained_layout=True)
    figure.suptitle(f"dlogctl perf {title}")
    times = [each[0] for each in measured.samples]
    rates = [each[1] for each in measured.samples]
    over_time.plot(times, rates, color="tab:blue", marker=".")
    over_time.set(xlabel="seconds")
    over_time.set_ylabel("records/s", color="tab:blue")
    over_time.set_ylim(0, 1.1 * max(rates, default=0.0) or 1.0)
    over_time.set_xlim(0, 1.05 * max(times, default=0.0) or 1.0)
    rows = measured.latency.rows(60)
    if rows:
        tail = over_time.twinx()
        p99s_ms = [each[2] * 1000 for each in measured.samples]
        tail.plot(times, p99s_ms, color="tab:red", marker=".")
        tail.set_ylabel("p99, ms", color="tab:red")
        tail.set_ylim(0, 1.3 * max(p99s_ms, default=0.0) or 1.0)  # not upon the other
        widths = [(high - low) * 1000 for low, high, _ in rows]
        heights = [count for _, _, count in rows]
        starts = [low * 1000 for low, _, _ in rows]
        spread.bar(starts, heights, widths, align="edge")
        for at, name in marks(measured):
            spread.axvline(at, color="tab:gray", linestyle=":")
            spread.annotate(name, (at, max(heights)), rotation=90, va="top")
        spread.set(xscale="log", xlabel="latency, ms", ylabel="records")
        for formatted in (spread.xaxis.set_major_formatter, spread.xaxis.set_minor_formatter):
            formatted("{x:g}")
    else:
        spread.set_visible(False)
    figure.savefig(path)
    pyplot.close(figure)
