"""The gates that `tests/hosts/appliance/gates.py` removes are still in the plays."""

from pathlib import Path

import pytest
import yaml

from tests.hosts.appliance import mutants
from tests.hosts.appliance.gates import MUTANTS
from tests.hosts.appliance.mutants import Mutant
from tests.hosts.appliance.plays import PLAYBOOKS


@pytest.mark.parametrize("mutant", [mutant for _, mutant in MUTANTS], ids=repr)
def test_a_gate_can_be_removed(mutant: Mutant, tmp_path: Path) -> None:
    changed = (mutants.make(mutant, tmp_path) / mutant.file).read_text()
    before = yaml.safe_load((PLAYBOOKS / mutant.file).read_text())
    assert yaml.safe_load(changed) != before


def test_a_refused_configuration_leaves_the_contexts_as_they_are() -> None:
    tasks = yaml.safe_load((PLAYBOOKS / "roles" / "dlogd" / "tasks" / "stage.yml").read_text())
    names = [task["name"] for task in tasks]
    assert names.index("A start with it would work") < names.index("How dlogctl finds the cluster")


def test_a_task_is_removed_at_any_depth() -> None:
    text = (
        "- name: a\n  block:\n    - name: b\n      x: 1\n\n    - name: c\n      x: 2\n- name: d\n"
    )
    assert mutants.without_task(text, "b") == (
        "- name: a\n  block:\n    - name: c\n      x: 2\n- name: d\n"
    )
    assert mutants.without_task(text, "a") == "- name: d\n"
