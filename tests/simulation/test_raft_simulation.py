"""The Raft layer in the simulation: seeds without a violation, replayable, known holes seen.

`python -m tests.simulation.raft_run --seeds 1000` runs more; `--seed n --trace` shows one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.holes import look_for
from tests.simulation.raft_mutants import MUTANTS
from tests.simulation.raft_run import Run

ROOT = Path(__file__).parents[2]
SEEDS = 50
SEEDS_PER_TEST = 5


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds_are_clean(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        violations = Run(seed).go()
        again = f"replay: python -m tests.simulation.raft_run --trace --seed {seed}"
        assert not violations, "\n".join([*violations[:10], again])


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_known_holes_are_seen(name: str) -> None:
    assert look_for("raft", name), f"{name}: not seen"


def _run_in_process(seed: int, hash_seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.raft_run", "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.split()[0]


def test_same_seed_same_trace_in_any_process() -> None:
    first, second = _run_in_process(7, 1), _run_in_process(7, 4711)
    assert first == second
    other, same = Run(8), Run(7)
    other.go()
    same.go()
    assert same.trace.digest() == first != other.trace.digest()
