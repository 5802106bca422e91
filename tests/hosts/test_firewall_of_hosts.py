"""Firewall rules of hosts: others reach the clients' port alone, also after nftables was restarted.

The long form.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.hosts.appliance.cluster import OLD, Cluster
from tests.hosts.appliance.forms import long_form
from tests.hosts.rig.commands import await_that

pytestmark = long_form
CLIENTS, BETWEEN_NODES = 9092, 9192
RULES_S = 10.0
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
SHOW = "nft list table inet dlog"
VERBS = ("start", "restart", "reload", "stop")


@pytest.fixture
def guarded(cluster: Cluster) -> Iterator[Cluster]:
    """Give a cluster whose hosts have rules."""
    cluster.plays.must("site", "-e", cluster.bundle(OLD), "-e", "dlog_firewall=true")
    yield cluster
    for host in cluster.hosts:
        host.enter("systemctl disable --now dlog-firewall; systemctl stop nftables", check=False)
        host.enter("rm -rf /etc/systemd/system/nftables.service.d; systemctl daemon-reload")
    cluster.forget()


def connects(cluster: Cluster, port: int) -> bool:
    """Return whether the control machine, which is no node, reaches a port of the first host."""
    command = [sys.executable, "-c", CONNECT, cluster.hosts[0].address, str(port)]
    process = cluster.rig.popen(command, stderr=subprocess.DEVNULL)
    return process.wait() == 0


def has_rules(cluster: Cluster) -> bool:
    """Return whether the first host has the rules."""
    return str(BETWEEN_NODES) in cluster.hosts[0].enter(SHOW, check=False).stdout


def test_rules_come_back_with_nftables(guarded: Cluster) -> None:
    first = guarded.hosts[0]
    for verb in VERBS:
        first.enter(f"systemctl {verb} nftables")
        if verb == "stop":
            assert not has_rules(guarded)
            first.enter("systemctl start nftables")
        assert await_that(lambda: has_rules(guarded), RULES_S), verb
        assert connects(guarded, CLIENTS)
        assert not connects(guarded, BETWEEN_NODES)
    assert guarded.is_healthy()
    played = guarded.plays.must("site", "-e", guarded.bundle(OLD), "-e", "dlog_firewall=true")
    assert played.changes == []
