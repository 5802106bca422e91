"""Opens every known hole, one at a time, and prints which seed or test sees it.

python -m tests.simulation.every_mutant [--only H10] [--jobs 2]

A hole is opened by replacing a function of the daemon by a wrong one. It is looked for by one of
the simulations (within a stated number of seeds), by a property test (within a stated number of
examples), or by tests that are named. Exit code 1 when one is not seen: then what looks for it is
too tame.
"""

import argparse
import contextlib
import io
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.property import test_leases, test_metadata_mutants
from tests.simulation import mutants as node_mutants
from tests.simulation import raft_mutants
from tests.simulation.fleet import mutants as fleet_mutants
from tests.simulation.patches import patched
from tests.simulation.soak import run_fleet, run_node
from tests.simulation.test_mutants import TESTED

NODE_SEEDS, RAFT_SEEDS, FLEET_SEEDS = 150, 100, 500


@dataclass(frozen=True, slots=True)
class Row:
    """One hole and who saw it."""

    name: str
    sought_by: str
    seen_by: str | None
    seconds: float

    def line(self) -> str:
        """Return it as a line of the table."""
        seen = self.seen_by or f"NOT SEEN by {self.sought_by}"
        return f"| {self.name} | {seen} | {self.seconds:.0f} s |"


def _by_node(name: str) -> str | None:
    seeds = node_mutants.seeds_until_caught(
        name, lambda seed: run_node(seed).violations, NODE_SEEDS
    )
    return None if seeds is None else f"simulation of a node, seed {seeds}"


def _by_raft(name: str) -> str | None:
    logging.disable(logging.CRITICAL)
    seeds = raft_mutants.seeds_until_caught(name, 0, RAFT_SEEDS)
    return None if seeds is None else f"simulation of Raft, seed {seeds - 1}"


def _by_fleet(name: str) -> str | None:
    with fleet_mutants.mutated(name):
        for seed in range(1, FLEET_SEEDS + 1):
            violations = run_fleet(seed).violations
            if violations:
                return f"simulation of clusters, seed {seed}: {violations[0].split(':')[0]}"
    return None


def _by_machine(name: str) -> str | None:
    return _by_pytest(
        test_metadata_mutants.__file__, f"test_mutants_are_caught[{name}]", passes=True
    )


def _by_lease_model(name: str) -> str | None:
    return _by_pytest(test_leases.__file__, f"test_the_model_catches_a_hole[{name}]", passes=True)


def _by_tests(name: str) -> str | None:
    patches, nodes = TESTED[name]
    with patched(patches):
        for node in nodes:
            path, _, test = node.partition("::")
            seen = _by_pytest(path, test, passes=False)
            if seen is not None:
                return seen
    return None


def _by_pytest(path: str, test: str, *, passes: bool) -> str | None:
    """Run one test: it has to pass where it opens the hole itself, else to fail."""
    with contextlib.redirect_stdout(io.StringIO()):
        arguments = ["-q", "-n0", "-p", "no:cacheprovider", "-p", "no:logging", f"{path}::{test}"]
        code = pytest.main(arguments)
    wanted = pytest.ExitCode.OK if passes else pytest.ExitCode.TESTS_FAILED
    return test if code == wanted else None


SEEKERS: dict[str, tuple[Callable[[str], str | None], list[str]]] = {
    f"{NODE_SEEDS} seeds of a node": (_by_node, list(node_mutants.MUTANTS)),
    f"{RAFT_SEEDS} seeds of Raft": (_by_raft, list(raft_mutants.MUTANTS)),
    f"{FLEET_SEEDS} seeds of clusters": (_by_fleet, list(fleet_mutants.MUTANTS)),
    f"{test_metadata_mutants.EXAMPLES_MAX} runs of the machine's model": (
        _by_machine,
        list(test_metadata_mutants.MUTANTS),
    ),
    f"{test_leases.HOLE_SEEDS} seeds of the leases' model": (
        _by_lease_model,
        list(test_leases.HOLES),
    ),
    "named tests": (_by_tests, list(TESTED)),
}


def look_for(order: tuple[str, str]) -> Row:
    """Open one hole and look for it."""
    sought_by, name = order
    begun = time.monotonic()
    seen = SEEKERS[sought_by][0](name)
    return Row(name, sought_by, seen, time.monotonic() - begun)


def main() -> int:
    """Look for all holes; print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.every_mutant")
    parser.add_argument("--only", default="", help="names that begin so, or `sought_by` that do")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    orders = [
        (sought_by, name)
        for sought_by, (_, names) in SEEKERS.items()
        for name in names
        if name.startswith(options.only) or options.only in sought_by
    ]
    print("| hole, opened again | seen by | after |\n| --- | --- | --- |", flush=True)
    missed = 0
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for row in pool.imap(look_for, orders, chunksize=1):
            missed += row.seen_by is None
            print(row.line(), flush=True)
    print(f"\n{len(orders)} holes, {missed} not seen")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
