"""Opens every known hole, one at a time, and prints which seed or test sees it.

python -m tests.simulation.every_mutant [--only H10] [--jobs 2] [--remember]

With `--remember` the seeds that saw holes are written down for the next time (`holes.py`).
A hole is opened by replacing a function of the daemon by a wrong one. It is looked for by one of
the simulations (within a stated number of seeds), by a property test (within a stated number of
examples), or by tests that are named. The stories of a hole in tests/unit must see it as well,
each of them (`stories.py`). Exit code 1 when one is not seen: then what looks for it is
too tame.
"""

import argparse
import contextlib
import io
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from tests.property import lease_holes, metadata_mutants
from tests.simulation import holes, stories
from tests.simulation.patches import patched
from tests.simulation.tested_mutants import TESTED

MACHINE_TESTS = "tests/property/test_metadata_mutants.py"
LEASE_TESTS = "tests/property/test_leases.py"
BREAK = re.compile(
    r"^(?:E +)?((?:TypeError|AttributeError|NameError|MemoryError|OverflowError)(?:: .*)?)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Who saw a hole; of a simulation also its name and the seed."""

    by: str
    simulation: str = ""
    seed: int = -1


@dataclass(frozen=True, slots=True)
class Row:
    """One hole and who saw it."""

    name: str
    sought_by: str
    seen: Seen | None
    seconds: float

    def line(self) -> str:
        """Return it as a line of the table."""
        by = self.seen.by if self.seen else f"NOT SEEN by {self.sought_by}"
        return f"| {self.name} | {by} | {self.seconds:.0f} s |"


def _by_simulation(simulation: str, name: str) -> Seen | None:
    logging.disable(logging.CRITICAL if simulation == "raft" else logging.NOTSET)
    result = holes.look_for(simulation, name)
    if result is None:
        return None
    violation = result.violations[0].split(":")[0]
    return Seen(f"{simulation}, seed {result.seed}: {violation}", simulation, result.seed)


def _by_machine(name: str) -> Seen | None:
    return _by_pytest(MACHINE_TESTS, f"test_mutants_are_caught[{name}]", passes=True)


def _by_lease_model(name: str) -> Seen | None:
    return _by_pytest(LEASE_TESTS, f"test_the_model_catches_a_hole[{name}]", passes=True)


def _by_tests(name: str) -> Seen | None:
    patches, nodes = TESTED[name]
    with patched(patches):
        for node in nodes:
            path, _, test = node.partition("::")
            seen = _by_pytest(path, test, passes=False)
            if seen is not None:
                return seen
    return None


def _by_stories(name: str) -> Seen | None:
    """Tell all stories of a hole in tests/unit: each must fail while it is open."""
    hole = name.partition(":")[0]
    green = stories.green(hole)
    for node in green:
        print(f"passes with {hole} open: {node}", flush=True)
    told = [each.partition("::")[2] for each in stories.stories()[hole]]
    blind = [f"not {each}: {stories.UNOPENED[each]}" for each in told if each in stories.UNOPENED]
    return None if green else Seen(", ".join(blind) or f"{len(told)} of them")


class _Breaks:
    """Errors of Python in the reports of a run: such a test fails because the patch is broken."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at what a test raised, and at what callbacks of the loop raised meanwhile."""
        if report.failed:
            self.found += BREAK.findall(f"{report.longreprtext}\n{report.capstderr}")


def _by_pytest(path: str, test: str, *, passes: bool) -> Seen | None:
    """Run one test: it has to pass where it opens the hole itself, else to fail.

    A test that fails for an error of the patch itself has not seen the hole.
    """
    breaks = _Breaks()
    with contextlib.redirect_stdout(io.StringIO()):
        arguments = [
            "-q",
            "-x",
            "-n0",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:logging",
            f"{path}::{test}",
        ]
        code = pytest.main(arguments, plugins=[breaks])
    if breaks.found and not passes:
        print(f"the patch is broken, says {test}: {breaks.found[0]}", flush=True)
        return None
    wanted = pytest.ExitCode.OK if passes else pytest.ExitCode.TESTS_FAILED
    return Seen(test) if code == wanted else None


SEEKERS: dict[str, tuple[Callable[[str], Seen | None], list[str]]] = {
    **{
        f"{len(sight.seeds)} seeds of {name}": (partial(_by_simulation, name), list(sight.mutants))
        for name, sight in holes.SIGHTS.items()
    },
    f"{metadata_mutants.EXAMPLES_MAX} runs of the machine's model": (
        _by_machine,
        list(metadata_mutants.MUTANTS),
    ),
    f"{lease_holes.HOLE_SEEDS} seeds of the leases' model": (
        _by_lease_model,
        list(lease_holes.HOLES),
    ),
    "named tests": (_by_tests, list(TESTED)),
    "each story of tests/unit": (
        _by_stories,
        [f"{hole}: its stories in tests/unit" for hole in stories.stories()],
    ),
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
    parser.add_argument("--remember", action="store_true", help=f"write {holes.PATH.name}")
    options = parser.parse_args()
    orders = [
        (sought_by, name)
        for sought_by, (_, names) in SEEKERS.items()
        for name in names
        if name.startswith(options.only) or options.only in sought_by
    ]
    print("| hole, opened again | seen by | after |\n| --- | --- | --- |", flush=True)
    rows: list[Row] = []
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for row in pool.imap(look_for, orders, chunksize=1):
            rows.append(row)
            print(row.line(), flush=True)
    if options.remember:
        holes.remember((row.seen.simulation, row.name, row.seen.seed) for row in rows if row.seen)
    missed = sum(row.seen is None for row in rows)
    print(f"\n{len(orders)} holes, {missed} not seen")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
