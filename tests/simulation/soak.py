"""Runs many seeds of one simulation on several cores, for a time or up to a number.

python -m tests.simulation.soak [fleet|blackouts|raft|node] [--minutes 30] [--seeds 9] [--first 1]

`fleet`: clusters of whole nodes; `blackouts`: those in which all lose their power at once, under
`flush.policy: always`; `raft`: the metadata layer alone; `node`: one node and its data.
Prints each seed that fails with the command that replays it, and in the end seeds, simulated hours
and faults by kind.
"""

import argparse
import logging
import multiprocessing
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from tests.simulation import plan as node_plan
from tests.simulation import run as node_run
from tests.simulation.fleet import blackouts
from tests.simulation.fleet import plan as fleet_plan
from tests.simulation.fleet import run as fleet_run
from tests.simulation.loop import NS
from tests.simulation.raft_run import Run as RaftRun

SEEDS_PER_PROCESS = 200
SPIN_S = 120.0
"""So much CPU no seed needs: something goes round in circles, and time stands still there."""
REPORT_EVERY_S = 60.0


@dataclass(slots=True)
class Result:
    """What one seed gave."""

    seed: int
    violations: list[str]
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


def run_fleet(seed: int) -> Result:
    """Run a cluster."""
    verdict = fleet_run.simulate(fleet_plan.draw(seed))
    return Result(seed, verdict.violations, verdict.seconds, verdict.counts)


def run_blackouts(seed: int) -> Result:
    """Run a cluster all of whose nodes lose their power at once."""
    verdict = fleet_run.simulate(blackouts.draw_blackouts(seed))
    return Result(seed, verdict.violations, verdict.seconds, verdict.counts)


def run_raft(seed: int) -> Result:
    """Run the metadata layer alone."""
    run = RaftRun(seed)
    violations = run.go()
    counts = {f"fault {name}": number for name, number in run.faults.counts.items()}
    counts |= {"entries": len(run.registry.applied), "calls": len(run.registry.calls)}
    return Result(seed, violations, run.world.now_ns / NS, counts)


def run_node(seed: int) -> Result:
    """Run one node with its data."""
    plan = node_plan.draw(seed)
    verdict = node_run.simulate(plan)
    counts = {name: number for name, number in verdict.counts.items() if name != "seconds"}
    for _, fault in plan.schedule():
        name = f"fault {fault.kind}"
        counts[name] = counts.get(name, 0) + 1
    return Result(seed, verdict.violations, verdict.counts["seconds"], counts)


SIMULATIONS: dict[str, tuple[Callable[[int], Result], str]] = {
    "fleet": (run_fleet, "make sim FLEET={}"),
    "blackouts": (run_blackouts, "python -m tests.simulation.fleet --blackouts --seed {}"),
    "raft": (run_raft, "python -m tests.simulation.raft_run --trace --seed {}"),
    "node": (run_node, "make sim SEED={}"),
}


def run_seed(what: str, seed: int) -> Result:
    """Run one seed; an error of the simulation itself is a violation."""
    logging.disable(logging.CRITICAL if what == "raft" else logging.NOTSET)
    signal.signal(signal.SIGVTALRM, _on_spin)
    signal.setitimer(signal.ITIMER_VIRTUAL, SPIN_S, SPIN_S / 10)
    try:
        return SIMULATIONS[what][0](seed)
    except Exception:  # noqa: BLE001 (one seed must not end the others)
        return Result(seed, [f"simulation: {traceback.format_exc()}"])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _on_spin(_signal: int, _frame: object) -> None:
    raise RuntimeError(f"the seed has taken {SPIN_S:.0f} s of CPU")


def _seeds(first: int, seeds: int, minutes: float) -> Iterator[int]:
    begun = time.monotonic()
    for seed in count(first):
        if (minutes and time.monotonic() - begun > minutes * 60) or (
            seeds and seed >= first + seeds
        ):
            return
        yield seed


def _results(what: str, seeds: Iterator[int], jobs: int) -> Iterator[Result]:
    """Run seeds in processes, a few at a time, so that the time of their drawing counts."""
    if jobs == 1:
        yield from (run_seed(what, seed) for seed in seeds)
        return
    processes = multiprocessing.get_context("spawn")
    with processes.Pool(jobs, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        running = deque(pool.apply_async(run_seed, (what, s)) for s in islice(seeds, jobs * 2))
        while running:
            yield running.popleft().get()
            running.extend(pool.apply_async(run_seed, (what, s)) for s in islice(seeds, 1))


def soak(what: str, first: int, seeds: int, minutes: float, jobs: int) -> int:
    """Run seeds; print what failed and the sum of it all; return the exit code."""
    begun = reported = time.monotonic()
    failed: list[int] = []
    totals: dict[str, int] = {}
    seconds, done = 0.0, 0
    for result in _results(what, _seeds(first, seeds, minutes), jobs):
        done += 1
        seconds += result.seconds
        for name, number in result.counts.items():
            totals[name] = totals.get(name, 0) + number
        if result.violations:
            failed.append(result.seed)
            print(f"seed {result.seed} FAILED", *result.violations[:5], sep="\n  ")
            print(f"  replay: {SIMULATIONS[what][1].format(result.seed)}", flush=True)
        if time.monotonic() - reported > REPORT_EVERY_S:
            reported = time.monotonic()
            print(f"{done} seeds, {reported - begun:.0f} s, {len(failed)} failed", flush=True)
    print(
        f"{what}: {done} seeds from {first} in {time.monotonic() - begun:.0f} s,"
        f" {len(failed)} failed {sorted(failed)}, {seconds / 3600:.2f} simulated hours"
    )
    for name in sorted(totals):
        print(f"  {name}: {totals[name]}")
    return 1 if failed else 0


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak")
    parser.add_argument("what", nargs="?", choices=sorted(SIMULATIONS), default="fleet")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    seeds = options.seeds or (0 if options.minutes else 1000)
    return soak(options.what, options.first, seeds, options.minutes, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
