"""Clusters of whole nodes and their data: clean seeds, replayable, some known holes seen.

`make soak` runs more, `make sim FLEET=n` shows one, `make mutants` opens every known hole.
"""

import pytest

from tests.simulation.fleet.__main__ import run_seed, shrink
from tests.simulation.fleet.blackouts import draw_blackouts
from tests.simulation.fleet.bounds import missing
from tests.simulation.fleet.data_liars import LIARS_FROM
from tests.simulation.fleet.mutants import mutated
from tests.simulation.fleet.plan import KINDS, draw
from tests.simulation.fleet.run import simulate
from tests.simulation.holes import look_for
from tests.simulation.traces import same_trace

SEEDS = 24
SEEDS_PER_TEST = 4
BLACKOUT_SEEDS = 4
LIAR_SEEDS, LIAR_SEED = 6, 310_007
# The ones that are seen soonest; `make mutants` has them all.
QUICK_MUTANTS = (
    "H10 a node opens replicas that are not its own",
    "H13 a node changes its image beside the log",
    "L10 images open no logs",
    "H4 no minimum of the ISR",
    "H8 followers are credited with what was sent",
    "believe the heads of plain batches",
)
MUTANT_SEEDS = 20


@pytest.mark.parametrize("first", range(1, SEEDS + 1, SEEDS_PER_TEST))
def test_seeds_are_clean(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        verdict = run_seed(seed)
        again = f"replay: make sim FLEET={seed}"
        assert not verdict.violations, "\n".join([*verdict.violations[:10], again])


@pytest.mark.parametrize("seed", range(LIARS_FROM + 1, LIARS_FROM + LIAR_SEEDS + 1))
def test_seeds_with_batches_that_lie_are_clean(seed: int) -> None:
    verdict = run_seed(seed)
    again = f"replay: make sim FLEET={seed}"
    assert not verdict.violations, "\n".join([*verdict.violations[:10], again])


def test_batches_that_lie_are_taken_found_and_refused() -> None:
    verdict = run_seed(LIAR_SEED)
    assert not verdict.violations
    assert all(verdict.counts[name] for name in ("lies ok", "lies refused", "searches by time"))


@pytest.mark.parametrize("first", range(1, BLACKOUT_SEEDS + 1, SEEDS_PER_TEST))
def test_seeds_in_which_all_lose_their_power_are_clean(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        verdict = simulate(draw_blackouts(seed))
        again = f"replay: python -m tests.simulation.fleet --blackouts --seed {seed}"
        assert not verdict.violations, "\n".join([*verdict.violations[:10], again])
        assert verdict.counts["fault power-all"]
        assert not verdict.counts.get("weak logs cut")


@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_known_holes_are_seen(name: str) -> None:
    seeds = range(1, MUTANT_SEEDS + 1)
    assert look_for("fleet", name, seeds), f"{name}: nothing seen in {MUTANT_SEEDS} seeds"


@pytest.mark.parametrize("seed", [3, 4])
def test_same_seed_same_trace_in_any_process(seed: int) -> None:
    trace = same_trace("tests.simulation.fleet", "--seed", str(seed))
    assert len(trace) > 1000
    assert trace[-1] == run_seed(seed).summary()


def test_a_blackout_has_the_same_trace_in_any_process() -> None:
    trace = same_trace("tests.simulation.fleet", "--blackouts", "--seed", "2")
    assert len(trace) > 1000
    assert trace[-1] == simulate(draw_blackouts(2)).summary()


def test_plans_are_drawn_from_the_seed_alone_and_have_all_kinds_of_faults() -> None:
    assert draw(7) == draw(7) != draw(8)
    drawn = {fault.kind for seed in range(1, 100) for fault in draw(seed).faults}
    assert drawn == set(KINDS)


def test_a_failure_is_shrunk_to_the_faults_that_it_needs() -> None:
    with mutated("H20 who is silent loses its vote"):
        seed = next(seed for seed in range(5, 30) if run_seed(seed).violations)
        plan = shrink(draw(seed))
        assert simulate(plan).violations
    assert len(plan.schedule()) < max(1, len(draw(seed).schedule()))


def test_bounds_that_are_made_small_exist() -> None:
    assert not missing()
