"""Kills, stops or pauses the leader of every client's partitions, one node after the other."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dlog.client.admin import Admin, NewTopic
from dlog.client.consumer import Consumer
from dlog.client.retry import RetryPolicy
from dlog.client.views import PartitionView
from dlog.errors import DlogError
from tests.behaviour.clusters import NODES, TestedCluster
from tests.clients.failovers.load import Load
from tests.clients.failovers.verdict import Seen, Waits, breaches, waits

PARTITIONS = 3
CONFIGS = {"min.insync.replicas": "2"}
STEP_S = 60.0
"""Within so long leaders are found, clients are answered, and a node is in sync again."""
LOOK_EVERY_S = 0.05
POLICY = RetryPolicy(deadline_s=5.0)

View = dict[str, tuple[PartitionView, ...]]


class StuckError(AssertionError):
    """Something did not come in time; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One failover, as the cluster was before it."""

    node: int
    killed_s: float
    led: Mapping[str, Sequence[int]]
    """Of each topic, the partitions that the node led."""
    acked_after_s: float = 0.0
    in_sync_after_s: float = 0.0


@dataclass(slots=True)
class Result:
    """What a client was promised and what it got."""

    name: str
    failovers: int = 0
    record_count: int = 0
    repeated_count: int = 0
    lockup_count: int = 0
    """How many consumers have locked themselves up: a defect of librdkafka (`guarded_consumer`)."""
    waits: Waits | None = None
    breaches: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def kill(cluster: TestedCluster, node: int) -> Callable[[], None]:
    """End a node with SIGKILL; return how it is started again."""
    cluster.kill(node)
    return lambda: cluster.restart(node)


def stop(cluster: TestedCluster, node: int) -> Callable[[], None]:
    """Stop a node with SIGSTOP: no connection ends by that; return how it goes on."""
    os.kill(cluster.pid(node), signal.SIGSTOP)
    return lambda: os.kill(cluster.pid(node), signal.SIGCONT)


def pause(cluster: TestedCluster, node: int) -> Callable[[], None]:
    """Stop a node with SIGSTOP until the others lead all that it led, then let it go on at once.

    So it stood still for longer than its lease, and finds what came meanwhile in its sockets.
    """
    let_go_on = stop(cluster, node)
    try:
        asyncio.run(_until_deposed(cluster, node))
    except BaseException:
        let_go_on()
        raise
    let_go_on()
    return lambda: None


async def _until_deposed(cluster: TestedCluster, node: int) -> None:
    """Return when nobody takes a node that does not answer for a leader; raise StuckError."""
    end = time.monotonic() + STEP_S
    while time.monotonic() < end:
        try:
            async with Admin(cluster.bootstrap, policy=POLICY) as admin:
                topics = (await admin.describe_topics()).topics.values()
        except DlogError:
            continue
        leaders = {each.leader for topic in topics for each in topic.partitions}
        if node not in leaders and -1 not in leaders:
            return
        await asyncio.sleep(LOOK_EVERY_S)
    raise StuckError(f"node {node} leads for {STEP_S:.0f} s, standing still")


Strike = Callable[[TestedCluster, int], Callable[[], None]]


def topic_of(load: type[Load], strike: Strike) -> str:
    """Return the name of a client's topic."""
    return f"{strike.__name__}-{load.name}"


async def prepare(cluster: TestedCluster, topics: Sequence[str]) -> None:
    """Create the topics, with one partition led by each node."""
    order = [tuple(NODES[n:] + NODES[:n]) for n in range(len(NODES))]
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(STEP_S):
        while len((await admin.describe_cluster()).nodes) < len(NODES):
            await asyncio.sleep(LOOK_EVERY_S)
        results = await admin.create_topics(
            [NewTopic(name=each, assignments=order, configs=CONFIGS) for each in topics]
        )
        for result in results.values():
            if isinstance(result, DlogError):
                raise result
    await settle(cluster, topics)


async def settle(cluster: TestedCluster, topics: Sequence[str]) -> View:
    """Return the topics as soon as every partition has a leader and all replicas in sync."""
    last: object = "no answer"
    end = time.monotonic() + STEP_S
    while time.monotonic() < end:
        try:
            async with Admin(cluster.bootstrap, policy=POLICY) as admin:
                while time.monotonic() < end:
                    found = (await admin.describe_topics(list(topics))).topics
                    last = _unsettled(found, topics)
                    if not last:
                        return {name: found[name].partitions for name in topics}
                    await asyncio.sleep(LOOK_EVERY_S)
        except DlogError as error:
            last = error
    raise StuckError(f"not settled after {STEP_S:.0f} s: {last}")


def _unsettled(found: Mapping[str, "object"], topics: Sequence[str]) -> list[str]:
    wrong = []
    for name in topics:
        view = found.get(name)
        partitions = getattr(view, "partitions", ())
        if not partitions:
            wrong.append(f"{name} is not there")
        wrong += [
            f"{name}-{each.partition} leader={each.leader} isr={each.isr}"
            for each in partitions
            if each.leader < 0 or len(each.isr) < len(NODES)
        ]
    return wrong


def choose(view: View, killed: Sequence[int]) -> int:
    """Return the node that leads partitions of the most topics; of these who was spared longest."""
    leads: Counter[int] = Counter()
    for partitions in view.values():
        leads.update({each.leader for each in partitions})
    last = {node: index for index, node in enumerate(killed)}
    return max(leads, key=lambda node: (leads[node], -last.get(node, -1), -node))


def _until(what: str, is_done: Callable[[], bool], loads: Sequence[Load]) -> None:
    end = time.monotonic() + STEP_S
    while not is_done():
        if time.monotonic() > end:
            heard = {each.name: each.trouble[:2] for each in loads if each.trouble}
            raise StuckError(f"{what} after {STEP_S:.0f} s; heard: {heard}")
        time.sleep(LOOK_EVERY_S)


def _unanswered(loads: Sequence[Load], since: Kill) -> list[str]:
    """Return who has had no acknowledgement since the kill, of partitions that were led there."""
    missing = []
    for load in loads:
        recent = {ack.partition for ack in load.acks[-500:] if ack.sent_s >= since.killed_s}
        missing += [f"{load.name}-{each}" for each in since.led[load.topic] if each not in recent]
    return missing


def fail_over(
    cluster: TestedCluster, loads: Sequence[Load], killed: Sequence[int], strike: Strike
) -> Kill:
    """Strike a leader; when all clients have written on, let it return, and be in sync again."""
    topics = [each.topic for each in loads]
    view = asyncio.run(settle(cluster, topics))
    node = choose(view, killed)
    led = {
        name: [each.partition for each in partitions if each.leader == node]
        for name, partitions in view.items()
    }
    begun = Kill(node, time.monotonic(), led)
    let_return = strike(cluster, node)
    missing: list[str] = []

    def all_answered() -> bool:
        missing[:] = _unanswered(loads, begun)
        return not missing

    try:
        _until("clients still wait", all_answered, loads)
    except StuckError as error:
        raise StuckError(f"{error}: {missing}") from None
    finally:
        acked_s = time.monotonic()
        let_return()
    asyncio.run(settle(cluster, topics))
    after_s = time.monotonic() - begun.killed_s
    return Kill(node, begun.killed_s, led, acked_s - begun.killed_s, after_s)


async def read_log(bootstrap: str, topic: str) -> list[Seen]:
    """Return all records of a topic as it is in the end."""
    found: list[Seen] = []
    async with Consumer(bootstrap, topic) as consumer, asyncio.timeout(STEP_S):
        ends = await consumer.end_offsets()
        while any(consumer.position(key) < end for key, end in ends.items()):
            for each in await consumer.poll():
                number = int(each.value or b"-1")
                found.append(Seen(each.partition, each.offset, number, time.monotonic()))
    return found


def play(
    cluster: TestedCluster,
    kinds: Sequence[type[Load]],
    rounds: int,
    say: Callable[[str], None] = print,
    strike: Strike = kill,
) -> tuple[list[Result], list[Kill]]:
    """Run all clients through so many failovers; return what became of each."""
    asyncio.run(prepare(cluster, [topic_of(kind, strike) for kind in kinds]))
    loads = [kind(cluster.bootstrap, topic_of(kind, strike), PARTITIONS) for kind in kinds]
    for load in loads:
        load.start()
    kills: list[Kill] = []
    stuck: list[str] = []
    try:
        _until("some never wrote", lambda: all(each.acks for each in loads), loads)
        for number in range(rounds):
            done = fail_over(cluster, loads, [each.node for each in kills], strike)
            kills.append(done)
            say(
                f"failover {number + 1}: node {done.node}, all clients wrote on after"
                f" {done.acked_after_s:.2f} s, in sync again after {done.in_sync_after_s:.2f} s"
            )
        time.sleep(0.5)
    except StuckError as error:
        stuck.append(str(error))
        say(f"stuck: {error}")
    for load in loads:
        load.is_stopping.set()
    for load in loads:
        load.stop_writing()
    results = [_finish(cluster, load, kills) for load in loads]
    for result in results:
        result.errors += stuck
    return results, kills


def _finish(cluster: TestedCluster, load: Load, kills: Sequence[Kill]) -> Result:
    log = asyncio.run(read_log(cluster.bootstrap, load.topic))
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for each in log:
        ends[each.partition] = each.offset + 1
    load.finish(ends)
    hits = [(each.killed_s, each.led[load.topic]) for each in kills if each.led[load.topic]]
    return Result(
        load.name,
        failovers=len(hits),
        record_count=len(load.acks),
        repeated_count=len(log) - len({each.number for each in log}),
        lockup_count=load.lockup_count,
        waits=waits(load.acks, load.seen, hits),
        breaches=breaches(load.promise, load.sent_count, load.acks, load.seen, log),
        errors=load.errors,
    )


def table(results: Sequence[Result]) -> str:
    """Return the results for people."""
    lines = [
        f"{'client':18}{'failovers':>10}{'records':>9}{'twice':>7}{'errors':>8}{'wrong':>7}"
        f"{'lockups':>9}{'after a kill, worst':>21}{'longest ack':>13}{'longest pause':>15}"
    ]
    for each in results:
        known = each.waits
        assert known is not None
        worst = max(known.after_kill_s, default=0.0)
        lines.append(
            f"{each.name:18}{each.failovers:>10}{each.record_count:>9}{each.repeated_count:>7}"
            f"{len(each.errors):>8}{len(each.breaches):>7}{each.lockup_count:>9}{worst:>19.2f} s"
            f"{known.longest_ack_s:>11.2f} s{known.longest_pause_s:>13.2f} s"
        )
    return "\n".join(lines)
