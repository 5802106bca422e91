"""The Raft layer in the simulation: seeds without a violation, replayable, known holes seen.

`python -m tests.simulation.raft_run --seeds 1000` runs more; `--seed n --trace` shows one.
"""

import pytest

from tests.simulation.holes import look_for
from tests.simulation.raft_mutants import MUTANTS
from tests.simulation.raft_run import Run
from tests.simulation.traces import same_trace

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


def test_same_seed_same_trace_in_any_process() -> None:
    trace = same_trace("tests.simulation.raft_run", "--trace", "--seed", "7")
    assert len(trace) > 1000
    other, same = Run(8), Run(7)
    other.go()
    same.go()
    assert same.trace.digest() == trace[-2].split()[0] != other.trace.digest()
