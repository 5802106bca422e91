"""The Raft layer in the simulation: seeds without a violation, replayable, known holes seen.

`python -m tests.simulation.raft_run --seeds 1000` runs more; `--seed n --trace` shows one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.raft_mutants import MUTANTS, seeds_until_caught
from tests.simulation.raft_run import Run

ROOT = Path(__file__).parents[2]
SEEDS = 100
SEEDS_PER_TEST = 5
MUTANT_SEEDS = 100
# Which seed saw each hole soonest. What is drawn may change: then all seeds are tried.
SEEN_BY = {
    "1.2.1 the log is dropped when snapshot and log differ": 7,
    "1.3 a new log file is renamed without a flush": 34,
    "1.3 a torn snapshot counts as none": 2,
    "1.3 the vote is forgotten": 1,
    "1.3 the vote is sent before it is flushed": 3,
    "1.5.1 a follower cuts what matches": 5,
    "1.5.2 more is committed than was proven": 34,
    "1.5.4 a snapshot clears what follows it": 2,
    "1.5.6 a leader believes in itself without an answer": 11,
    "1.5.6 a leader leads without a quorum": 14,
    "1.5.6 nobody is asked before an election": 2,
    "H15 cuts are not recorded": 17,
    "H15 the log is flushed now and then": 0,
    "H15 the log is not flushed": 0,
    "H20 a wiped voter votes on": 3,
    "H8 a follower is credited with what it was sent": 2,
    "a proposal is sent again too early": 34,
    "votes for a shorter log": 17,
}


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds_are_clean(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        violations = Run(seed).go()
        again = f"replay: python -m tests.simulation.raft_run --trace --seed {seed}"
        assert not violations, "\n".join([*violations[:10], again])


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_known_holes_are_seen(name: str) -> None:
    seen = seeds_until_caught(name, SEEN_BY[name], 1) or seeds_until_caught(name, 0, MUTANT_SEEDS)
    assert seen, f"{name}: nothing seen in {MUTANT_SEEDS} seeds"


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
