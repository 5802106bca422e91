"""Runs seeds of the cluster simulation.

python -m tests.simulation.fleet --seed 7 [--trace] [--drop 1,4]
python -m tests.simulation.fleet --first 1 --seeds 1000 --jobs 2 [--minutes 30]
"""

import argparse
import multiprocessing
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from itertools import count, islice

from tests.simulation.fleet.plan import FleetPlan, draw
from tests.simulation.fleet.run import Verdict, simulate


def run_seed(seed: int) -> Verdict:
    """Run one seed; an error of the simulation itself is a violation."""
    plan = draw(seed)
    try:
        return simulate(plan)
    except Exception:  # noqa: BLE001 (one seed must not end the others)
        return Verdict(plan, "?", [f"simulation: {traceback.format_exc()}"], 0.0)


def shrink(plan: FleetPlan) -> FleetPlan:
    """Leave faults out, one by one, for as long as the run still fails."""
    again = True
    while again:
        again = False
        for number, _ in plan.schedule():
            shorter = plan.without(number)
            if simulate(shorter).violations:
                plan, again = shorter, True
                break
    return plan


def _show(verdict: Verdict) -> None:
    print(verdict.summary(), flush=True)
    for text in verdict.violations[:5]:
        print(f"  {text}")
    if verdict.violations:
        print(f"  replay: make sim FLEET={verdict.plan.seed}", flush=True)


def _seeds(first: int, seeds: int, minutes: float) -> Iterator[int]:
    begun = time.monotonic()
    for seed in count(first):
        if minutes and time.monotonic() - begun > minutes * 60:
            return
        if seeds and seed >= first + seeds:
            return
        yield seed


def _verdicts(seeds: Iterator[int], jobs: int) -> Iterator[Verdict]:
    """Run seeds in processes, a few at a time, so that the time of their drawing counts."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        running = deque(pool.apply_async(run_seed, (seed,)) for seed in islice(seeds, jobs * 2))
        while running:
            yield running.popleft().get()
            running.extend(pool.apply_async(run_seed, (seed,)) for seed in islice(seeds, 1))


def soak(first: int, seeds: int, minutes: float, jobs: int) -> int:
    """Run many seeds; print what failed, and a sum of it all."""
    begun = time.monotonic()
    failed: list[int] = []
    totals: dict[str, int] = {}
    seconds, done = 0.0, 0
    for verdict in _verdicts(_seeds(first, seeds, minutes), jobs):
        done += 1
        seconds += verdict.seconds
        for name, number in verdict.counts.items():
            totals[name] = totals.get(name, 0) + number
        if verdict.violations:
            failed.append(verdict.plan.seed)
            _show(verdict)
        elif done % 50 == 0:
            print(f"{done} seeds, {time.monotonic() - begun:.0f} s", flush=True)
    print(
        f"{done} seeds from {first} in {time.monotonic() - begun:.0f} s:"
        f" {len(failed)} failed {sorted(failed)}; {seconds / 3600:.2f} simulated hours"
    )
    for name in sorted(totals):
        print(f"  {name}: {totals[name]}")
    return 1 if failed else 0


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, help="one seed, with its plan")
    parser.add_argument("--trace", action="store_true", help="show all that happens")
    parser.add_argument("--quiet", action="store_true", help="show only the last line")
    parser.add_argument("--drop", default="", help="numbers of faults to leave out")
    parser.add_argument("--shrink", action="store_true", help="leave out what is not needed")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.seed is None:
        seeds = options.seeds or (0 if options.minutes else 200)
        return soak(options.first, seeds, options.minutes, options.jobs)
    plan = draw(options.seed)
    if options.drop:
        plan = plan.without(*map(int, options.drop.split(",")))
    if options.shrink:
        plan = shrink(plan)
    if not options.quiet:
        print("\n".join(plan.describe()))
    verdict = simulate(plan, print if options.trace else None)
    _show(verdict)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
