"""A real daemon under attack: it lives, serves the others, and gives everything back.

DLOG_FUZZ_SECONDS makes the run longer, DLOG_FUZZ_SEED another one; both are printed.
"""

import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from dlog.batch.records import Record, decode, encode
from dlog.client.admin import Admin
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.partition_calls import fetch, produce
from dlog.transport import Address
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import comes_to_be, metric, rss_bytes
from tests.fuzz.attacks import Attacker

SECONDS = float(os.environ.get("DLOG_FUZZ_SECONDS", "10"))
SEED = int(os.environ.get("DLOG_FUZZ_SEED", "20261121"))
RSS_GROWTH_BYTES_MAX = 160 << 20
LATENCY_S_MAX = 2.0
CONFIG = (
    "connections.idle.timeout: 3s\ninflight.bytes.max: 64MiB\nframe.bytes.max: 64MiB\n"
    # The attackers are to get in: other tests are about who is refused.
    "connections.per_ip.max: 10000\nconnections.per_ip.rate: 1000\n"
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path, CONFIG) as process:
        process.start()
        yield process


def sockets(node: DaemonProcess) -> int:
    """Count the descriptors of sockets; files come and go with segments."""
    assert node.process is not None
    folder = Path(f"/proc/{node.process.pid}/fd")
    count = 0
    for each in folder.iterdir():
        try:
            count += os.readlink(each).startswith("socket:")
        except FileNotFoundError:
            pass
    return count


class GoodClient:
    """Writes and reads back all the time; every failure ends the test."""

    def __init__(self, address: Address, topic: str) -> None:
        loop = asyncio.get_running_loop()
        self.cluster = Cluster([address], loop=loop, rng=random.Random(1))
        self.topic = topic
        self.count = 0
        self.slowest_s = 0.0

    async def create_topics(self) -> UUID:
        """Create ours and the one that is attacked; return that one's id."""
        admin = Admin(self.cluster)
        await admin.create_topic(self.topic, partitions=1)
        return await admin.create_topic("fuzz", partitions=2)

    async def work(self, stop: asyncio.Event) -> None:
        node = await self.cluster.leader(self.topic, 0)
        while not stop.is_set():
            started = time.monotonic()
            value = b"%d" % self.count
            batch = encode([Record(value=value, timestamp_ms=int(time.time() * 1000))])
            produced = await produce(node, self.topic, 0, batch)
            assert produced is not None and produced.base_offset == self.count
            fetched = await fetch(node, self.topic, 0, self.count)
            assert [record.value for record in decode(fetched.records)] == [value]
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)
            self.count += 1
            await asyncio.sleep(0.005)


async def attack(attacker: Attacker, good: GoodClient) -> Counter[str]:
    stop = asyncio.Event()
    attacker.frames.topic_ids.append(await good.create_topics())
    beside = [
        asyncio.ensure_future(good.work(stop)),
        asyncio.ensure_future(attacker.slow_loris(stop)),
    ]
    done: Counter[str] = Counter()
    ends = time.monotonic() + SECONDS
    attacks = attacker.all()
    while time.monotonic() < ends or len(done) < len(attacks):
        each = attacks[sum(done.values()) % len(attacks)]
        await each()
        done[each.__name__] += 1
        assert not beside[0].done(), beside[0].exception()
    stop.set()
    await asyncio.gather(*beside)
    await good.cluster.close()
    return done


def check_log(log: str, opened: Counter[str]) -> None:
    assert "Traceback" not in log
    assert "Failed to handle" not in log, log[log.index("Failed to handle") :][:400]
    assert "unexpected error" not in log, log[log.index("unexpected error") :][:400]
    assert not re.search(r"^\S+ (ERROR|CRITICAL) ", log, re.MULTILINE)
    lines = log.splitlines()
    odd = [line for line in lines if not re.match(r"\d{4}-\d\d-\d\dT\S+ [A-Z]+ ", line)]
    assert not odd, odd[:3]
    closed = Counter(
        found[0] for line in lines if (found := re.findall(r"Closed .* peer=(\S+)", line))
    )
    assert sum(closed.values()) <= opened.total()
    del closed["?"]  # those who had gone before they were accepted
    assert closed <= opened, closed - opened


def test_the_daemon_lives_and_serves_the_others(node: DaemonProcess) -> None:
    print(f"DLOG_FUZZ_SEED={SEED} DLOG_FUZZ_SECONDS={SECONDS}")
    address = Address.parse(node.status()["listeners"][0])

    attacker = Attacker((address.host, address.port), SEED)

    async def run() -> None:
        good = GoodClient(address, "good")
        done = await attack(attacker, good)
        print(
            f"attacks={sum(done.values())} connections={attacker.opened.total()}"
            f" answered={attacker.answer_count} good={good.count} slowest={good.slowest_s:.3f}s"
        )
        assert good.count > 20
        assert good.slowest_s < LATENCY_S_MAX

    sockets_before, rss_before = sockets(node), rss_bytes(node)
    asyncio.run(asyncio.wait_for(run(), SECONDS + 60))
    assert node.process is not None and node.process.poll() is None
    assert comes_to_be(lambda: metric(node, "dlog_server_connections") == 0)
    for name in ("inflight_bytes", "paused_connections", "parked_fetches", "callback_errors_total"):
        assert metric(node, f"dlog_server_{name}") == 0, name
    print(f"rss {rss_before >> 20} -> {rss_bytes(node) >> 20} MiB")
    assert rss_bytes(node) - rss_before < RSS_GROWTH_BYTES_MAX
    assert comes_to_be(lambda: sockets(node) <= sockets_before)
    assert node.stop() == 0
    check_log(node.log, attacker.opened)
