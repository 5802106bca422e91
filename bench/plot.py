"""Pictures of the ratios: one for each table of docs/performance.md, one bar for each target."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from bench.report import METRICS

GOOD, BAD, BOUND = "#2a7f62", "#c0492f", "#222222"
BARS_MAX = 16
"""More bars than this make a picture that nobody reads."""
PICTURES: dict[str, tuple[str, ...]] = {
    "node": (
        *("produce-1k", "produce-100", "prebuilt", "pipelined", "connections-64", "round-trip"),
        *("catch-up", "produce-beside-catch-up"),
    ),
    "node-life": ("cold-start", "restart-after-kill", "partitions-2000"),
    "clients": (
        *("client-produce-100", "client-produce-1k"),
        *("client-produce-many-100", "client-produce-many-1k"),
        *("client-consume-100", "client-consume-1k"),
        *("client-consume-many-100", "client-consume-many-1k"),
    ),
    "metadata": ("create-topics", "controller-failover", "node-failure"),
    "replicas": (
        *("r3-produce-1k", "r3-produce-100", "r3-prebuilt", "r3-round-trip"),
        *("r3-connections-64", "r3-latency-1000", "r3-latency-peak"),
    ),
    "failures": (
        *("r3-round-trip-crowded", "r3-prebuilt-crowded", "r3-connections-64-crowded"),
        *("r3-kill-leader", "r3-kill-all", "r3-restart", "r3-catch-up", "r3-return"),
    ),
    "spark": ("spark-batch-100", "spark-batch-1k", "spark-batch-zstd-100", "spark-batch-zstd-1k"),
    "spark-streams": (
        *("spark-stream-noop-100", "spark-stream-noop-1k"),
        *("spark-stream-parquet-100", "spark-stream-parquet-1k"),
        *("spark-sink-100", "spark-sink-1k", "spark-micro-batch"),
    ),
}
"""Rows of each picture, by its file name."""
_TWIN = "dlog-asyncio"  # of `dlog-blocking`, whose bars say the same

Bar = tuple[str, float, float, bool]


def bars_of(results: dict[str, Any], names: tuple[str, ...]) -> list[Bar]:
    """Return label, ratio, bound, met of every target of some rows that compares contenders."""
    bars = []
    for name in names:
        row = results["rows"].get(name)
        for target in row["targets"] if row else ():
            if target["theirs"] is None or not target["value"] or target["ours"] == _TWIN:
                continue
            label = f"{name}: {METRICS[target['metric']][0]}"
            label += f" ({target['ours']} / {target['theirs']})"
            bound = float(target["bound"].strip("≥≤ x"))
            bars.append((label, target["value"], bound, target["met"]))
    return bars


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the pictures beside `path` as PNG; none of rows that compare nothing."""
    for picture, names in PICTURES.items():
        bars = bars_of(results, names)
        if bars:
            _draw(bars, path.with_name(f"{picture}.png"))


def _draw(bars: list[Bar], path: Path) -> None:
    assert len(bars) <= BARS_MAX, f"{path.name} has {len(bars)} bars"
    figure, axes = pyplot.subplots(figsize=(9, 1.1 + 0.32 * len(bars)), layout="constrained")
    for place, (_, value, bound, met) in enumerate(bars):
        axes.barh(place, value - 1, left=1, height=0.6, color=GOOD if met else BAD)
        axes.plot([bound, bound], [place - 0.38, place + 0.38], color=BOUND, linewidth=1.5)
        side = "left" if value >= 1 else "right"
        axes.annotate(
            f" {value:.2f} ", (value, place), va="center", ha=side, fontsize=8, color=BOUND
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("ratio, log scale; green: met, red: missed, dark mark: target", fontsize=8)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
