"""Holes that named tests see, and that each list of mutants is whole.

`make mutants` opens all of them; what takes long is only there.
"""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.property import lease_holes, metadata_mutants
from tests.simulation import mutants as node_mutants
from tests.simulation import raft_mutants, stories
from tests.simulation.fleet import mutants as fleet_mutants
from tests.simulation.tested_mutants import TESTED

ROOT = Path(__file__).parents[2]
SIMULATED = (
    *(node_mutants.MUTANTS, raft_mutants.MUTANTS, fleet_mutants.MUTANTS),
    stories.OPENED,
)


@pytest.mark.parametrize(
    "mutants", [*SIMULATED, {name: patches for name, (patches, _) in TESTED.items()}]
)
def test_what_is_replaced_exists(mutants: dict[str, Any]) -> None:
    for name, patches in mutants.items():
        for owner, attribute, _ in patches if isinstance(patches[0], tuple) else [patches]:
            assert getattr(owner, attribute, None) is not None, f"{name}: {attribute}"


def unfit(original: object, replacement: object) -> str:
    """Return why the one cannot be called as the other is; "" where it can, or is no function."""
    if not inspect.isfunction(original) or not inspect.isfunction(replacement):
        return ""
    parameters = inspect.signature(original).parameters.values()
    kinds = inspect.Parameter
    placed = [each for each in parameters if each.kind in (kinds.POSITIONAL_OR_KEYWORD,)]
    named = {each.name: None for each in parameters if each.kind is kinds.KEYWORD_ONLY}
    for count in {len(placed), sum(each.default is kinds.empty for each in placed)}:
        try:
            inspect.signature(replacement).bind(*placed[:count], **named)
        except TypeError as error:
            return f"{inspect.signature(original)}: {error}"
    return ""


@pytest.mark.parametrize(
    "mutants", [*SIMULATED, {name: patches for name, (patches, _) in TESTED.items()}]
)
def test_what_replaces_a_function_is_called_as_it_is(mutants: dict[str, Any]) -> None:
    """Else the hole is seen because nothing works any more."""
    wrong = [
        f"{name}: {attribute}{why}"
        for name, patches in mutants.items()
        for owner, attribute, make in (patches if isinstance(patches[0], tuple) else [patches])
        if (why := unfit(original := getattr(owner, attribute), make(original)))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", TESTED)
def test_the_tests_that_see_a_hole_exist(name: str) -> None:
    for node in TESTED[name][1]:
        path, _, test = node.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(), f"{name}: {node}"


def test_every_story_has_something_that_opens_its_hole() -> None:
    """That each then fails is for `make mutants`: it takes minutes."""
    told = {node: hole for hole, nodes in stories.stories().items() for node in nodes}
    names = {node.partition("::")[2] for node in told}
    closed = [node for node, hole in told.items() if not stories.openings(hole, node)]
    assert {node.partition("::")[2] for node in closed} == set(stories.UNOPENED)
    assert set(stories.OPENED) <= names


def test_every_hole_of_the_analysis_has_a_mutant() -> None:
    names = [
        *(*node_mutants.MUTANTS, *raft_mutants.MUTANTS, *fleet_mutants.MUTANTS, *TESTED),
        *(*metadata_mutants.MUTANTS, *lease_holes.HOLES),
    ]
    wanted = [
        *(
            "1.2.1",
            "1.2.2",
            "1.2.3",
            "1.3",
            "1.5.1",
            "1.5.2",
            "1.5.3",
            "1.5.4",
            "1.5.5",
            "1.5.6",
            "1.5.7",
        ),
        *("1.5.8", *(f"H{number}" for number in range(1, 21)), "L2", "L10", "L13"),
    ]
    missing = [each for each in wanted if not any(re.search(rf"\b{each}\b", n) for n in names)]
    assert not missing
