"""No node acts under a lease that the controller takes for ended, whatever clocks and networks do.

The model is `tests.property.lease_model`. Each of `tests.property.lease_holes` opens a hole, and
the model has to fall into it.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.lease_holes import HOLE_SEEDS, HOLES
from tests.property.lease_model import Cluster


@settings(max_examples=60, deadline=None)
@example(seed=72)
@example(seed=104)
@example(seed=14691)
@example(seed=5567518)
@given(seed=st.integers(0, 2**32))
def test_nobody_acts_under_a_lease_that_has_ended(seed: int) -> None:
    Cluster(seed).run()


def test_the_model_reaches_what_it_is_for() -> None:
    runs = [Cluster(seed) for seed in range(40)]
    for run in runs:
        run.run()
    assert sum(run.grants for run in runs) > 500
    assert sum(run.fences for run in runs) > 15
    assert sum(run.deposed_grants for run in runs) > 20


@pytest.mark.parametrize("name", HOLES)
def test_the_model_catches_a_hole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    HOLES[name](monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(HOLE_SEEDS):
            Cluster(seed).run()
