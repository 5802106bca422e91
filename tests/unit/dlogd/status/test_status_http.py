"""The operators' HTTP endpoint: pages, limits, and clients that mean harm."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dlogd.status.http_heads import Page, Request, Response, parse_head, text_response
from dlogd.status.http_server import HttpServer, Limits
from dlogd.status.pages import pages_of, scrapes_of
from dlogd.telemetry.metrics import NODE_READY, Sample, Source, Telemetry
from tests.fakes.bounded_runs import check
from tests.fakes.http_exchange import HOST, exchange, get


class Node:
    """A node that says what a test wants."""

    def __init__(self) -> None:
        self.telemetry = Telemetry()
        self.reason: str | None = "recovering logs done=3 total=10"

    def metric_sources(self) -> Sequence[Source]:
        return [lambda: [Sample(NODE_READY, (), 1.0)]]

    def not_ready_reason(self) -> str | None:
        return self.reason

    def status(self) -> Mapping[str, Any]:
        return {"node_id": 1, "state": "active"}


async def run_here(work: Callable[[], Any]) -> Any:
    return work()


def pages(node: Node, before_scrape: Callable[[], None] = lambda: None) -> dict[str, Page]:
    return pages_of(node, run_here, scrapes_of(node, run_here, before_scrape))


@asynccontextmanager
async def serving(
    answers: Mapping[str, Page], **limits: Any
) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(asyncio.get_running_loop(), answers, Limits(**limits))
    port = await server.start(HOST, 0)
    try:
        yield server, port
    finally:
        await server.close()
        await server.close()


def test_the_pages_of_a_node() -> None:
    async def work() -> None:
        node = Node()
        scrapes = 0

        def before_scrape() -> None:
            nonlocal scrapes
            scrapes += 1

        async with serving(pages(node, before_scrape)) as (_, port):
            live = await exchange(port, get("/livez", Connection="close"))
            assert live.startswith(b"HTTP/1.1 200 OK\r\n")
            not_ready = await exchange(port, get("/readyz", Connection="close"))
            assert not_ready.startswith(b"HTTP/1.1 503 ")
            assert not_ready.endswith(b"recovering logs done=3 total=10\n")
            node.reason = None
            assert b" 200 " in await exchange(port, get("/readyz", Connection="close"))
            status = await exchange(port, get("/status?x=1", Connection="close"))
            assert json.loads(status.partition(b"\r\n\r\n")[2])["state"] == "active"
            metrics = await exchange(port, get("/metrics", Connection="close"))
            assert b"dlog_node_ready 1.0\n" in metrics
            assert b"text/plain; version=0.0.4" in metrics
            assert scrapes == 1
            missing = await exchange(port, get("/", Connection="close"))
            assert missing.startswith(b"HTTP/1.1 404 ")

    check(work)


def test_one_connection_carries_many_requests_in_order() -> None:
    async def work() -> None:
        async def echo(request: Request) -> Response:
            await asyncio.sleep(0.02 if request.path == "/slow" else 0)
            return text_response(200, request.path)

        async with serving({"/slow": echo, "/fast": echo}) as (_, port):
            sent = get("/slow") + get("/fast") + get("/slow", Connection="close")
            answer = await exchange(port, sent)
            bodies = [part for part in answer.split(b"\r\n") if b"/" in part and b"HTTP" in part]
            assert [line.partition(b"\n")[0] for line in bodies].count(b"/slow") == 1
            assert answer.count(b"HTTP/1.1 200 OK") == 3
            assert answer.index(b"/slow") < answer.index(b"/fast") < answer.rindex(b"/slow")
            head = await exchange(port, b"HEAD /fast HTTP/1.0\r\n\r\n")
            assert b"Content-Length: 6\r\n" in head
            assert head.endswith(b"\r\n\r\n")

    check(work)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /livez HTTP/1.1\r\n\r\n", 405),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /livez\r\n\r\n", 400),
        (b"\x00\x00\x00\x10\x00\x12\x00\x03\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET //[ HTTP/1.1\r\n\r\n", 400),
        (b"GET //evil/livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET ftp://127.0.0.1/livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nX: " + b"a" * 9000, 431),
        (b"GET /livez HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_refused(sent: bytes, status: int) -> None:
    async def work() -> None:
        async with serving(pages(Node())) as (_, port):
            answer = await exchange(port, sent)
            assert answer.startswith(f"HTTP/1.1 {status} ".encode())
            assert b"Connection: close" in answer

    check(work)


def test_a_failing_page_is_an_error_and_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async def broken(_request: Request) -> Response:
            raise RuntimeError("bug")

        async with serving({"/broken": broken}) as (_, port):
            answer = await exchange(port, get("/broken") + get("/broken", Connection="close"))
            assert answer.count(b"HTTP/1.1 500 ") == 2
            assert b"bug" not in answer

    check(work)
    assert "bug" in caplog.text


def test_slow_and_silent_clients_are_cut() -> None:
    async def work() -> None:
        async def hang(_request: Request) -> Response:
            await asyncio.sleep(60)
            return text_response(200, "late")

        limits = {"head_timeout_s": 0.1, "idle_timeout_s": 0.1, "answer_timeout_s": 0.1}
        async with serving({"/hang": hang}, **limits) as (_, port):
            for sent in (b"", b"GET / HT", get("/hang"), get("/missing")):
                await exchange(port, sent)
            reader, writer = await asyncio.open_connection(HOST, port)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                while True:  # a drip of bytes does not prolong the time for one head
                    writer.write(b"G")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            del reader

    check(work)


def test_a_client_that_does_not_read_is_cut_and_holds_no_more_than_one_answer() -> None:
    async def work() -> None:
        made = 0

        async def large(_request: Request) -> Response:
            nonlocal made
            made += 1
            return Response(body=b"x" * (32 << 20))

        async with serving({"/large": large}, answer_timeout_s=0.3) as (_, port):
            _reader, writer = await asyncio.open_connection(HOST, port, limit=1024)
            writer.write(get("/large") * 50)
            await asyncio.sleep(0.2)
            assert made == 1
            await asyncio.sleep(0.3)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.01)

    check(work)


def test_parse_head() -> None:
    request = parse_head(b"GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\nX-Y:  z ")
    assert (request.path, request.query, request.keep_alive) == ("/a b", "c=d", True)
    assert request.headers == {"host": "x", "x-y": "z"}
    assert not parse_head(b"GET / HTTP/1.0").keep_alive
    assert parse_head(b"GET / HTTP/1.0\r\nConnection: Keep-Alive").keep_alive
