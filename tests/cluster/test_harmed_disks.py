"""Nodes on disks of their own that become full, fail, and lose power. Needs root.

The second test turns durability off and takes everybody's power: the judges must see it.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.chaos import Plan, run_chaos
from tests.cluster.node_disks import NodeDisks

pytestmark = pytest.mark.root

STRIKES = {
    "full disk",
    "slow disk",
    "failing disk",
    "power cut of disks",
    "power cut of all disks",
}


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[NodeDisks]:
    with NodeDisks(tmp_path, 3) as found:
        yield found


def test_nothing_acknowledged_is_lost_by_disks(tmp_path: Path, disks: NodeDisks) -> None:
    seed = random.randrange(1 << 32)
    print(f"python -m tests.cluster --minutes 1 --only disk --seed {seed}")
    plan = Plan(seed=seed, duration_s=0, only="disk")
    summary = asyncio.run(run_chaos(tmp_path / "nodes", plan, disks=disks))
    print("\n".join(summary.lines()))
    assert set(summary.struck.strikes) == STRIKES


def test_the_judges_see_what_power_cuts_take_from_those_who_do_not_flush(
    tmp_path: Path, disks: NodeDisks
) -> None:
    plan = Plan(
        seed=1,
        duration_s=0,
        only="power cut of all",
        overrides={"flush.policy": "never", "direct_io": "off"},
    )
    with pytest.raises(AssertionError, match="lost-write"):
        asyncio.run(run_chaos(tmp_path / "nodes", plan, disks=disks))
