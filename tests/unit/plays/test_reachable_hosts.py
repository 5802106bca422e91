"""Hosts that a play cannot work on: those that do not answer, and those that ask for a password."""

from pathlib import Path

import pytest

from tests.fakes.local_plays import LocalPlays

LOOK = {"ansible.builtin.include_tasks": "tasks/reachable.yml"}
ASKS = "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n"
BROKEN = "#!/bin/sh\necho 'no such user' >&2\nexit 1\n"
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


@pytest.mark.parametrize("may_miss", [[], ["h1", "h2"]], ids=["every play", "remove_node"])
def test_a_host_asks_for_a_password(tmp_path: Path, may_miss: list[str]) -> None:
    plays = LocalPlays(tmp_path)
    sudo = str(plays.program("sudo-that-asks", ASKS))
    variables = {"ansible_become": True, "ansible_become_exe": sudo, "reachable_may_miss": may_miss}
    said = plays.run([LOOK], variables, ("h1", "h2"))
    assert said.code != 0
    assert "sudo asks for a password on h1, h2. Nothing was changed." in said.words
    assert "Give it with --ask-become-pass" in said.words
    assert "cannot be reached" not in said.words
    assert "remove_node" not in said.words


def test_a_host_fails_in_another_way(tmp_path: Path) -> None:
    plays = LocalPlays(tmp_path)
    sudo = str(plays.program("broken", BROKEN))
    said = plays.run([LOOK], {"ansible_become": True, "ansible_become_exe": sudo})
    assert said.code != 0
    assert "The play cannot work as root on h1: no such user. Nothing was changed." in said.words
    assert "See what is wrong: ansible dlog --become" in said.words
    assert "password" not in said.words


def test_a_host_does_not_answer(tmp_path: Path) -> None:
    said = LocalPlays(tmp_path).run([LOOK], AWAY)
    assert said.code != 0
    assert "h1 cannot be reached. Nothing was changed." in said.words
    assert "remove_node.yml -e dlog_node=h1" in said.words


def test_the_host_of_the_node_that_is_removed_may_be_away(tmp_path: Path) -> None:
    assert LocalPlays(tmp_path).run([LOOK], {**AWAY, "reachable_may_miss": ["h1"]}).code == 0
