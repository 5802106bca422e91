"""Wrong variables end a play before it connects to any host. The long form.

All hosts are cut off: a play that connected would say that they cannot be reached.
"""

from collections.abc import Iterator, Mapping

import pytest

from tests.hosts.appliance.cluster import OLD, Cluster
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
WRONG: Mapping[str, tuple[dict[str, object], str]] = {
    "no cluster id": ({"without": ["dlog_cluster_id"]}, "dlog_cluster_id"),
    "no node id": ({"own": {"h2": "dlog_node_id="}}, "dlog_node_id"),
    "equal node ids": ({"own": {"h2": "dlog_node_id=1"}}, "Two hosts have the same dlog_node_id"),
    "node id of another type": ({"own": {"h2": "dlog_node_id=two"}}, "dlog_node_id"),
    "port of another type": ({"shared": {"dlog_client_port": "kafka"}}, "dlog_client_port"),
    "unknown membership": ({"shared": {"dlog_membership": "gossip"}}, "dlog_membership"),
    "two voters": ({"shared": {"dlog_voters": "['h1', 'h2']"}}, "dlog_voters"),
    "voter that is no host": ({"shared": {"dlog_voters": "['h1', 'h2', 'h9']"}}, "dlog_voters"),
    "disks of another type": ({"shared": {"dlog_disks": "sda"}}, "dlog_disks"),
    "configuration of another type": ({"shared": {"dlog_config": "x"}}, "dlog_config"),
}  # fmt: skip


@pytest.fixture(scope="module")
def unreachable(bare: Cluster) -> Iterator[Cluster]:
    """Give hosts that nobody can reach."""
    for host in bare.hosts:
        host.cut()
    yield bare
    for host in bare.hosts:
        host.heal()


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("playbook", ["site", "upgrade", "rolling_restart"])
def test_a_wrong_variable(unreachable: Cluster, playbook: str, name: str) -> None:
    changes, reason = WRONG[name]
    unreachable.plays.write_inventory(**changes)  # type: ignore[arg-type]
    played = unreachable.plays.play(playbook, "-e", unreachable.bundle(OLD))
    assert played.code != 0
    assert reason in played.words, played.end
    assert not any(each.unreachable for each in played.recap.values())
    assert "cannot be reached" not in played.words


@pytest.mark.parametrize("playbook", ["site", "upgrade"])
def test_no_bundle(unreachable: Cluster, playbook: str) -> None:
    unreachable.plays.write_inventory()
    played = unreachable.plays.play(playbook)
    assert played.code != 0
    assert "dlog_bundle" in played.words
    assert not any(each.unreachable for each in played.recap.values())
