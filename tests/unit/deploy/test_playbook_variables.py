"""The variables of the playbooks: documented, typed, with the defaults that the page shows."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from scripts import playbooks

EXAMPLE = playbooks.ANSIBLE / "hosts.example.ini"
VARIABLE = re.compile(r"\bdlog_[a-z_]+")
GROUPS = frozenset({"dlog_new", "dlog_old", "dlog_due"})
"""Groups of hosts that plays make; they are no variables."""
SUFFIXES = frozenset({".yml", ".j2", ".ini"})


def texts() -> Iterator[tuple[str, str]]:
    """Yield name and text of everything that Ansible reads."""
    for path in sorted(playbooks.ANSIBLE.rglob("*")):
        if path.suffix in SUFFIXES:
            yield path.relative_to(playbooks.ANSIBLE).as_posix(), path.read_text(encoding="utf-8")


def options() -> dict[str, Any]:
    """Return the options of all roles by name."""
    return {
        name: option
        for role in playbooks.ROLES
        for name, option in playbooks.specs(role)["options"].items()
    }


def documented() -> set[str]:
    """Return the variables of the page's tables."""
    page = (playbooks.ANSIBLE / "README.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `(dlog_\w+)", page, re.MULTILINE))


def test_the_page_is_generated() -> None:
    page = (playbooks.ANSIBLE / "README.md").read_text(encoding="utf-8")
    again = "write it again: python -m scripts.playbooks > deploy/ansible/README.md"
    assert page == playbooks.text(), again


def test_the_links_of_the_page_lead_somewhere() -> None:
    page = (playbooks.ANSIBLE / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert targets
    assert all((playbooks.ANSIBLE / target).exists() for target in targets)


def test_every_role_has_its_table() -> None:
    roles = {path.name for path in (playbooks.ANSIBLE / "roles").iterdir()}
    assert roles == set(playbooks.ROLES)


def test_every_play_says_what_it_does() -> None:
    plays = playbooks.plays()
    assert {"site.yml", "upgrade.yml", "add_node.yml"} <= {play.name for play in plays}
    assert all(playbooks.purpose(play).endswith(".") for play in plays)


def test_every_variable_is_documented() -> None:
    known = documented()
    used = {(name, each) for name, text in texts() for each in VARIABLE.findall(text)}
    missing = sorted((name, each) for name, each in used if each not in known | GROUPS)
    assert not missing, missing


def test_every_documented_variable_is_used() -> None:
    read = [text for name, text in texts() if not re.search(r"/(meta|defaults)/", name)]
    used = {each for text in read for each in VARIABLE.findall(text)}
    assert documented() <= used, documented() - used


@pytest.mark.parametrize("role", playbooks.ROLES)
def test_defaults_are_those_of_the_specs(role: str) -> None:
    told, values = playbooks.specs(role)["options"], playbooks.defaults(role)
    optional = {name for name, each in told.items() if not each.get("required", False)}
    assert optional == values.keys()
    for name, value in values.items():
        if playbooks.is_plain(value) and told[name]["type"] != "raw":
            assert told[name]["default"] == value, name


def test_variables_of_one_run_have_the_defaults_of_the_page() -> None:
    every = "\n".join(text for _, text in texts())
    for given in playbooks.GIVEN:
        assert given.name in every
        if given.kind == "bool":
            assert f"{given.name} | default({given.default.strip('`')})" in every, given.name


def inventory(path: Path, home: Path) -> dict[str, Any]:
    """Return an inventory as Ansible reads it."""
    program = Path(sys.executable).with_name("ansible-inventory")
    done = subprocess.run(
        [program, "-i", path, "--list"],
        cwd=playbooks.ANSIBLE,
        env={**os.environ, "ANSIBLE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_example_satisfies_the_specs(tmp_path: Path) -> None:
    found = inventory(EXAMPLE, tmp_path)
    hosts = found["dlog"]["hosts"]
    variables = [found["_meta"]["hostvars"][host] for host in hosts]
    assert len({each["dlog_node_id"] for each in variables}) == len(hosts) == 3
    # A default that only describes an expression has another type.
    plain = {
        name: {key: value for key, value in option.items() if key != "default"}
        for name, option in options().items()
    }
    for each in variables:
        own = {name: value for name, value in each.items() if name.startswith("dlog_")}
        result = ArgumentSpecValidator(plain).validate({**own, "dlog_bundle": "dlog.tar.gz"})
        assert not result.error_messages, result.error_messages


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"dlog_node_id": 1}, "missing required arguments: dlog_bundle, dlog_cluster_id"),
        ({"dlog_node_id": "one", "dlog_cluster_id": "a", "dlog_bundle": "b"}, "dlog_node_id"),
        (
            {"dlog_node_id": 1, "dlog_cluster_id": "a", "dlog_bundle": "b", "dlog_membership": "x"},
            "value of dlog_membership must be one of: static, serf",
        ),
    ],
)
def test_wrong_variables_do_not(variables: dict[str, Any], words: str) -> None:
    result = ArgumentSpecValidator(options()).validate(variables)
    assert any(words in message for message in result.error_messages), result.error_messages
