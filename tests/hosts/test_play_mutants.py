"""Each gate of the plays is needed: without it a scenario finds what the gate prevents.

The long form. A scenario runs on the true plays first and finds nothing.
"""

from pathlib import Path

import pytest

from tests.hosts.appliance import mutants
from tests.hosts.appliance.cluster import Cluster
from tests.hosts.appliance.forms import long_form
from tests.hosts.appliance.gates import MUTANTS, SCENARIOS, Scenario
from tests.hosts.appliance.mutants import Mutant

pytestmark = long_form


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_the_true_plays(cluster: Cluster, scenario: Scenario) -> None:
    assert scenario(cluster, cluster.plays) == []


@pytest.mark.parametrize(
    ("scenario", "mutant"),
    MUTANTS,
    ids=[f"{mutant.file}:{mutant.task or mutant.instead}".strip() for _, mutant in MUTANTS],
)
def test_plays_that_lack_a_gate(
    cluster: Cluster, tmp_path: Path, scenario: Scenario, mutant: Mutant
) -> None:
    plays = cluster.plays.with_playbooks(mutants.make(mutant, tmp_path))
    found = scenario(cluster, plays)
    assert found, f"nobody noticed that {mutant} is missing"
    print(f"\n{mutant}: {found[0]}")
