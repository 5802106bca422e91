"""Acknowledgements over time as a picture: in the terminal, and as a PNG file.

Two series: partitions that the killed node led, and the others; and what happened when.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.text import Text

STEP_S = 0.1
COLUMNS_MAX = 100
ROWS = 6
_EIGHTHS = " ▁▂▃▄▅▆▇█"
HIT, OTHERS, MARK = "#c0492f", "#2a7f62", "#222222"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Counts of acknowledgements in steps of `step_s`, and events in seconds from the start."""

    step_s: float
    hit: Sequence[int]
    others: Sequence[int]
    events: Sequence[tuple[float, str]]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return len(self.hit) * self.step_s


def timeline(
    started_s: float,
    ended_s: float,
    hit: Iterable[Sequence[float]],
    others: Iterable[Sequence[float]],
    events: Iterable[tuple[float, str]],
    columns_max: int = COLUMNS_MAX,
) -> Timeline:
    """Count the moments of each group of partitions."""
    span_s = max(STEP_S, ended_s - started_s)
    step_s = STEP_S
    while span_s / step_s > columns_max:
        step_s += STEP_S
    size = int(span_s / step_s) + 1

    def count(rows: Iterable[Sequence[float]]) -> list[int]:
        counts = [0] * size
        for row in rows:
            for moment in row:
                counts[min(size - 1, int((moment - started_s) / step_s))] += 1
        return counts

    return Timeline(
        step_s, count(hit), count(others), [(at - started_s, name) for at, name in events]
    )


def lines(shown: Timeline) -> list[Text]:
    """Return the picture for a terminal: a chart of both series, an axis, and the events."""
    found: list[Text] = []
    for name, counts, style in (
        ("partitions that the killed node led", shown.hit, "red"),
        ("the other partitions", shown.others, "green"),
    ):
        top = max([*counts, 1])
        found.append(Text(f"{name}: acknowledged records/s, up to {top / shown.step_s:,.0f}"))
        found += [Text(f"│{row}", style) for row in _chart(counts, top)]
        found.append(Text("└" + _axis(shown)))
    return found + [_mark(at, name, shown) for at, name in shown.events]


def _mark(at: float, name: str, shown: Timeline) -> Text:
    """Return an arrow below the chart with its words, on the side where they have room."""
    place, words = 1 + int(at / shown.step_s), f"{at:.1f} s: {name}"
    if place + len(words) + 2 <= len(shown.hit):
        return Text(" " * place + f"↑ {words}")
    return Text(f"{words} ↑".rjust(place + 1))


def _chart(counts: Sequence[int], top: int) -> list[str]:
    heights = [round(each / top * ROWS * 8) or (1 if each else 0) for each in counts]
    return [
        "".join(_EIGHTHS[min(8, max(0, height - row * 8))] for height in heights)
        for row in reversed(range(ROWS))
    ]


def _axis(shown: Timeline) -> str:
    """Return a line with a number at each whole second that has room."""
    cells = ["─"] * len(shown.hit)
    for second in range(int(shown.seconds) + 1):
        at, text = round(second / shown.step_s), f"{second} s"
        free = cells[max(0, at - 1) : at + len(text)]
        if at + len(text) <= len(cells) and set(free) == {"─"}:
            cells[at : at + len(text)] = text
    return "".join(cells)


def draw(shown: Timeline, title: str, path: Path) -> None:
    """Write the picture as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(10, 4.5), layout="constrained")
    times = [index * shown.step_s for index in range(len(shown.hit))]
    for counts, color, label in (
        (shown.others, OTHERS, "the other partitions"),
        (shown.hit, HIT, "partitions that the killed node led"),
    ):
        rates = [each / shown.step_s for each in counts]
        axes.step(times, rates, where="post", color=color, label=label)
        axes.fill_between(times, rates, step="post", color=color, alpha=0.2)
    top = max(max(shown.hit), max(shown.others), 1) / shown.step_s
    axes.set_ylim(0, 1.35 * top)
    for index, (at, name) in enumerate(shown.events):
        axes.axvline(at, color=MARK, linewidth=1, linestyle=":")
        place = (at, top * (1.28 - 0.075 * index))
        axes.annotate(f" {name}, {at:.1f} s", place, fontsize=8, color=MARK)
    axes.set(xlabel="seconds", ylabel="acknowledged records/s")
    axes.set_xlim(0, shown.seconds)
    axes.set_title(title, fontsize=10)
    # Below the axis: events have words anywhere above the curves.
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
