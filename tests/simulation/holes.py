"""Known holes that simulations must see within a stated number of seeds.

`seen_by.json` has a seed that saw each when they were last looked for. It is tried first, which
shows as much as trying all before it, and is done sooner. What is drawn may have changed since:
then all are tried (`python -m tests.simulation.every_mutant --remember` writes them down anew).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from tests.simulation import mutants as node_mutants
from tests.simulation import raft_mutants
from tests.simulation.fleet import mutants as fleet_mutants
from tests.simulation.fleet.data_liars import LIARS_FROM
from tests.simulation.fleet.data_mutants import LIES, SHOWS
from tests.simulation.soak import Result, run_fleet, run_node, run_raft

PATH = Path(__file__).with_name("seen_by.json")

_OF_PATCHES = ("TypeError(", "AttributeError(", "NameError(")
"""What a patch raises that no longer fits what it replaces."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a simulation sees: its holes, and the seeds within which it must see each."""

    run: Callable[[int], Result]
    mutants: Mapping[str, Any]
    mutated: Callable[[str], AbstractContextManager[None]]
    seeds: range
    shows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """How violations begin by which a hole is known; without them any will do."""
    elsewhere: Mapping[str, range] = field(default_factory=dict)
    """Seeds of holes for which `seeds` do not do what is needed."""

    def seeds_of(self, name: str) -> range:
        """Return the seeds within which a hole must be seen."""
        return self.elsewhere.get(name, self.seeds)


SIGHTS = {
    "node": Sight(
        run_node, node_mutants.MUTANTS, node_mutants.mutated, range(1, 151), node_mutants.SHOWS
    ),
    "raft": Sight(
        run_raft, raft_mutants.MUTANTS, raft_mutants.mutated, range(100), raft_mutants.SHOWS
    ),
    "fleet": Sight(
        run_fleet,
        fleet_mutants.MUTANTS,
        fleet_mutants.mutated,
        range(1, 501),
        SHOWS,
        dict.fromkeys(LIES, range(LIARS_FROM + 1, LIARS_FROM + 501)),
    ),
}
"""By the names that `make soak` has for them."""


def remembered() -> dict[str, dict[str, int]]:
    """Return by simulation and hole which seed saw it."""
    found: dict[str, dict[str, int]] = json.loads(PATH.read_text(encoding="ascii"))
    return found


def remember(seen: Iterable[tuple[str, str, int]]) -> None:
    """Write down, beside what is there, simulation, hole and seed; forget holes that are gone."""
    known = remembered()
    for simulation, name, seed in seen:
        if simulation:
            known.setdefault(simulation, {})[name] = seed
    kept = {}
    for simulation, sight in SIGHTS.items():
        there = known.get(simulation, {})
        kept[simulation] = {name: there[name] for name in sight.mutants if name in there}
    PATH.write_text(json.dumps(kept, indent=2) + "\n", encoding="ascii")


def look_for(simulation: str, name: str, seeds: range | None = None) -> Result | None:
    """Open a hole and return the first run that sees it, None where none of the seeds does."""
    sight = SIGHTS[simulation]
    known = remembered().get(simulation, {}).get(name)
    first = [] if known is None else [known]
    with sight.mutated(name):
        for seed in chain(first, sight.seeds_of(name) if seeds is None else seeds):
            result = sight.run(seed)
            _check_hole(name, result.violations)
            known_by = sight.shows.get(name, ("",))
            seen = [each for each in result.violations if each.startswith(known_by)]
            if seen:
                return replace(result, violations=seen)
    return None


def _check_hole(name: str, violations: Iterable[str]) -> None:
    """Raise where what is wrong is not the daemon with this hole, but what opens it."""
    for each in violations:
        if any(kind in each for kind in _OF_PATCHES):
            raise RuntimeError(f"the hole {name!r} is not what is seen, its patch is wrong: {each}")
