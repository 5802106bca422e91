"""What a row is: contenders, one measured run, targets; and how medians are judged.

A row says what is done; `bench.run` repeats it in turns and `bench.report` shows it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.arena import Arena

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound on a ratio of two contenders' medians, or on a number of one (no `theirs`)."""

    metric: str
    ours: str = "dlog"
    theirs: str | None = "kafka"
    at_least: float | None = None
    at_most: float | None = None

    def value(self, medians: Mapping[str, Numbers]) -> float | None:
        """Return the ratio (or number); None when a contender did not take part."""
        ours = medians.get(self.ours, {}).get(self.metric)
        if self.theirs is None or ours is None:
            return ours
        theirs = medians.get(self.theirs, {}).get(self.metric)
        return ours / theirs if theirs else None

    def met(self, value: float) -> bool:
        """Say whether `value` is within the bound."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is None or value <= self.at_most

    def text(self) -> str:
        """Say the bound in words."""
        sign, bound = ("≤", self.at_most) if self.at_least is None else ("≥", self.at_least)
        shape = ",.0f" if bound is not None and bound >= 1000 else "g"
        return f"{sign} {bound:{shape}}{'x' if self.theirs else ''}"


class Row:
    """One row. Life: `open` per contender, `run` by turns, `close`."""

    name = ""
    title = ""
    contenders: Sequence[str] = ("dlog", "kafka")
    targets: Sequence[Target] = ()
    # How often it is run when the caller does not say (5), for rows that are slow by nature.
    runs: int | None = None

    def open(self, arena: Arena, contender: str) -> None:
        """Start the server, fill it, warm it."""
        arena.add(contender).start()

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Do it once and return what was measured."""
        raise NotImplementedError


def medians_of(runs: Mapping[str, Sequence[Numbers]]) -> dict[str, Numbers]:
    """Return each contender's medians over its runs; the worst stays the worst (`..._max_s`)."""
    return {
        contender: {
            key: (max if key.endswith("_max_s") else median)([run[key] for run in results])
            for key in results[0]
        }
        for contender, results in runs.items()
        if results
    }
