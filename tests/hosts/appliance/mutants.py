"""Playbooks that lack one gate: copies without one task, or with another line."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.appliance.plays import PLAYBOOKS


@dataclass(frozen=True, slots=True)
class Mutant:
    """One gate that is missing: in a file, the task of this name, or one line."""

    file: str
    task: str = ""
    line: str = ""
    instead: str = ""
    second: "Mutant | None" = None
    """The same gate at its second place."""


def without_task(text: str, name: str) -> str:
    """Return a list of tasks without the first of a name, whatever its depth."""
    lines = text.splitlines(keepends=True)
    for place, line in enumerate(lines):
        found = re.fullmatch(rf"( *)- name: {re.escape(name)}\n", line)
        if found is None:
            continue
        end = place + 1
        # The task ends at the next line that is not deeper than its dash.
        while end < len(lines) and _is_inside(lines[end], len(found[1])):
            end += 1
        return "".join(lines[:place] + lines[end:])
    raise AssertionError(f"there is no task {name!r}")


def _is_inside(line: str, depth: int) -> bool:
    return not line.strip() or len(line) - len(line.lstrip()) > depth


def make(mutant: Mutant, folder: Path) -> Path:
    """Copy the playbooks and all that they use, remove one gate, and return the copy."""
    shutil.copytree(PLAYBOOKS.parent, folder, dirs_exist_ok=True)
    copy = folder / PLAYBOOKS.name
    place: Mutant | None = mutant
    while place is not None:
        path = copy / place.file
        path.write_text(_changed(path.read_text(), place))
        place = place.second
    return copy


def _changed(text: str, mutant: Mutant) -> str:
    if mutant.task:
        return without_task(text, mutant.task)
    assert text.count(mutant.line) == 1, f"{mutant.line!r} is not there once"
    return text.replace(mutant.line, mutant.instead)
