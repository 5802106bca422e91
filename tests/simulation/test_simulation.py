"""The simulation itself: 50 seeds without a violation, each run replayable, known holes seen.

`python -m tests.simulation --seeds 2000 --jobs 2` runs more; `make sim SEED=n` shows one.
"""

import pytest

from tests.simulation import constants
from tests.simulation.__main__ import run_seed, shrink
from tests.simulation.holes import look_for
from tests.simulation.mutants import MUTANTS, mutated
from tests.simulation.plan import draw
from tests.simulation.run import simulate
from tests.simulation.traces import assert_same, same_trace

SEEDS = 50
SEEDS_PER_TEST = 5


@pytest.mark.parametrize("first", range(1, SEEDS + 1, SEEDS_PER_TEST))
def test_seeds_are_clean(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        verdict = run_seed(seed)
        again = f"replay: make sim SEED={seed}"
        assert not verdict.violations, "\n".join([*verdict.violations[:10], again])


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_known_holes_are_seen(name: str) -> None:
    assert look_for("node", name), f"{name}: not seen"


@pytest.mark.parametrize("seed", [2, 3, 15])
def test_same_seed_same_trace_in_any_process(seed: int) -> None:
    trace = same_trace("tests.simulation", "--seed", str(seed))
    assert len(trace) > 1000
    # Nor does it matter what ran before in the process.
    assert run_seed(seed + 1).digest != run_seed(seed).digest
    assert run_seed(seed).summary() == trace[-1]


def test_the_first_line_that_differs_is_told() -> None:
    assert_same(["a", "b"], ["a", "b"])
    with pytest.raises(AssertionError, match="line 2, after 'a':\nb\nc"):
        assert_same(["a", "b"], ["a", "c"])
    with pytest.raises(AssertionError, match="line 3, after 'b':\nNone\nd"):
        assert_same(["a", "b"], ["a", "b", "d"])


def test_plans_are_drawn_from_the_seed_alone() -> None:
    plan = draw(7)
    assert plan == draw(7)
    assert plan != draw(8)
    shorter = plan.without(0, 2)
    assert [number for number, _ in shorter.schedule()] == [
        number for number, _ in plan.schedule() if number not in (0, 2)
    ]
    assert simulate(shorter).digest != simulate(plan).digest


def test_a_failure_is_shrunk_to_the_faults_that_it_needs() -> None:
    with mutated("no flush of a log's directory"):
        seed = next(seed for seed in range(1, 30) if run_seed(seed).violations)
        plan = shrink(draw(seed))
        assert simulate(plan).violations
    assert len(plan.schedule()) < len(draw(seed).schedule())


def test_the_constants_that_are_made_small_exist() -> None:
    assert constants.missing() == []
