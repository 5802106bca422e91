"""The ratios as a picture: one bar per target, against the line of a draw."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from bench.report import METRICS, SHOWN

GOOD, BAD, BOUND = "#2a7f62", "#c0492f", "#222222"


def _bars(results: dict[str, Any]) -> list[tuple[str, float, float, bool]]:
    """Return label, ratio, bound, met of every target that compares two contenders."""
    bars = []
    for name in SHOWN:
        row = results["rows"].get(name)
        for target in row["targets"] if row else ():
            if target["theirs"] is None or not target["value"]:
                continue
            label = f"{name}: {METRICS[target['metric']][0]}"
            if (target["ours"], target["theirs"]) != ("dlog", "kafka"):
                label += f" ({target['ours']} / {target['theirs']})"
            bound = float(target["bound"].strip("≥≤ x"))
            bars.append((label, target["value"], bound, target["met"]))
    return bars


def draw(results: dict[str, Any], path: Path) -> None:
    """Write `path` as PNG and as SVG; nothing when there is nothing to compare."""
    bars = _bars(results)
    if not bars:
        return
    figure, axes = pyplot.subplots(figsize=(10, 1.6 + 0.36 * len(bars)), layout="constrained")
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
    axes.set_xlabel("dlog divided by Apache Kafka, log scale; the dark mark is the target")
    axes.set_title("dlogd (flushed before the answer) beside Kafka (not flushed)", fontsize=10)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    for suffix in (".png", ".svg"):
        figure.savefig(
            path.with_suffix(suffix), dpi=150, metadata={"Date": None} if suffix == ".svg" else None
        )
    pyplot.close(figure)
