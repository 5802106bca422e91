"""The version before beside this one: rows of one node, both installed, measured in turns.

`python -m bench --before TREE` takes the daemon of another checkout (installed by its own
`make install`) as one more contender, and nobody else but this checkout's.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.arena import CONTENDERS
from bench.peers.dlog import DlogServer
from bench.rows.row import Row

BEFORE = "dlog-before"
METRICS = {
    "mb_per_s": "MB/s",
    "records_per_s": "records/s",
    "requests_per_s": "requests/s",
    "p50_us": "p50, us",
    "p99_us": "p99, us",
    "server_cpu_s": "CPU of dlogd, s",
}


def take_part(rows: Sequence[Row], tree: Path) -> list[Row]:
    """Return the rows of one node, with `tree`'s daemon and this one's as their contenders.

    Raises SystemExit when `tree` has no daemon.
    """
    daemon = tree.resolve() / ".venv" / "bin" / "dlogd"
    if not daemon.exists():
        raise SystemExit(f"bench: {tree} has no .venv/bin/dlogd; run `make install` there")
    CONTENDERS[BEFORE] = lambda folder: DlogServer(folder, daemon=daemon)
    chosen = [row for row in rows if "dlog" in row.contenders]
    for row in chosen:
        row.contenders, row.targets = (BEFORE, "dlog"), ()
    return chosen


def commit(tree: Path) -> str:
    """Return the short id of what `tree` has checked out."""
    command = ["git", "-C", str(tree), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _line(row: Mapping[str, Any], metric: str, unit: str) -> str:
    """Return one figure's line; machines drift, so that neighbours in time are compared."""
    pairs = zip(row["all"][BEFORE], row["all"]["dlog"], strict=True)
    ratios = sorted(new[metric] / old[metric] for old, new in pairs)
    cut = len(ratios) // 4
    old, new = (row["medians"][name][metric] for name in (BEFORE, "dlog"))
    within = f"{ratios[cut]:.3f} to {ratios[-1 - cut]:.3f}"
    return (
        f"| {row['name']} | {unit} | {old:,.4g} | {new:,.4g} | {median(ratios):.3f}x | {within} |"
    )


def markdown(results: Mapping[str, Any], tree: Path, command: str) -> str:
    """Return the table: medians, and the ratios of neighbouring runs, median and middle half."""
    lines = [
        f"# dlogd of {commit(tree)} (before) and of {commit(Path())} (after), in turns in one run",
        "",
        f"`{command}`",
        "",
        "| row | figure | before | after | after / before | middle half of the ratios |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["rows"].values():
        lines += [
            _line(row, metric, unit)
            for metric, unit in METRICS.items()
            if row["medians"].get(BEFORE, {}).get(metric)
        ]
    return "\n".join(lines) + "\n"
