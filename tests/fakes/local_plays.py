"""Parts of the playbooks on this machine: their tasks, with programs that a test writes.

The playbooks are a copy in a folder whose name has a space. Every host of the inventory is this
machine; no password is asked for, and nothing runs as another user.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scripts.playbooks import ANSIBLE

PLAY_S = 120.0


@dataclass(frozen=True, slots=True)
class Said:
    """A play that has ended."""

    code: int
    output: str

    @property
    def words(self) -> str:
        """The output without line breaks, as sentences are looked for."""
        return " ".join(self.output.split())


class LocalPlays:
    """Plays of some tasks. Owner: one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.playbooks = folder / "the plays"
        self.programs = folder / "programs"
        self.programs.mkdir()
        shutil.copytree(ANSIBLE, self.playbooks)

    def program(self, name: str, text: str) -> Path:
        """Write a program that tasks find first; return its path."""
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(
        self,
        tasks: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        hosts: Sequence[str] = ("h1",),
        *arguments: str,
    ) -> Said:
        """Run tasks on all hosts; a warning is an error."""
        play = {
            "hosts": "dlog",
            "gather_facts": False,
            "any_errors_fatal": True,
            "vars_files": [f"roles/cluster/{part}/main.yml" for part in ("defaults", "vars")],
            "tasks": list(tasks),
        }
        (self.playbooks / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))
        lines = [
            f"{host} dlog_node_id={number} ansible_connection=local"
            for number, host in enumerate(hosts, 1)
        ]
        inventory = self.folder / "hosts.ini"
        inventory.write_text("\n".join(["[dlog]", *lines, ""]))
        given = {"dlog_cluster_id": "orders", "ansible_become": False, **(variables or {})}
        return self.play("play.yml", "-i", str(inventory), "-e", json.dumps(given), *arguments)

    def play(self, playbook: str, *arguments: str) -> Said:
        """Run a playbook of the copy."""
        done = subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), playbook, *arguments],
            cwd=self.playbooks,
            env={
                **os.environ,
                "PATH": f"{self.programs}:{os.environ['PATH']}",
                "ANSIBLE_HOME": str(self.folder / "home"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_PIPELINING": "1",
                "ANSIBLE_BECOME_ALLOW_SAME_USER": "1",
                "LANG": "C.UTF-8",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PLAY_S,
            check=False,
        )
        assert "WARNING" not in done.stdout, done.stdout
        return Said(done.returncode, done.stdout)
