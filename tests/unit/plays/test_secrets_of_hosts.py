"""The secret of a cluster: no play makes a second one, and each refusal names the cure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.local_plays import LocalPlays, Said

HOSTS = ("h1", "h2", "h3")
MEMBERS = (1, 2)
ROLE = {"ansible.builtin.include_role": {"name": "dlogd", "tasks_from": "agreed_secret.yml"}}


def play(
    folder: Path,
    secrets: Mapping[str, str],
    here: str | None,
    *,
    answers: bool = True,
    members: tuple[int, ...] = MEMBERS,
) -> Said:
    """Look at the secrets of hosts and of the control machine, as plays do."""
    for host, secret in secrets.items():
        (folder / host).mkdir()
        (folder / host / "secret").write_text(secret)
    file = folder / "dlog-orders.secret"
    if here is not None:
        file.write_text(here)
    variables: dict[str, Any] = {
        "dlogd_secret": f"{folder}/{{{{ place | default('any') }}}}/secret",
        "cluster_answers": answers,
        "cluster_node_ids": list(members) if answers else [],
        "cluster_voters_now": list(members) if answers else [],
    }
    said = LocalPlays(folder).run([ROLE], variables, HOSTS)
    assert file.exists() == (here is not None)
    return said


def test_the_first_cluster_has_none(tmp_path: Path) -> None:
    assert play(tmp_path, {}, None, answers=False).code == 0


def test_nodes_and_new_hosts_agree(tmp_path: Path) -> None:
    secrets = dict.fromkeys(HOSTS[:2], "right")
    assert play(tmp_path, secrets, "right").code == 0


def test_no_new_secret_is_made_where_a_host_has_one(tmp_path: Path) -> None:
    said = play(tmp_path, {"h1": "right", "h2": "right"}, None, answers=False)
    assert said.code != 0
    assert "dlog-orders.secret is missing, and the secret of this cluster is on h1, h2." in (
        said.words
    )
    assert f"ssh h1 sudo cat {tmp_path}/any/secret > {tmp_path}/dlog-orders.secret" in said.words


def test_no_new_secret_is_made_where_a_cluster_answers(tmp_path: Path) -> None:
    said = play(tmp_path, {}, None)
    assert said.code != 0
    assert "dlog-orders.secret is missing, and a cluster runs on these hosts." in said.words


@pytest.mark.parametrize("answers", [True, False])
def test_the_file_is_not_that_of_the_nodes(tmp_path: Path, answers: bool) -> None:
    secrets = {**dict.fromkeys(HOSTS[:2], "right"), "h3": "wrong"}
    said = play(tmp_path, secrets, "wrong", answers=answers)
    assert said.code != 0
    assert "dlog-orders.secret has another secret than h1, h2. Put the right file" in said.words


def test_a_new_host_got_a_wrong_secret(tmp_path: Path) -> None:
    secrets = {**dict.fromkeys(HOSTS[:2], "right"), "h3": "wrong"}
    said = play(tmp_path, secrets, "right")
    assert said.code != 0
    assert "h3 is no node of the cluster yet, and has another secret than" in said.words
    assert f"delete the other on h3: systemctl stop dlogd; rm {tmp_path}/any/secret." in said.words
    assert "Put the right file back" not in said.words


def test_two_inventories_have_one_secret(tmp_path: Path) -> None:
    plays = LocalPlays(tmp_path)
    lines = {
        "first": "h1 dlog_node_id=1\n[dlog:vars]\ndlog_cluster_id=orders\n",
        "second": "h2 dlog_node_id=2\n",
    }
    for name, text in lines.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "hosts.ini").write_text(f"[dlog]\n{text}")
    files = [f"{{{{ {each} }}}}" for each in ("dlog_secret_file", "serf_key_file")]
    roles = [{"role": "cluster"}, {"role": "dlogd", "when": False}, {"role": "serf", "when": False}]
    (plays.playbooks / "play.yml").write_text(
        "- hosts: dlog\n  gather_facts: false\n"
        f"  roles: {roles}\n  tasks: [{{ansible.builtin.debug: {{msg: {files}}}}}]\n"
    )
    inventories = [f"{tmp_path}/{name}/hosts.ini" for name in lines]
    said = plays.play("play.yml", "-i", inventories[0], "-i", inventories[1])
    assert said.code == 0, said.output
    for suffix in ("secret", "serf"):
        assert said.output.count(f"{tmp_path}/first/dlog-orders.{suffix}") == len(lines)
