"""Rows of three nodes with three replicas, some of which die: until records are acknowledged again.

Writers that never give up (`bench.load.writing`) have a record in flight on every partition of a
fresh topic; what counts is the worst partition of each failure: the first record that was sent
after it and acknowledged.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, ClassVar

from bench.arena import Arena
from bench.load import cluster as wire
from bench.peers.cluster import Cluster
from bench.peers.server import ROOT, Server, StartError
from bench.rows.replicated import CONTENDERS, OURS, THEIRS, number, ratio
from bench.rows.row import Numbers, Row

PARTITIONS = 6
BEFORE_S = 1.0
TIMEOUT_S = 120
END_S = 90
TRY_S = 0.05
LEASE_S = 3.0
"""dlog's `lease.duration` as it comes."""


def cluster_of(arena: Arena, contender: str) -> Cluster:
    """Return the three nodes of a contender."""
    server = arena.servers[contender]
    assert isinstance(server, Cluster)
    return server


def until(what: str, condition: Callable[[], bool]) -> None:
    """Wait until `condition`; raise StartError when that takes too long."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise StartError(f"{what} took more than {TIMEOUT_S} s")
        time.sleep(TRY_S)


def wait_for_isrs(cluster: Cluster, topics: Sequence[str]) -> None:
    """Wait until all nodes say that every replica of `topics` is in sync."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(wire.connect(node.bootstrap)) for node in cluster.nodes]

        def whole() -> bool:
            found = [wire.picture(node, topics) for node in nodes]
            return all(
                each.isrs
                and min(each.leaders) > 0
                and all(len(isr) == cluster.replicas for isr in each.isrs)
                for each in found
            )

        until("the return to every ISR", whole)


@contextlib.contextmanager
def fresh_topic(arena: Arena, cluster: Cluster) -> Iterator[str]:
    """Make a topic of which each node leads a part, and delete it at the end."""
    with arena.topic(cluster, PARTITIONS) as topic:
        wait_for_isrs(cluster, [topic])
        yield topic


class Writing:
    """The process that writes to a topic (`bench.load.writing`), as it is talked to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or '"it has ended"')

    def _ask(self, *what: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, what)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def until_ready(self) -> None:
        """Wait until every partition takes records."""
        found = self._answer()
        if found != "ready":
            raise StartError(f"the writers: {found}")

    def wait(self, began_ns: int) -> float:
        """Wait for records sent after that on all partitions; return how long the worst took."""
        found = self._ask("wait", began_ns, TIMEOUT_S)
        if not isinstance(found, float):
            raise StartError(f"the writers: {found}")
        return found

    def longest_gap(self, began_ns: int) -> float:
        """Return the longest time between two acknowledgements of a partition since then."""
        return float(self._ask("gap", began_ns))

    def forget(self) -> None:
        """Count librdkafka's gaps from here on."""
        self._ask("forget")

    def end(self) -> dict[str, Any]:
        """End it; return what librdkafka's caller saw."""
        found: dict[str, Any] = self._ask("end")
        return found


@contextlib.contextmanager
def writing(cluster: Cluster, topic: str, rate: float = 0) -> Iterator[Writing]:
    """Write to all partitions of `topic` while the block runs; librdkafka does at `rate`, too."""
    command = [sys.executable, "-m", "bench.load.writing", "--bootstrap", cluster.all_nodes]
    command += ["--topic", topic, "--partitions", str(PARTITIONS), "--rate", str(rate)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            writing = Writing(process)
            writing.until_ready()
            yield writing
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def send_signal(node: Server, what: signal.Signals) -> int:
    """Send a signal and return when, by the monotonic clock."""
    began = time.monotonic_ns()
    os.kill(node.pid, what)
    return began


def leader_of(cluster: Cluster, topic: str, *, controller: bool) -> Server:
    """Return a node that leads something of `topic`, and is controller or is not."""
    boss = cluster.controller()
    with wire.connect(cluster.bootstrap) as connection:
        leaders = wire.picture(connection, [topic]).leaders
    for place, node in enumerate(cluster.nodes, 1):
        if (node is boss) == controller and place in leaders:
            return node
    raise StartError("no such leader")


class FailureRow(Row):
    """Does something to a leader some times, under writers."""

    contenders = CONTENDERS
    runs = 1
    controller = False
    # A Kafka node takes its time to come back.
    TIMES: ClassVar = {OURS: 8, THEIRS: 3}

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Do it several times."""
        cluster = cluster_of(arena, contender)
        found = [self._fail(arena, cluster) for _ in range(arena.pick(self.TIMES[contender], 1))]
        return {"failover_s": median(found), "failover_max_s": max(found)}

    def _fail(self, arena: Arena, cluster: Cluster) -> float:
        with fresh_topic(arena, cluster) as topic:
            doomed = leader_of(cluster, topic, controller=self.controller)
            with writing(cluster, topic) as writers:
                time.sleep(BEFORE_S)
                began = self.harm(cluster, doomed)
                seconds = writers.wait(began)
            self.mend(cluster, doomed)
            wait_for_isrs(cluster, [topic])
        return seconds

    def harm(self, cluster: Cluster, node: Server) -> int:
        """Kill the node; return when, by the monotonic clock."""
        return send_signal(node, signal.SIGKILL)

    def mend(self, cluster: Cluster, node: Server) -> None:
        """Start the node again."""
        node.kill()
        cluster.restart(node)


class LeaderKillRow(FailureRow):
    """The leader is not controller."""

    name = "r3-kill-leader"
    title = "3 replicas, acks=all: `kill -9` of a leader to the next acknowledged write"
    targets = (number("failover_s", 1), ratio("failover_s", at_most=0.1))


class ControllerKillRow(FailureRow):
    """The leader is also controller."""

    name = "r3-kill-controller"
    title = "the same when the leader is also the controller"
    controller = True
    targets = (number("failover_max_s", 2),)


class PauseRow(FailureRow):
    """A host that is gone without a word: the leader stands still, its connections stay open."""

    name = "r3-pause-leader"
    title = "the same when the leader is paused (SIGSTOP), as when its host is lost without a reset"
    targets = (number("failover_max_s", LEASE_S + 1),)
    TIMES: ClassVar = {OURS: 5, THEIRS: 2}

    def harm(self, cluster: Cluster, node: Server) -> int:
        """Pause the node."""
        return send_signal(node, signal.SIGSTOP)

    def mend(self, cluster: Cluster, node: Server) -> None:
        """Let the node go on."""
        send_signal(node, signal.SIGCONT)
        cluster.wait_formed()


class ControllerPauseRow(PauseRow):
    """The leader is also controller: who follows it must wait for the leases that it gave."""

    name = "r3-pause-controller"
    title = "the same when the paused leader is also the controller"
    controller = True


class AllKilledRow(FailureRow):
    """All three nodes die at the same moment and are started at once."""

    name = "r3-kill-all"
    title = (
        "3 replicas, acks=all: all three killed and restarted at once, to the next acknowledged"
        " write on every partition"
    )
    targets = (ratio("failover_s", at_most=0.2),)
    TIMES: ClassVar = {OURS: 5, THEIRS: 2}

    def _fail(self, arena: Arena, cluster: Cluster) -> float:
        with fresh_topic(arena, cluster) as topic:
            with writing(cluster, topic) as writers:
                time.sleep(BEFORE_S)
                began = time.monotonic_ns()
                cluster.kill()
                for node in cluster.nodes:
                    node.launch()
                seconds = writers.wait(began)
            cluster.wait_formed()
            wait_for_isrs(cluster, [topic])
        return seconds


class GracefulRow(Row):
    """One node after the other is stopped as an operator would and started again, under load."""

    name = "r3-restart"
    title = (
        "3 replicas, acks=all: orderly restart of one node under load (200 records/s of"
        " librdkafka at its defaults, 300 of writers that never give up): longest gap between acks;"
        " errors"
    )
    contenders = CONTENDERS
    runs = 1
    TIMES: ClassVar = {OURS: 6, THEIRS: 3}
    RATE = 200
    AFTER_S = 2.0
    targets = (
        number("gap_max_s", 0.2),
        ratio("gap_max_s", at_most=0.25),
        number("client_errors", 0),
    )

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Restart each node in turn."""
        cluster = cluster_of(arena, contender)
        gaps, client_gaps, errors = [], [], 0
        with fresh_topic(arena, cluster) as topic:
            for turn in range(arena.pick(self.TIMES[contender], 1)):
                node = cluster.nodes[turn % len(cluster.nodes)]
                with writing(cluster, topic, self.RATE) as writers:
                    time.sleep(BEFORE_S)
                    writers.forget()
                    began = time.monotonic_ns()
                    node.stop()
                    cluster.restart(node)
                    wait_for_isrs(cluster, [topic])
                    time.sleep(self.AFTER_S)
                    writers.wait(time.monotonic_ns())
                    gaps.append(writers.longest_gap(began))
                    client = writers.end()
                client_gaps.append(client["gap_s"])
                errors += sum(client["errors"].values()) + client["lost"]
        return {
            "gap_s": median(gaps),
            "gap_max_s": max(gaps),
            "client_gap_s": median(client_gaps),
            "client_gap_max_s": max(client_gaps),
            "client_errors": errors,
        }


class ReturnRow(Row):
    """A node with much on its disk is killed and started: until all its replicas are in sync."""

    name = "r3-return"
    title = "3 replicas: restart of a killed node with 5 GB to its return to every ISR"
    contenders = CONTENDERS
    runs = 2
    targets = (ratio("seconds", at_most=0.5),)
    FILL_BYTES, FILL_QUICK_BYTES = 5_000_000_000, 300_000_000
    RECORDS, VALUE_BYTES = 64, 1024

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}

    def open(self, arena: Arena, contender: str) -> None:
        """Start and fill."""
        super().open(arena, contender)
        server = arena.servers[contender]
        topic = self._topics[contender] = arena.create_topic(server, PARTITIONS)
        size = arena.pick(self.FILL_BYTES, self.FILL_QUICK_BYTES)
        shape = ("--records", self.RECORDS, "--value-bytes", self.VALUE_BYTES)
        many = ("--connections", PARTITIONS, "--in-flight", 3, "--acks", -1)
        count = ("--requests", size // (self.RECORDS * self.VALUE_BYTES))
        where = ("--topic", topic, "--partitions", PARTITIONS)
        arena.load("requests", server, *where, *shape, *many, *count)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Kill a node under writers, wait until the others go on without it, start it."""
        cluster, topic = cluster_of(arena, contender), self._topics[contender]
        with writing(cluster, topic) as writers:
            doomed = leader_of(cluster, topic, controller=False)
            began = send_signal(doomed, signal.SIGKILL)
            doomed.kill()
            writers.wait(began)
            time.sleep(BEFORE_S)
            started = time.monotonic()
            cluster.restart(doomed)
            wait_for_isrs(cluster, [topic])
            return {"seconds": time.monotonic() - started}


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [
        LeaderKillRow(),
        ControllerKillRow(),
        PauseRow(),
        ControllerPauseRow(),
        AllKilledRow(),
        GracefulRow(),
        ReturnRow(),
    ]
