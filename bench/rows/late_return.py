"""The row of a node that was away for long: what it costs those who write when it comes back."""

import signal
import time

from bench.arena import Arena
from bench.load import cluster as wire
from bench.peers.cluster import Cluster
from bench.peers.server import Server
from bench.rows.failover import (
    BEFORE_S,
    PARTITIONS,
    cluster_of,
    fresh_topic,
    leader_of,
    send_signal,
    until,
    wait_for_isrs,
    writing,
)
from bench.rows.replicated import CONTENDERS, number, ratio
from bench.rows.row import Numbers, Row

GAP_S_MAX = 1.0
"""Nobody's request is in danger by that, nor any lease."""


class LateReturnRow(Row):
    """A node is down while much is written, and comes back under writers, without a throttle."""

    name = "r3-catch-up"
    title = (
        "3 replicas, acks=all: a node that missed 5 GB comes back under load, not throttled: until"
        " it is in every ISR; writers' longest gap before and meanwhile"
    )
    contenders = CONTENDERS
    runs = 2
    targets = (ratio("seconds", at_most=1), number("gap_max_s", GAP_S_MAX))
    MISSED_BYTES, MISSED_QUICK_BYTES = 5_000_000_000, 300_000_000
    RECORDS, VALUE_BYTES = 64, 1024

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Kill a node, write what it misses, start it under writers."""
        cluster = cluster_of(arena, contender)
        with fresh_topic(arena, cluster) as topic:
            gone = leader_of(cluster, topic, controller=False)
            send_signal(gone, signal.SIGKILL)
            gone.kill()
            there = next(node for node in cluster.nodes if node is not gone)
            self._until_missed(cluster, there, topic)
            self._fill(arena, there, topic)
            with writing(cluster, topic) as writers:
                begun = time.monotonic_ns()
                time.sleep(BEFORE_S)
                before = writers.longest_gap(begun)
                started = time.monotonic_ns()
                cluster.restart(gone)
                wait_for_isrs(cluster, [topic])
                seconds = (time.monotonic_ns() - started) / 1e9
                return {
                    "seconds": seconds,
                    "gap_s": before,
                    "gap_max_s": writers.longest_gap(started),
                }

    @staticmethod
    def _until_missed(cluster: Cluster, there: Server, topic: str) -> None:
        """Wait until all partitions have leaders, and the node is in no ISR."""
        with wire.connect(there.bootstrap) as connection:

            def is_so() -> bool:
                found = wire.picture(connection, [topic])
                return min(found.leaders) > 0 and all(
                    len(isr) < cluster.replicas for isr in found.isrs
                )

            until("the end of the killed node's places in ISRs", is_so)

    def _fill(self, arena: Arena, there: Server, topic: str) -> None:
        size = arena.pick(self.MISSED_BYTES, self.MISSED_QUICK_BYTES)
        shape = ("--records", self.RECORDS, "--value-bytes", self.VALUE_BYTES)
        many = ("--connections", PARTITIONS, "--in-flight", 3, "--acks", -1)
        count = ("--requests", size // (self.RECORDS * self.VALUE_BYTES))
        where = ("--topic", topic, "--partitions", PARTITIONS)
        arena.load("requests", there, *where, *shape, *many, *count)


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [LateReturnRow()]
