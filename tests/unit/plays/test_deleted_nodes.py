"""`remove_node.yml` with `dlog_delete_data`: it deletes what is the node's own, no other data."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.playbooks import ANSIBLE
from tests.fakes.local_plays import LocalPlays, Said

IDENTITY = "format=1\ncluster_id={cluster}\nnode_id={node}\n"
SYSTEMCTL = "#!/bin/sh\necho 'Unit x.service does not exist' >&2\nexit 1\n"
MISSING = """#!/bin/sh
case "$*" in *show*) printf 'LoadState=not-found\\nActiveState=inactive\\n' ;; *) exit 1 ;; esac
"""
REFUSING = """#!/bin/sh
case "$*" in
*show*) printf 'LoadState=loaded\\nActiveState=active\\nFragmentPath=/x\\n' ;;
*is-enabled*) echo enabled ;;
*) echo refused >&2; exit 1 ;;
esac
"""
LOOK = {"ansible.builtin.include_tasks": "tasks/own_data.yml"}


def directory(path: Path, cluster: str = "orders", node: int = 1, *, foreign: bool = False) -> Path:
    """Make a data directory, or one that dlog has never used."""
    (path / "events-0").mkdir(parents=True)
    (path / "events-0" / "00000000000000000000.log").write_text("records")
    (path / ".hidden").touch()
    if not foreign:
        (path / "identity").write_text(IDENTITY.format(cluster=cluster, node=node))
    return path


def play(folder: Path, directories: list[Path]) -> Said:
    """Look at the data, then delete them; nothing is deleted outside of the folder."""
    plays = LocalPlays(folder)
    plays.program("systemctl", SYSTEMCTL)
    tasks = yaml.safe_load((ANSIBLE / "tasks" / "deleted.yml").read_text())
    mine = {"etc": "configuration", "opt": "release"}
    for name, text in mine.items():
        (folder / name).mkdir()
        (folder / name / "file").write_text(text)
    for task in tasks:
        task.get("vars", {}).update(deleted_files=[str(folder / name) for name in mine])
    deletion: list[dict[str, Any]] = [task for task in tasks if "systemd_service" not in str(task)]
    variables = {"dlog_data_directories": [str(each) for each in directories]}
    return plays.run([LOOK, *deletion], variables)


def test_own_data_are_deleted(tmp_path: Path) -> None:
    places = [directory(tmp_path / name) for name in ("one", "two")]
    stranger = directory(tmp_path / "home", foreign=True)
    said = play(tmp_path, [*places, stranger])
    assert said.code == 0, said.output
    for place in places:
        assert place.is_dir() and list(place.iterdir()) == []
    assert (stranger / "events-0" / "00000000000000000000.log").exists()
    assert not (tmp_path / "etc").exists() and not (tmp_path / "opt").exists()


def test_data_of_another_node_stop_the_play(tmp_path: Path) -> None:
    place = directory(tmp_path / "one")
    other = directory(tmp_path / "two", node=2)
    said = play(tmp_path, [place, other])
    assert said.code != 0
    assert f"{other} on h1 belongs to another node or cluster (cluster_id=orders, node_id=2)" in (
        said.words
    )
    assert (place / "identity").exists() and (other / "identity").exists()
    assert (tmp_path / "etc").exists()


def test_an_interrupted_deletion_keeps_the_identity_to_the_end() -> None:
    tasks = yaml.safe_load((ANSIBLE / "tasks" / "deleted.yml").read_text())
    names = [task["name"] for task in tasks]
    assert names.index("Data go") < names.index("Identities go")


@pytest.mark.parametrize("has_unit", [True, False])
def test_a_deletion_can_be_repeated(tmp_path: Path, has_unit: bool) -> None:
    plays = LocalPlays(tmp_path)
    plays.program("systemctl", MISSING if not has_unit else REFUSING)
    tasks = yaml.safe_load((ANSIBLE / "tasks" / "handed_over.yml").read_text())
    stop = [task for task in tasks if "ansible.builtin.systemd_service" in task]
    said = plays.run(stop, {"dlog_node": "h1", "cluster_silent": []})
    assert (said.code == 0) != has_unit, said.output
