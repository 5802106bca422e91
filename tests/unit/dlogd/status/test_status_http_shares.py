"""Shares of the operators' HTTP server: which connection gives way, and how long one lasts."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dlogd.status import http_server
from dlogd.status.http_heads import Page, Request, Response, text_response
from dlogd.status.http_server import HttpServer, Limits
from tests.fakes.bounded_runs import check
from tests.fakes.http_exchange import get, live

HERE = "127.0.0.1"
ELSEWHERE = "127.0.0.9"


@asynccontextmanager
async def serving(
    pages: Mapping[str, Page] | None = None, **limits: Any
) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(asyncio.get_running_loop(), pages or {"/livez": live}, Limits(**limits))
    port = await server.start("0.0.0.0", 0)
    try:
        yield server, port
    finally:
        await server.close()


class Client:
    """One connection from a loopback address of the test's choice."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, path: str = "/livez", **headers: str) -> bytes:
        """Ask once, and leave the connection open."""
        self.writer.write(get(path, **headers))
        return await self.answer()

    async def answer(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    async def ended(self) -> bool:
        """Wait until the server has ended the connection; False when it sent something."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


async def connect(port: int, source: str = HERE) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))


def test_silent_connections_of_one_address_keep_no_probe_out() -> None:
    async def work() -> None:
        async with serving() as (server, port):
            crowd = [await connect(port) for _ in range(64)]
            for client in crowd[-8:]:
                assert b" 200 OK" in await client.ask()
            # All but the address's share were closed for those that came later.
            assert all([await client.ended() for client in crowd[:-8]])
            probes = [await connect(port, source) for source in (HERE, ELSEWHERE)]
            for probe in probes:
                assert b" 200 OK" in await probe.ask()
            assert await crowd[-8].ended()  # for the probe from the same address
            assert b" 200 OK" in await crowd[-7].ask()
            assert server.metrics.connections == 9
            assert server.metrics.connections_displaced_total == 57
            assert server.metrics.connections_refused_total == 0

    check(work)


def test_silent_connections_of_many_addresses_keep_no_probe_out() -> None:
    async def work() -> None:
        async with serving() as (server, port):
            crowd = [await connect(port, f"127.0.1.{1 + n // 8}") for n in range(64)]
            for client in crowd:
                assert b" 200 OK" in await client.ask()
            await crowd[0].ask()  # now the second one has been silent longest
            probe = await connect(port, ELSEWHERE)
            assert b" 200 OK" in await probe.ask()
            assert await crowd[1].ended()
            assert b" 200 OK" in await crowd[0].ask()
            assert server.metrics.connections == 64

    check(work)


def test_hosts_that_count_as_one_address_have_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of an IPv6 network do; its owner has a host for each connection."""
    monkeypatch.setattr(
        http_server, "address_of", lambda host: "net" if "127.0.1." in host else host
    )

    async def work() -> None:
        async with serving() as (server, port):
            crowd = [await connect(port, f"127.0.1.{1 + n}") for n in range(12)]
            for client in crowd[-8:]:
                assert b" 200 OK" in await client.ask()
            assert all([await client.ended() for client in crowd[:4]])
            assert server.metrics.connections == 8
            assert server.metrics.connections_displaced_total == 4

    check(work)


def test_a_request_under_way_never_gives_way() -> None:
    async def work() -> None:
        begun = 0
        go_on = asyncio.Event()

        async def slow(_request: Request) -> Response:
            nonlocal begun
            begun += 1
            await go_on.wait()
            return text_response(200, "done")

        limits = {"connections_max": 3, "connections_per_ip_max": 2}
        async with serving({"/slow": slow, "/livez": live}, **limits) as (server, port):
            asking = [await connect(port) for _ in range(2)]
            asking.append(await connect(port, ELSEWHERE))
            for client in asking:
                client.writer.write(get("/slow"))
            while begun < 3:
                await asyncio.sleep(0)
            assert await (await connect(port)).ended()
            assert await (await connect(port, "127.0.0.7")).ended()
            assert server.metrics.connections_refused_total == 2
            go_on.set()
            for client in asking:
                assert b"done" in await client.answer()
            assert b" 200 OK" in await (await connect(port, "127.0.0.7")).ask()

    check(work)


def test_an_unfinished_head_gives_way_only_when_none_is_silent() -> None:
    async def work() -> None:
        async with serving(connections_per_ip_max=2) as (server, port):
            begun, silent = await connect(port), await connect(port)
            await begun.ask()
            await silent.ask()
            begun.writer.write(b"GET /livez HT")
            connections = server._room.connections()
            while not connections[0]._received:
                await asyncio.sleep(0)
            probe = await connect(port)
            assert await silent.ended()
            assert b" 200 OK" in await probe.ask()
            probe.writer.write(b"GET")
            while not server._room.connections()[1]._received:
                await asyncio.sleep(0)
            assert b" 200 OK" in await (await connect(port)).ask()
            assert await begun.ended()

    check(work)


def test_a_connection_lasts_a_number_of_requests() -> None:
    async def work() -> None:
        async with serving(requests_max=3) as (_, port):
            client = await connect(port)
            for _ in range(2):
                assert b"Connection: keep-alive" in await client.ask()
            assert b"Connection: close" in await client.ask()
            assert await client.ended()

    check(work)


def test_a_connection_lasts_a_time_also_when_it_is_silent() -> None:
    async def work() -> None:
        async with serving(age_max_s=0.2) as (server, port):
            client = await connect(port)
            assert b"Connection: keep-alive" in await client.ask()
            assert await client.ended()
            held = await connect(port)
            await held.ask()
            server._room.connections()[0]._ends_at_s = 0.0
            assert b"Connection: close" in await held.ask()

    check(work)
