"""Rows about three nodes that keep their metadata together: changes, failures, many partitions."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import ClassVar

from bench.arena import Arena
from bench.load import cluster as wire
from bench.peers.cluster import NODES, Cluster
from bench.peers.server import Server, StartError
from bench.rows.row import Numbers, Row, Target

TIMEOUT_S = 120
TRY_S = 0.005
ATTEMPT_TIMEOUT_MS = 500
_serial = itertools.count(1)


def _cluster(arena: Arena, contender: str) -> Cluster:
    server = arena.servers[contender]
    assert isinstance(server, Cluster)
    return server


def _name(kind: str) -> str:
    return f"{kind}-{next(_serial):06}"


def _wait(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise StartError(f"{what} took more than {TIMEOUT_S} s")
        time.sleep(TRY_S)


def _kill(node: Server) -> float:
    """Kill a node and return when, by `perf_counter`."""
    began = time.perf_counter()
    os.kill(node.pid, signal.SIGKILL)
    return began


class ProposalsRow(Row):
    """Three processes with nothing but the metadata of a node, as `bench.load.proposals` says."""

    name = "proposals"
    title = "changes of the metadata by three nodes, flushed on a majority: alone; 96 in flight"
    contenders = ("dlog",)
    targets = (
        Target(metric="p50_us", theirs=None, at_most=2_000),
        Target(metric="proposals_per_s", theirs=None, at_least=3_000),
    )

    def open(self, arena: Arena, contender: str) -> None:
        """Nothing runs between the runs."""

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Let three fresh nodes propose."""
        folder = arena.folder / _name("proposals")
        return arena.program("proposals", "--folder", folder, "--seconds", arena.pick(5, 1))


class CreateTopicsRow(Row):
    """Topics of one partition with three replicas, until their leaders serve them."""

    name = "create-topics"
    title = (
        "three nodes: topics with 3 replicas, one by one (until answered) and 1,000 in one request"
        " (until answered; until all leaders serve)"
    )
    contenders = ("dlog-cluster", "kafka-cluster")
    runs = 3
    targets = (
        Target(metric="topic_ms", ours="dlog-cluster", theirs="kafka-cluster", at_most=0.5),
        Target(metric="topics_served_s", ours="dlog-cluster", theirs="kafka-cluster", at_most=0.5),
    )
    TOPICS, TOPICS_QUICK = 1_000, 100
    ALONE, ALONE_QUICK = 200, 20

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Create both ways, in turn on all nodes, and delete nothing."""
        nodes = [wire.connect(node.bootstrap) for node in _cluster(arena, contender).nodes]
        count = arena.pick(self.ALONE, self.ALONE_QUICK)
        began = time.perf_counter()
        for number in range(count):
            _expect_created(wire.create_topics(nodes[number % NODES], [_name("one")], 1, NODES))
        topic_ms = (time.perf_counter() - began) / count * 1000
        names = [_name("many") for _ in range(arena.pick(self.TOPICS, self.TOPICS_QUICK))]
        began = time.perf_counter()
        _expect_created(wire.create_topics(nodes[0], names, 1, NODES))
        answered_s = time.perf_counter() - began
        waiting = dict.fromkeys(names)

        def all_served() -> bool:
            for node in nodes:
                for name in wire.open_topics(node, list(waiting)) if waiting else ():
                    del waiting[name]
            return not waiting

        _wait("opening topics", all_served)
        served_s = time.perf_counter() - began
        for node in nodes:
            node.close()
        return {
            "topic_ms": topic_ms,
            "topics_answered_s": answered_s,
            "topics_served_s": served_s,
        }


def _expect_created(codes: Sequence[int]) -> None:
    if any(codes):
        raise wire.LoadError(f"CreateTopics was refused: {set(codes)}")


class _FailureRow(Row):
    """Kills a node some times and starts it again."""

    contenders = ("dlog-cluster", "kafka-cluster")
    runs = 3
    # A Kafka node takes its time to come back.
    KILLS: ClassVar = {"dlog-cluster": 10, "kafka-cluster": 3}

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Kill, measure, restart, several times."""
        cluster = _cluster(arena, contender)
        found = [self.fail(cluster) for _ in range(arena.pick(self.KILLS[contender], 1))]
        return {"failover_s": median(found), "failover_max_s": max(found)}

    def fail(self, cluster: Cluster) -> float:
        """Kill a node once; return how long it took until all was well."""
        raise NotImplementedError


class ControllerFailoverRow(_FailureRow):
    """Both survivors are asked to create a topic, again and again, until one did."""

    name = "controller-failover"
    title = "three nodes: `kill -9` of the controller to the next topic created"
    targets = (
        Target(metric="failover_s", ours="dlog-cluster", theirs=None, at_most=1),
        Target(metric="failover_max_s", ours="dlog-cluster", theirs=None, at_most=2),
        Target(metric="failover_s", ours="dlog-cluster", theirs="kafka-cluster", at_most=0.2),
    )

    def fail(self, cluster: Cluster) -> float:
        """Kill the controller."""
        controller = cluster.controller()
        survivors = [node for node in cluster.nodes if node is not controller]
        created = threading.Event()
        times: list[float] = []

        def ask(node: Server) -> None:
            while not created.is_set():
                if _try_create(node):
                    times.append(time.perf_counter())
                    created.set()

        threads = [threading.Thread(target=ask, args=(node,)) for node in survivors]
        began = _kill(controller)
        for thread in threads:
            thread.start()
        if not created.wait(TIMEOUT_S):
            created.set()
            raise StartError(f"{cluster.name}: no new controller in {TIMEOUT_S} s")
        for thread in threads:
            thread.join()
        controller.kill()
        cluster.restart(controller)
        return min(times) - began


def _try_create(node: Server) -> bool:
    try:
        with wire.connect(node.bootstrap) as connection:
            connection.settimeout(ATTEMPT_TIMEOUT_MS / 1000 * 2)
            names = [_name("after")]
            codes = wire.create_topics(connection, names, 1, 1, timeout_ms=ATTEMPT_TIMEOUT_MS)
            return codes == [0]
    except (OSError, wire.LoadError):
        time.sleep(TRY_S)
        return False


class NodeFailureRow(_FailureRow):
    """A node that is not controller dies; its partitions are led by others in all images."""

    name = "node-failure"
    title = "three nodes, 1,000 partitions: `kill -9` of a node to new leaders in all images"
    targets = (
        Target(metric="failover_s", ours="dlog-cluster", theirs=None, at_most=1),
        Target(metric="failover_s", ours="dlog-cluster", theirs="kafka-cluster", at_most=0.2),
    )
    PARTITIONS = 1_000
    KILLS: ClassVar = {"dlog-cluster": 5, "kafka-cluster": 1}

    def fail(self, cluster: Cluster) -> float:
        """Kill one that leads a third of a fresh topic's partitions."""
        controller = cluster.controller()
        doomed = next(node for node in cluster.nodes if node is not controller)
        number = cluster.nodes.index(doomed) + 1
        topic = _name("thousand")
        survivors = [wire.connect(n.bootstrap) for n in cluster.nodes if n is not doomed]
        _expect_created(wire.create_topics(survivors[0], [topic], self.PARTITIONS, NODES))

        def leaders_are(good: Callable[[tuple[int, ...]], bool]) -> bool:
            found = [wire.picture(each, [topic]).leaders for each in survivors]
            return all(len(each) == self.PARTITIONS and good(each) for each in found)

        _wait("first leaders", lambda: leaders_are(lambda each: min(each) > 0 and number in each))
        time.sleep(1)
        began = _kill(doomed)
        _wait("failover", lambda: leaders_are(lambda each: min(each) > 0 and number not in each))
        seconds = time.perf_counter() - began
        doomed.kill()
        cluster.restart(doomed)
        wire.delete_topic(survivors[0], topic)
        for each in survivors:
            each.close()
        return seconds


class ManyPartitionsRow(Row):
    """One node's image of 10,000 topics, read again; and three nodes with as many that do nothing.

    The image is measured without a broker, as the growth of a process that opens it.
    """

    name = "partitions-10000"
    title = "10,000 partitions with 3 replicas: image, its reading at start; the idle controller"
    contenders = ("dlog-cluster",)
    runs = 3
    targets = (
        Target(metric="image_mb", ours="dlog-cluster", theirs=None, at_most=64),
        Target(metric="replay_s", ours="dlog-cluster", theirs=None, at_most=3),
        Target(metric="idle_cpu_share", ours="dlog-cluster", theirs=None, at_most=0.03),
    )
    TOPICS, TOPICS_QUICK = 10, 1
    PARTITIONS = 1_000
    IDLE_S, IDLE_QUICK_S = 20, 5

    def open(self, arena: Arena, contender: str) -> None:
        """Start, create the topics, let all settle."""
        super().open(arena, contender)
        count = arena.pick(self.TOPICS, self.TOPICS_QUICK)
        with wire.connect(_cluster(arena, contender).bootstrap) as connection:
            for _ in range(count):
                codes = wire.create_topics(connection, [_name("many")], self.PARTITIONS, NODES)
                _expect_created(codes)
        time.sleep(5)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Watch the controller do nothing; then make and read an image."""
        controller = _cluster(arena, contender).controller()
        seconds = arena.pick(self.IDLE_S, self.IDLE_QUICK_S)
        before = controller.usage().cpu_seconds
        time.sleep(seconds)
        usage = controller.usage()
        folder = arena.folder / _name("image")
        count = arena.pick(self.TOPICS, self.TOPICS_QUICK) * self.PARTITIONS
        result = arena.program("image", "--folder", folder, "--partitions", count)
        result["idle_cpu_share"] = (usage.cpu_seconds - before) / seconds
        result["rss_mb"] = usage.rss_bytes / 1e6
        return result


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [
        ProposalsRow(),
        CreateTopicsRow(),
        ControllerFailoverRow(),
        NodeFailureRow(),
        ManyPartitionsRow(),
    ]
