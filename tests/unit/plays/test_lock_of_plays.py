"""Token of the maintenance lock in the plays, and the contexts that they write."""

import re
from pathlib import Path
from uuid import uuid4

import pytest

from dlog.address import Address
from dlogctl.contexts import load_contexts
from dlogctl.settings import parse_addresses
from scripts.playbooks import ANSIBLE
from tests.fakes.local_plays import LocalPlays

TOKEN = str(uuid4())  # no other process of this machine has it
LOOK = """#!/bin/sh
# What this command is given, and how all processes were started meanwhile.
echo "$DLOG_MAINTENANCE_TOKEN $@" >> "$0.asked"
for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline; echo; done >> "$0.processes" 2> /dev/null
"""


@pytest.fixture
def plays(tmp_path: Path) -> LocalPlays:
    return LocalPlays(tmp_path)


def test_no_process_shows_the_token(plays: LocalPlays) -> None:
    release = plays.folder / "releases" / "1.0" / "bin"
    release.mkdir(parents=True)
    (plays.playbooks / "files" / "owner").write_text("#!/bin/sh\necho somebody\n")
    paths = [plays.program(name, LOOK) for name in ("dlogctl", "systemd-run")]
    (release / "dlogctl").symlink_to(paths[0])
    (plays.programs / "token").write_text(TOKEN)
    files = ("one_node.yml", "shares.yml", "handed_over.yml", "unlock.yml")
    said = plays.run(
        [
            {
                "ansible.builtin.set_fact": {
                    # Not from -e: that stands in the command line of this play itself.
                    "cluster_token": "{{ lookup('ansible.builtin.file', token_file) }}"
                }
            },
            *({"ansible.builtin.include_tasks": f"tasks/{name}"} for name in files),
        ],
        {
            "token_file": str(plays.programs / "token"),
            "release_root": str(plays.folder),
            "release_version": "1.0",
            "rolling_kind": "upgrade",
            "rolling_playbook": "upgrade.yml",
            "dlog_bundle": "-",
            "cluster_ctl": str(paths[0]),
            "cluster_tool": str(paths[0]),
            "cluster_asker": "h1",
            "cluster_silent": ["h9"],
            "dlog_node": "h9",
            "spared_wants_heir": False,
            "spared_is_there": True,
            "spared_id": 1,
            "spared_voters": [],
        },
    )
    assert said.code == 0, said.output
    asked, processes = "", ""
    for program in (paths[0], release / "dlogctl", paths[1]):
        asked += program.with_name(f"{program.name}.asked").read_text()
        processes += program.with_name(f"{program.name}.processes").read_text()
    for words in ("maintenance hold", "node pre-restart", "node restart 1 --here", "node drain 1",
                  "partition rebalance", "node remove 1", "maintenance release"):  # fmt: skip
        (line,) = [each for each in asked.splitlines() if words in each]
        assert line.startswith(f"{TOKEN} ")
        assert words in processes
    assert TOKEN not in processes


def test_no_task_gives_the_token_in_arguments_or_environment() -> None:
    for path in ANSIBLE.rglob("*.yml"):
        text = path.read_text()
        assert "--token" not in text and "DLOG_MAINTENANCE_TOKEN:" not in text, path
        for line in text.splitlines():
            if re.search(r"\{\{[^}]*cluster_token(?! \| default)", line):
                assert line.strip().startswith("stdin:"), (path, line)


@pytest.mark.parametrize(
    ("cluster", "address", "host"),
    [
        ("null", "[fd00::1]", "fd00::1"),
        ("yes", "h1.example.org", "h1.example.org"),
        (1.0, "10.0.0.1", "10.0.0.1"),
        ("0x10", "[fe80::1]", "fe80::1"),
    ],
)
def test_contexts_can_be_read_whatever_the_names(
    plays: LocalPlays, cluster: object, address: str, host: str
) -> None:
    path = plays.folder / "contexts.yaml"
    source = plays.playbooks / "roles" / "dlogd" / "templates" / "contexts.yaml.j2"
    task = {"ansible.builtin.template": {"src": str(source), "dest": str(path)}}
    said = plays.run([task], {"dlog_cluster_id": cluster, "dlog_address": address})
    assert said.code == 0, said.output
    found = load_contexts(path)
    assert (found.current, list(found.contexts)) == (str(cluster), [str(cluster)])
    bootstrap = found.contexts[str(cluster)]["bootstrap"]
    assert parse_addresses(bootstrap) == (Address(host, 9092),)
