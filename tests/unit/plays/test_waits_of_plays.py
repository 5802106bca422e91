"""Waits of plays: as long as something moves, and at most `dlog_patience` without that."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.playbooks import ANSIBLE
from tests.fakes.local_plays import LocalPlays

LOOKS = 4
# Each look of the play counts up; the state is that of the restart, the status that of the daemon.
SYSTEMCTL = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
*dlogd-restart.service*)
    echo x >> looks
    if [ "$(wc -l < looks)" -le {looks} ]; then echo activating; else echo inactive; fi ;;
*) echo "StatusText=recovery {status}" ;;
esac
"""
DLOGCTL = """#!/bin/sh
cd "$(dirname "$0")"
if [ "$3" = -o ] && [ "$4" = json ]; then echo '{{"nodes": []}}'; exit; fi
echo x >> looks
count=$(wc -l < looks)
printf '1\\tvoter\\tno\\t%s\\t0\\t%s\\t-\\n' {entries} "$count s"
printf '11\\tcontroller\\tyes\\t9\\t0\\t-\\t-\\n'
if [ "$count" -gt {looks} ]; then printf '1\\tobserver\\tyes\\t9\\t0\\t-\\t-\\n'; fi
"""
FOREVER = 1_000_000
STARTING = """#!/bin/sh
case "$*" in
*\\ show\\ *) printf 'ActiveState={state}\\nSubState=start\\nStatusText=recovery 3 of 9\\n' ;;
esac
"""
"""The state of a unit that starts."""


def looks(folder: Path) -> int:
    """Return how often a play looked."""
    return len((folder / "programs" / "looks").read_text().splitlines())


@pytest.mark.parametrize("program", [["false"], ["sh", "-c", "echo still; false"]])
def test_a_wait_ends_when_nothing_moves(program: list[str]) -> None:
    command = [str(ANSIBLE / "files" / "patiently"), "0.5", *program]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.strip() == ("still" if "sh" in program else "")
    assert time.monotonic() - began >= 0.5


def test_a_wait_is_longer_than_its_patience_while_something_moves(tmp_path: Path) -> None:
    # Each output comes twice; the wait takes five seconds.
    step = f"cd {tmp_path}; echo x >> looks; n=$(wc -l < looks); echo $((n / 2)); [ $n -gt 5 ]"
    command = [str(ANSIBLE / "files" / "patiently"), "3", "sh", "-c", step]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_what_goes_to_and_fro_does_not_move(tmp_path: Path) -> None:
    flip = f"cd {tmp_path}; if [ -e up ]; then rm up; else touch up; fi; ls; false"
    command = [str(ANSIBLE / "files" / "patiently"), "0.5", "sh", "-c", flip]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


def test_a_restart_that_moves_is_waited_for(tmp_path: Path) -> None:
    plays = LocalPlays(tmp_path)
    plays.program("systemctl", SYSTEMCTL.format(looks=LOOKS, status="$(wc -l < looks)"))
    tasks = [{"ansible.builtin.include_tasks": "tasks/idle.yml"}]
    said = plays.run(tasks, {"dlog_patience": 0})
    assert said.code == 0, said.output
    assert looks(tmp_path) == LOOKS + 1


def test_a_restart_that_hangs_is_named(tmp_path: Path) -> None:
    plays = LocalPlays(tmp_path)
    plays.program("systemctl", SYSTEMCTL.format(looks=FOREVER, status="3 of 9"))
    tasks = [{"ansible.builtin.include_tasks": "tasks/idle.yml"}]
    said = plays.run(tasks, {"dlog_patience": 1})
    assert said.code != 0
    assert "h1 restarts its node for an earlier play, and nothing has moved for 1 s:" in said.words
    assert "StatusText=recovery 3 of 9" in said.words
    assert "systemctl stop dlogd-restart" in said.words


@pytest.mark.parametrize(
    ("entries", "looks_needed", "patience", "words"),
    [
        ('"$count"', LOOKS, 0, ""),
        ("3", FOREVER, 1, "not follow the metadata, and nothing has moved for 1 s: 1 voter no 3"),
    ],
    ids=["moves", "hangs"],
)
def test_a_voter_follows_before_it_votes_again(
    tmp_path: Path, entries: str, looks_needed: int, patience: int, words: str
) -> None:
    plays = LocalPlays(tmp_path)
    tool = plays.program("dlogctl", DLOGCTL.format(entries=entries, looks=looks_needed))
    tasks = [{"ansible.builtin.include_tasks": "tasks/votes_again.yml"}]
    said = plays.run(tasks, {"dlog_patience": patience, "cluster_ctl": str(tool)})
    assert (said.code == 0) == (words == ""), said.output
    assert words in said.words.replace("\\t", " ")
    assert looks(tmp_path) > 1


@pytest.mark.parametrize("state", ["activating", "active"])
def test_a_start_has_the_patience_of_the_play(tmp_path: Path, state: str) -> None:
    plays = LocalPlays(tmp_path)
    plays.program("systemctl", STARTING.format(state=state))
    plays.program("python", f'#!/bin/sh\nexec {sys.executable} -c "$2" "$3"\n')
    (tmp_path / "bin").symlink_to(plays.programs)
    role = {"name": "dlogd", "tasks_from": "started.yml"}
    variables = {"dlog_patience": 1, "release_path": str(tmp_path)}
    said = plays.run([{"ansible.builtin.include_role": role}], variables)
    if state == "active":
        assert said.code == 0, said.output
    else:
        assert said.code != 0
        words = "dlogd does not start on h1: it hangs in its start, nothing has moved for 1 s"
        assert words in said.words
