"""Shows one seed of the cluster simulation; `python -m tests.simulation.soak` runs many.

python -m tests.simulation.fleet --seed 7 [--blackouts] [--quiet] [--drop 1,4] [--shrink]
"""

import argparse
import sys

from tests.simulation.fleet.blackouts import draw_blackouts
from tests.simulation.fleet.plan import FleetPlan, draw
from tests.simulation.fleet.run import Verdict, simulate


def run_seed(seed: int) -> Verdict:
    """Run one seed as drawn."""
    return simulate(draw(seed))


def shrink(plan: FleetPlan) -> FleetPlan:
    """Return the plan without the faults that its failure does not need."""
    names = _names(simulate(plan))
    if not names:
        return plan
    for number, _ in reversed(plan.schedule()):
        candidate = plan.without(number)
        if names & _names(simulate(candidate)):
            plan = candidate
    return plan


def _names(verdict: Verdict) -> set[str]:
    return {text.split(":")[0] for text in verdict.violations}


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fleet", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--blackouts", action="store_true", help="all lose their power, too")
    parser.add_argument("--quiet", action="store_true", help="no trace")
    parser.add_argument("--drop", default="", help="numbers of faults to leave out: 1,4,5")
    parser.add_argument("--shrink", action="store_true", help="leave out what is not needed")
    options = parser.parse_args()
    plan = (draw_blackouts if options.blackouts else draw)(options.seed)
    plan = plan.without(*[int(each) for each in options.drop.split(",") if each])
    if options.shrink:
        plan = shrink(plan)
    print("\n".join(plan.describe()))
    verdict = simulate(plan, None if options.quiet else print)
    for text in verdict.violations[:20]:
        print(f"  VIOLATION {text}")
    print(verdict.summary())
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
