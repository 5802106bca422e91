"""Every limit of the listener, by the name of its key, on a real daemon."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dlog.client.blocking import Admin
from dlogd.net.reply_queue import WAITING_BYTES_MAX
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import Raw, client_of, comes_to_be, metric, rss_bytes
from tests.fakes.front import fetch_frame, produce_frame, request_frame
from tests.fakes.logs import batch_of, next_offset_of, values_in

Start = Callable[[str], DaemonProcess]
API_VERSIONS = 18
CROWD = 1000
FIRST = 100
CROWD_BYTES_MAX = 64 * 1024


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a daemon with these settings, with a topic `t`."""
    with daemon(tmp_path) as node:

        def started(config: str) -> DaemonProcess:
            node.write_config(config)
            node.start()
            with client_of(node) as client:
                client.run(lambda: client.admin.create_topic("t", partitions=1))
            assert comes_to_be(lambda: metric(node, "dlog_server_connections") == 0)
            return node

        yield started
        if node.process is not None and node.process.poll() is None:
            assert node.stop() == 0
        assert "Traceback" not in node.log


def now_ms() -> int:
    return int(time.time() * 1000)


def batch(*values: bytes) -> bytes:
    return bytes(batch_of(*values, timestamp_ms=now_ms()))


def ping(client: Raw, correlation_id: int = 5) -> None:
    client.send(request_frame(correlation_id, api_key=API_VERSIONS))
    assert client.receive()[:4] == correlation_id.to_bytes(4, "big")


def test_connections_max(start: Start) -> None:
    node = start("connections.max: 5\n")
    clients = [Raw(node) for _ in range(5)]
    for client in clients:
        ping(client)
    assert Raw(node).is_closed()
    assert metric(node, "dlog_server_connections_refused_total") == 1
    clients.pop().close()
    assert comes_to_be(lambda: metric(node, "dlog_server_connections") == 4)
    clients.append(Raw(node))
    for client in clients:
        ping(client)
        client.close()
    assert "Refused connection" in node.log and "connections.max" in node.log


def test_connections_per_ip_max(start: Start) -> None:
    node = start("connections.per_ip.max: 2\n")
    clients = [Raw(node, source=source) for source in ("127.0.0.1", "127.0.0.1", "127.0.0.2")]
    for client in clients:
        ping(client)
    assert Raw(node, source="127.0.0.1").is_closed()
    for client in clients:
        ping(client)
        client.close()


def test_connections_per_ip_rate(start: Start) -> None:
    """Who comes too fast is closed, also with few connections; others get in meanwhile."""
    node = start("connections.per_ip.max: 5\nconnections.per_ip.rate: 2\n")
    assert all(is_served(node, "127.0.0.2") for _ in range(10))
    refused = [not is_served(node, "127.0.0.2") for _ in range(10)]
    assert any(refused)
    assert is_served(node, "127.0.0.3")
    found = metric(
        node, r'dlog_admission_refused_total\{listener="clients",reason="address_rate"\}'
    )
    assert found == sum(refused)
    lines = [line for line in node.log.splitlines() if "Refused connections" in line]
    assert len(lines) == 1
    assert "address=127.0.0.2 reason=address_rate" in lines[0]
    assert "connections.per_ip.rate" in lines[0]


def is_served(node: DaemonProcess, source: str) -> bool:
    """Connect and tell whether that was allowed."""
    client = Raw(node, source=source)
    try:
        ping(client)
    except ConnectionError:
        return False
    finally:
        client.close()
    return True


def test_connections_rate(start: Start) -> None:
    """Addresses that have opened few connections get in although all together come too fast."""
    node = start(
        "connections.max: 8\nconnections.rate: 1\n"
        "connections.per_ip.max: 8\nconnections.per_ip.rate: 1\n"
    )
    assert all(is_served(node, f"127.0.0.{number}") for number in range(2, 34))
    assert not all(is_served(node, "127.0.0.2") for _ in range(8))
    assert metric(node, r'dlog_admission_refused_total\{listener="clients",reason="rate"\}')
    assert is_served(node, "127.0.0.99")


def test_a_full_listener_ends_the_newest_of_the_crowd(start: Start) -> None:
    node = start("connections.max: 5\n")
    old = Raw(node, source="127.0.0.2")
    crowd = [Raw(node, source="127.0.0.3") for _ in range(4)]
    for client in (old, *crowd):
        ping(client)
    newcomer = Raw(node, source="127.0.0.4")
    ping(newcomer)
    assert crowd.pop().is_closed()
    for client in (old, *crowd, newcomer):
        ping(client)
    assert Raw(node, source="127.0.0.3").is_closed()


def test_frame_bytes_max(start: Start) -> None:
    node = start("frame.bytes.max: 2MiB\n")
    client = Raw(node)
    head = len(request_frame(api_key=API_VERSIONS)) - 4
    largest = request_frame(6, bytes((2 << 20) - head), api_key=API_VERSIONS)
    client.send(largest)
    assert client.receive()[:4] == (6).to_bytes(4, "big")
    client.send(((2 << 20) + 1).to_bytes(4, "big"))
    assert client.is_closed()
    assert "outside 8..2097152 (frame.bytes.max)" in node.log


def test_inflight_requests_max(start: Start) -> None:
    node = start("inflight.requests.max: 4\n")
    client, producer = Raw(node), Raw(node)
    client.send(fetch_frame([("t", 0)], max_wait_ms=60_000))
    client.send(*[request_frame(number, api_key=API_VERSIONS) for number in range(100)])
    assert comes_to_be(lambda: metric(node, "dlog_server_paused_connections") == 1)
    producer.send(produce_frame("t", batch(b"x")))
    assert producer.produced()[1] == 0
    assert client.fetched()[0] == 0
    for number in range(100):
        assert client.receive()[:4] == number.to_bytes(4, "big")
    assert comes_to_be(lambda: metric(node, "dlog_server_paused_connections") == 0)


def test_inflight_bytes_max(start: Start) -> None:
    node = start("frame.bytes.max: 2MiB\ninflight.bytes.max: 2MiB\n")
    frame = request_frame(8, bytes(1_900_000), api_key=API_VERSIONS)
    first, second, small = Raw(node), Raw(node), Raw(node)
    first.send(frame[:1_000_000])
    ping(small)
    second.sock.settimeout(1)
    second.sock.setblocking(False)
    sent = second.sock.send(frame)
    second.sock.settimeout(20)
    assert comes_to_be(lambda: metric(node, "dlog_server_paused_connections") == 1)
    ping(small)
    first.send(frame[1_000_000:])
    assert first.receive()[:4] == (8).to_bytes(4, "big")
    second.send(frame[sent:])
    assert second.receive()[:4] == (8).to_bytes(4, "big")
    assert comes_to_be(lambda: metric(node, "dlog_server_paused_connections") == 0)


def test_connections_idle_timeout(start: Start) -> None:
    node = start("connections.idle.timeout: 500ms\n")
    idle, busy, waiting = Raw(node), Raw(node), Raw(node)
    waiting.send(fetch_frame([("t", 0)], max_wait_ms=1500))
    for _ in range(14):
        ping(busy)
        time.sleep(0.1)
    assert waiting.fetched() == (0, b"")
    ping(busy)
    assert idle.is_closed()
    assert metric(node, "dlog_server_connections_idle_total") >= 1


def test_a_blocking_client_sends_nothing_on_a_connection_that_was_idle_too_long(
    start: Start,
) -> None:
    node = start("connections.idle.timeout: 500ms\n")
    with Admin(str(node.status()["listeners"][0])) as admin:
        for number in range(3):
            admin.create_topic(f"idle-{number}")
            assert comes_to_be(lambda: metric(node, "dlog_server_connections") == 0)


def fill(node: DaemonProcess, count: int, value_bytes: int) -> None:
    producer = Raw(node)
    for number in range(count):
        producer.send(produce_frame("t", batch(bytes([number % 256]) * value_bytes)))
    for _ in range(count):
        assert producer.produced()[1] == 0
    producer.close()


def test_a_thousand_idle_connections(start: Start) -> None:
    node = start("")
    before = rss_bytes(node)
    crowd = [Raw(node) for _ in range(CROWD)]
    for client in crowd[:20]:
        ping(client)
    assert comes_to_be(lambda: metric(node, "dlog_server_connections") == CROWD)
    growth = (rss_bytes(node) - before) / CROWD
    print(f"{growth:.0f} bytes for each idle connection")
    assert growth < CROWD_BYTES_MAX
    for client in crowd:
        client.close()
    assert comes_to_be(lambda: metric(node, "dlog_server_connections") == 0)


def slow_consumers(node: DaemonProcess, count: int) -> list[Raw]:
    """Clients that ask for more than their sockets hold, then for something else, and read none."""
    wanted = fetch_frame([("t", 0)], max_bytes=32 << 20, partition_bytes=32 << 20)
    crowd = [Raw(node, receive_buffer=4096) for _ in range(count)]
    for client in crowd:
        client.send(wanted, request_frame(9, api_key=API_VERSIONS))
    return crowd


@pytest.mark.parametrize("config", ["", "append.memory.bytes: 16MiB\n"], ids=["memory", "disk"])
def test_a_thousand_slow_consumers(start: Start, config: str) -> None:
    """Each asks for megabytes and takes none; that is not buffered, and costs the others little."""
    node = start(config + "connections.per_ip.max: 2000\n")
    fill(node, 64, 1_000_000)
    reader = Raw(node)
    reader.send(fetch_frame([("t", 0)], max_bytes=8 << 20, partition_bytes=8 << 20))
    assert len(reader.fetched()[1]) > 7 << 20
    # The first ones also pay for buffers that all share: what one more costs is what counts.
    crowd = slow_consumers(node, FIRST)
    assert comes_to_be(lambda: metric(node, "dlog_server_paused_connections") == FIRST, 20)
    before = rss_bytes(node)
    crowd += slow_consumers(node, CROWD)
    assert comes_to_be(lambda: metric(node, "dlog_server_paused_connections") == FIRST + CROWD, 20)
    growth = (rss_bytes(node) - before) / CROWD
    print(f"{growth:.0f} bytes for each slow consumer")
    assert growth < CROWD_BYTES_MAX
    producer = Raw(node)
    slowest = 0.0
    for _ in range(20):
        started = time.monotonic()
        producer.send(produce_frame("t", batch(b"x")))
        assert producer.produced()[1] == 0
        slowest = max(slowest, time.monotonic() - started)
    assert slowest < 1
    code, records = crowd[0].fetched()
    assert code == 0 and next_offset_of(records) > 20
    for client in crowd:
        client.close()
    assert comes_to_be(lambda: metric(node, "dlog_server_connections") == 2)


def test_append_memory_bytes(start: Start) -> None:
    """Less memory than producers have in flight: all wait their turn, nothing is lost."""
    node = start("append.memory.bytes: 1MiB\nmessage.bytes.max: 100KiB\n")
    producers = [Raw(node) for _ in range(12)]
    sent: list[bytes] = []
    for number, producer in enumerate(producers):
        for turn in range(4):
            value = bytes([number, turn]) * 45_000
            data = produce_frame("t", batch(value), timeout_ms=20_000)
            producer.send(data)
            sent.append(value)
    offsets = [producer.produced() for producer in producers for _ in range(4)]
    assert [each[1] for each in offsets] == [0] * len(sent)
    assert sorted(each[2] for each in offsets) == list(range(len(sent)))
    reader = Raw(node)
    found: list[bytes] = []
    while len(found) < len(sent):
        reader.send(fetch_frame([("t", len(found))]))
        found += [value for _, value in values_in(reader.fetched()[1])]
    assert sorted(found) == sorted(sent)
    for number, producer in enumerate(producers):
        mine = [value for value in found if value[0] == number]
        assert mine == sorted(mine), "in the order in which one connection sent them"
        producer.close()
    assert metric(node, "dlog_storage_append_waits_total") > 0


def test_answers_wait_in_bounded_memory(start: Start) -> None:
    """Large answers behind a long poll are not made in advance."""
    node = start("")
    with client_of(node) as client:
        for number in range(30):
            client.run(
                partial(client.admin.create_topic, f"{number}".rjust(200, "x"), partitions=50)
            )
    metadata = request_frame(1, b"\0\0\0\0")
    probe = Raw(node)
    probe.send(metadata)
    size = len(probe.receive())
    before = rss_bytes(node)
    greedy = Raw(node)
    greedy.send(fetch_frame([("t", 0)], max_wait_ms=60_000), *[metadata] * 1000)
    assert comes_to_be(lambda: metric(node, "dlog_server_paused_connections") == 1)
    assert size * 1000 > 20 << 20
    assert rss_bytes(node) - before < WAITING_BYTES_MAX + (8 << 20)
    fill(node, 1, 10)
    assert greedy.fetched()[0] == 0
    for _ in range(1000):
        assert len(greedy.receive()) == size
