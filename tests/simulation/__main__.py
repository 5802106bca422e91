"""Run seeds: `python -m tests.simulation --seed 7` with a trace, `--seeds 2000 --jobs 2` without.

A failing seed prints its plan and what was violated; `--shrink` first leaves out every fault that
the failure does not need. Exit code 1 when any seed fails.
"""

import argparse
import faulthandler
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.simulation.plan import Plan, draw
from tests.simulation.run import Verdict, simulate

SEED_SECONDS_MAX = 60.0


def main() -> int:
    """Run what the arguments say."""
    arguments = _parse()
    if arguments.seed is not None:
        return _one(arguments)
    return _many(arguments)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed and print what happens")
    parser.add_argument("--seeds", type=int, default=100, help="run so many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--drop", default="", help="numbers of faults to leave out: 1,4,5")
    parser.add_argument("--shrink", action="store_true", help="leave out what is not needed")
    parser.add_argument("--quiet", action="store_true", help="no trace")
    return parser.parse_args()


def _one(arguments: argparse.Namespace) -> int:
    dropped = [int(number) for number in arguments.drop.split(",") if number]
    plan = draw(arguments.seed).without(*dropped)
    if arguments.shrink:
        plan = shrink(plan)
    for line in plan.describe():
        print(line)
    verdict = simulate(plan, None if arguments.quiet else print)
    _report(verdict)
    return 1 if verdict.violations else 0


def shrink(plan: Plan) -> Plan:
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


def _many(arguments: argparse.Namespace) -> int:
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    failed = []
    started = time.monotonic()
    for verdict in _verdicts(seeds, arguments.jobs):
        if verdict.violations:
            failed.append(verdict.plan.seed)
            _report(verdict)
        elif not arguments.quiet:
            print(verdict.summary(), flush=True)
    seconds = time.monotonic() - started
    print(f"{len(seeds)} seeds in {seconds:.1f} s, {len(failed)} failed: {sorted(failed)}")
    return 1 if failed else 0


def _verdicts(seeds: range, jobs: int) -> Iterator[Verdict]:
    if jobs <= 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=50) as pool:
        yield from pool.imap_unordered(run_seed, seeds)


def run_seed(seed: int) -> Verdict:
    """Run one seed as drawn; tell where it is when it takes much too long."""
    faulthandler.dump_traceback_later(SEED_SECONDS_MAX)
    verdict = simulate(draw(seed))
    faulthandler.cancel_dump_traceback_later()
    return verdict


def _report(verdict: Verdict) -> None:
    print(verdict.summary())
    if not verdict.violations:
        return
    for line in verdict.plan.describe():
        print(f"    {line}")
    for text in verdict.violations[:20]:
        print(f"  VIOLATION {text}")
    dropped = ",".join(map(str, verdict.plan.dropped))
    again = f"python -m tests.simulation --seed {verdict.plan.seed}"
    print(f"  replay: {again}{f' --drop {dropped}' if dropped else ''}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
