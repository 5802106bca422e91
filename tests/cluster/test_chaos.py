"""A minute of kills and pauses, each kind at least once: `make chaos` runs longer.

`DLOG_CHAOS_SECONDS` and `DLOG_CHAOS_SEED` make it another one.
"""

import asyncio
import os
import random
from pathlib import Path

from tests.cluster.chaos import Plan, run_chaos

SECONDS = float(os.environ.get("DLOG_CHAOS_SECONDS", "60"))


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    seed = int(os.environ.get("DLOG_CHAOS_SEED") or random.randrange(1 << 32))
    print(f"DLOG_CHAOS_SEED={seed}")
    summary = asyncio.run(run_chaos(tmp_path, Plan(seed=seed, duration_s=SECONDS)))
    print("\n".join(summary.lines()))
    assert sum(summary.acknowledged.values()) > 20
    assert summary.load is not None and summary.load.acknowledged > 1000
