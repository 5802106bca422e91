"""Hosts that requests to the operators' HTTP server name, and how often others are logged."""

import asyncio
import logging

import pytest

from dlogd.config.load import load_config
from dlogd.status.http_heads import HttpError, parse_head
from dlogd.status.http_hosts import ADDRESSES_MAX, HostCheck, host_of, names_of
from dlogd.status.http_server import HttpServer
from dlogd.telemetry.http_metrics import HttpMetrics
from tests.fakes.bounded_runs import check
from tests.fakes.http_exchange import exchange, live

NAMES = ("localhost", "log1.example.org")


def head(host: str | None, target: str = "/livez", version: str = "1.1") -> bytes:
    host_line = "" if host is None else f"\r\nHost: {host}"
    return f"GET {target} HTTP/{version}{host_line}".encode()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("127.0.0.1"), 200),
        (head("127.0.0.1:9644"), 200),
        (head("10.1.2.3"), 200),
        (head("[::1]:9644"), 200),
        (head("[::ffff:127.0.0.1]"), 200),
        (head("LocalHost:9644"), 200),
        (head("log1.example.org."), 200),
        (head("Log1.Example.ORG:9644"), 200),
        (head(None, version="1.0"), 200),
        (head("127.0.0.1", "http://log1.example.org:9644/livez?x=1"), 200),
        (head("evil"), 421),
        (head("evil.log1.example.org"), 421),
        (head("log1.example.org.evil:80"), 421),
        (head("evil", version="1.0"), 421),
        (head("127.0.0.1", "http://evil/livez"), 421),
        (head("evil", "http://127.0.0.1/livez"), 421),
        (head("127.0.0.1.evil"), 421),
        (head("\x1b]0;x\x07"), 400),
        (head("\x1b[2Jx"), 400),
        (head("\x9b31m"), 421),
        (head(None), 400),
        (head(""), 400),
        (head("localhost@evil"), 400),
        (head("127.0.0.1", "http://localhost@evil/livez"), 400),
        (head("[evil]"), 400),
        (head("a:b:c"), 400),
        (head("127.0.0.1\r\nHost: evil"), 400),
    ],
)
def test_only_addresses_and_own_names_are_served(sent: bytes, status: int) -> None:
    async def work() -> None:
        server = HttpServer(asyncio.get_running_loop(), {"/livez": live}, names=NAMES)
        port = await server.start("127.0.0.1", 0)
        answer = await exchange(port, sent + b"\r\nConnection: close\r\n\r\n")
        await server.close()
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert server.metrics.hosts_refused_total == (status == 421)
        body = answer.partition(b"\r\n\r\n")[2]
        assert b"\x1b" not in body
        assert (b"http.hosts" in body) == (status == 421)

    check(work)


def test_hosts_as_authorities_write_them() -> None:
    assert [host_of(each) for each in ("a", "a:1", "[::1]", "[fe80::1%eth0]:2")] == [
        *("a", "a"),
        *("::1", "fe80::1%eth0"),
    ]
    with pytest.raises(HttpError):
        host_of("a/b@c:1")


def test_names_of_a_node() -> None:
    config = load_config(
        "listeners: ['0.0.0.0:9092', 'in.example:9094']\n"
        "advertised.address: Log1.example.org\n"
        "http: {address: 'ops.example:9644', hosts: [Prometheus-Target, log1]}\n"
    )
    assert names_of(config, "box7") == {
        *("localhost", "box7", "log1.example.org", "ops.example", "in.example", "0.0.0.0"),
        *("prometheus-target", "log1"),
    }


def test_each_client_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    metrics = HttpMetrics()
    hosts = HostCheck(NAMES, metrics)

    def ask(peer: str, now_s: float) -> list[str]:
        caplog.clear()
        with pytest.raises(HttpError):
            hosts.check(parse_head(head("evil" + "l" * 200)), peer, now_s)
        return caplog.messages

    (line,) = ask("10.0.0.1", 5.0)
    assert "peer=10.0.0.1" in line
    assert line.endswith("count=1")
    assert len(line) < 250
    assert ask("10.0.0.1", 6.0) == []
    assert ask("10.0.0.1", 64.9) == []
    assert len(ask("10.0.0.2", 64.9)) == 1
    (line,) = ask("10.0.0.1", 65.0)
    assert line.endswith("count=3")
    for number in range(ADDRESSES_MAX + 10):
        ask(f"10.1.0.{number}", 66.0)
    assert len(hosts._logged) == ADDRESSES_MAX
    assert metrics.hosts_refused_total == ADDRESSES_MAX + 15
