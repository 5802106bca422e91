"""Runs one row: all contenders up and warm, then measured in turns, and the medians judged."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.arena import Arena
from bench.peers.server import StartError
from bench.rows import (
    clients,
    cluster,
    codec,
    failover,
    late_return,
    lost_hosts,
    micro,
    produce,
    read,
    replicated,
    scale,
    spark,
    start,
)
from bench.rows.row import Numbers, Row, medians_of

RUNS = 5
Say = Callable[[str], None]


def all_rows() -> list[Row]:
    """Return every row, in the order of the table."""
    return [
        *produce.rows(),
        *read.rows(),
        *start.rows(),
        *scale.rows(),
        *clients.rows(),
        *codec.rows(),
        *micro.rows(),
        *cluster.rows(),
        *replicated.rows(),
        *failover.rows(),
        *lost_hosts.rows(),
        *late_return.rows(),
        *spark.rows(),
    ]


def _open(row: Row, arena: Arena, contenders: Sequence[str], say: Say) -> list[str]:
    """Start and warm each contender; leave out those that this machine cannot run."""
    present = []
    for contender in contenders:
        say(f"{row.name}: starting and warming {contender}")
        try:
            row.open(arena, contender)
        except StartError as error:
            if contender == "dlog":
                raise
            say(f"{row.name}: without {contender}: {error}")
        else:
            present.append(contender)
    return present


def _judge(row: Row, medians: dict[str, Numbers]) -> list[dict[str, Any]]:
    judged = []
    for target in row.targets:
        value = target.value(medians)
        judged.append(
            {
                "metric": target.metric,
                "ours": target.ours,
                "theirs": target.theirs,
                "bound": target.text(),
                "value": value,
                "met": None if value is None else target.met(value),
            }
        )
    return judged


def run_row(
    row: Row, folder: Path, *, runs: int, quick: bool, only: Sequence[str], say: Say
) -> dict[str, Any]:
    """Measure `row` and return everything about it, ready for JSON."""
    started = time.monotonic()
    arena = Arena(folder, quick=quick)
    try:
        wanted = [name for name in row.contenders if not only or name in only]
        present = _open(row, arena, wanted, say)
        results: dict[str, list[Numbers]] = {name: [] for name in present}
        for number in range(runs):
            # Forwards and backwards, so that nobody always runs after the same neighbour.
            for contender in present if number % 2 == 0 else reversed(present):
                result = row.run(arena, contender)
                results[contender].append(result)
                say(f"{row.name}: run {number + 1} {contender} {_brief(result)}")
    finally:
        arena.close()
    medians = medians_of(results)
    return {
        "name": row.name,
        "title": row.title,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "runs": runs,
        "quick": quick,
        "seconds": round(time.monotonic() - started, 1),
        "medians": medians,
        "targets": _judge(row, medians),
        "all": results,
    }


def _brief(result: Numbers) -> str:
    return " ".join(f"{key}={value:.4g}" for key, value in result.items())
