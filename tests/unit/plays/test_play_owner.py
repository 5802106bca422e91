"""The name by which a play holds the maintenance lock, and what another play learns from it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.playbooks import ANSIBLE
from tests.fakes.local_plays import LocalPlays

OWNER = str(ANSIBLE / "files" / "owner")
PLAY = "import subprocess as s, sys; s.run([sys.argv[1], 'upgrade']); sys.stdin.read()"
IN_ANOTHER_NAMESPACE = ("unshare", "--map-root-user", "--fork", "--pid", "--mount-proc")
TOOL = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --owner ] && printf '%s' "$2" > "$(dirname "$0")/owner"; shift; done
echo '{"token": "t"}'
"""


@contextmanager
def playing() -> Iterator[str]:
    """Run a process that looks like a play for as long as the block lasts; give its name."""
    process = subprocess.Popen(
        [sys.executable, "-c", PLAY, OWNER, "ansible-playbook"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    yield process.stdout.readline().strip()
    process.stdin.close()
    process.wait()
    process.stdout.close()


def fate(owner: str, *where: str) -> str:
    """Return what became of an owner, as a process elsewhere may see it."""
    command = [*where, OWNER, "--is-dead", owner]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_play_that_runs_is_alive_and_one_that_ended_is_dead() -> None:
    with playing() as owner:
        assert owner.startswith("upgrade by ")
        assert fate(owner) == "alive"
        # Its number belongs to another process by now.
        assert fate(re.sub(r" of (\d+) in ", r" of 1\1 in ", owner)) == "dead"
    assert fate(owner) == "dead"


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (r" in \d+ ", " in 4026530000 "),
        (r"[0-9a-f-]{36}$", "00000000-0000-4000-8000-000000000000"),
        (r" in .*$", ""),
    ],
    ids=["namespace", "boot", "an older name"],
)
def test_a_process_of_another_place_is_not_judged(part: str, other: str) -> None:
    with playing() as owner:
        pass
    assert re.search(part, owner)
    assert fate(re.sub(part, other, owner)) == "unknown"


def test_a_process_outside_of_a_container_is_not_judged() -> None:
    if subprocess.run([*IN_ANOTHER_NAMESPACE, "true"], check=False).returncode:
        pytest.skip("no rights for namespaces here")
    with playing() as owner:
        assert fate(owner, *IN_ANOTHER_NAMESPACE) == "unknown"


@pytest.mark.parametrize("tasks", ["lock.yml", "one_node.yml"])
def test_plays_take_the_lock_from_a_folder_with_a_space(tmp_path: Path, tasks: str) -> None:
    plays = LocalPlays(tmp_path)
    tool = plays.program("dlogctl", TOOL)
    (tmp_path / "releases" / "1.0" / "bin").mkdir(parents=True)
    (tmp_path / "releases" / "1.0" / "bin" / "dlogctl").symlink_to(tool)
    plays.program("systemd-run", "#!/bin/sh\n")
    variables = {
        "cluster_tool": str(tool),
        "cluster_has_lock": True,
        "cluster_token": "t",
        "release_root": str(tmp_path),
        "release_version": "1.0",
        "rolling_kind": "rolling restart",
    }
    said = plays.run([{"ansible.builtin.include_tasks": f"tasks/{tasks}"}], variables)
    assert said.code == 0, said.output
    written = [path for path in tmp_path.rglob("owner") if path.parent.name != "files"]
    assert written[0].read_text().startswith("rolling restart by ")
