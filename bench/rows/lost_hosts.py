"""Rows of three nodes on hosts of their own, of which one is lost: all else is as in `failover`.

For Apache Kafka, too: it is told other addresses, and nothing else.
"""

import time
from typing import ClassVar

from bench.arena import Arena
from bench.peers.cluster import Cluster
from bench.peers.server import Server
from bench.rows.failover import LEASE_S, FailureRow
from bench.rows.row import Row, Target

OURS, THEIRS = "dlog-hosts", "kafka-hosts"


class HostLossRow(FailureRow):
    """The leader's host is gone for all, nodes and clients: nothing comes from it, not a reset.

    Each node has a network namespace of its own, so this needs root.
    """

    name = "r3-lose-host"
    title = (
        "3 replicas, acks=all: a leader's host lost without a reset (its wires are cut) to the next"
        " acknowledged write"
    )
    contenders = (OURS, THEIRS)
    targets = (Target(metric="failover_max_s", ours=OURS, theirs=None, at_most=LEASE_S + 1),)
    TIMES: ClassVar = {OURS: 5, THEIRS: 2}

    def open(self, arena: Arena, contender: str) -> None:
        """Start the nodes on their hosts, which end with the row."""
        cluster = arena.add(contender)
        assert isinstance(cluster, Cluster) and cluster.hosts is not None
        arena.ends.enter_context(cluster.hosts)
        cluster.start()

    def harm(self, cluster: Cluster, node: Server) -> int:
        """Cut the wires of the node's host; return when that was done: before, records get through.

        It takes some ms, of which the first half is silence for clients already.
        """
        assert cluster.hosts is not None
        cluster.hosts.lose(cluster.number_of(node))
        return time.monotonic_ns()

    def mend(self, cluster: Cluster, node: Server) -> None:
        """Put the wires back."""
        assert cluster.hosts is not None
        cluster.hosts.heal(cluster.number_of(node))
        cluster.wait_formed()


class ControllerHostLossRow(HostLossRow):
    """The lost host is also that of the controller."""

    name = "r3-lose-controller"
    title = "the same when it is also the controller's host"
    controller = True


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [HostLossRow(), ControllerHostLossRow()]
