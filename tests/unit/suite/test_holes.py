"""Which seeds saw the known holes: tried first, written down, and never believed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation import holes

HOLE = "append duplicates"


@pytest.fixture
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "seen_by.json"
    path.write_text(json.dumps({"node": {HOLE: 1, "a hole of long ago": 3}}))
    monkeypatch.setattr(holes, "PATH", path)
    return path


def test_what_is_remembered_is_within_the_stated_seeds() -> None:
    for simulation, known in holes.remembered().items():
        sight = holes.SIGHTS[simulation]
        assert set(known) <= set(sight.mutants)
        assert all(seed in sight.seeds_of(name) for name, seed in known.items())
        assert set(sight.elsewhere) <= set(sight.mutants)


def test_a_seed_that_sees_no_more_is_not_the_last_word(remembered: Path) -> None:
    """The remembered seed does not see this one, the next does."""
    found = holes.look_for("node", HOLE, range(3, 5))
    assert found is not None and (found.seed, bool(found.violations)) == (3, True)
    assert holes.look_for("node", HOLE, range(0)) is None


def test_a_hole_that_is_seen_for_something_else_is_not_seen(
    remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a log is not whole in the end, where one asks whether records were lost."""
    for known_by, is_seen in (("lost-write",), False), (("lost-write", "duplicate"), True):
        sight = replace(holes.SIGHTS["node"], shows={HOLE: known_by})
        monkeypatch.setitem(holes.SIGHTS, "node", sight)
        assert (holes.look_for("node", HOLE, range(3, 4)) is not None) is is_seen
    for sight in holes.SIGHTS.values():
        assert set(sight.shows) <= set(sight.mutants) | {HOLE}


def test_seeds_are_written_down_and_holes_that_are_gone_forgotten(remembered: Path) -> None:
    holes.remember([("node", HOLE, 2), ("fleet", "H4 no minimum of the ISR", 6), ("", "other", -1)])
    assert json.loads(remembered.read_text()) == {
        "node": {HOLE: 2},
        "raft": {},
        "fleet": {"H4 no minimum of the ISR": 6},
    }
