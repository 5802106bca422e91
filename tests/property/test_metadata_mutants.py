"""Each rule about leaders, taken away, is seen by the state machine test: else that is too tame."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.metadata_machine import MetadataMachine
from tests.property.metadata_mutants import EXAMPLES_MAX, MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises((AssertionError, KeyError, StopIteration)):
        run_state_machine_as_test(
            MetadataMachine,
            settings=settings(
                max_examples=EXAMPLES_MAX,
                stateful_step_count=40,
                deadline=None,
                database=None,
                derandomize=True,
                report_multiple_bugs=False,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
