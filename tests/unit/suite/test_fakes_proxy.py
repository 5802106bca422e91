"""The harmful proxy does what it says, against a plain echo."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dlog.transport import Address
from tests.fakes.proxy import Direction, Proxy


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def check(work: Callable[[Proxy], Awaitable[None]]) -> None:
    async def main() -> None:
        before = len(asyncio.all_tasks())
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        upstream = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        async with asyncio.timeout(20), Proxy(upstream) as proxy:
            await work(proxy)
        assert proxy.open_count == 0
        server.close()
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0)  # the echo hears of the end

    asyncio.run(main())


async def open_to(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(proxy.address.host, proxy.address.port)


def test_it_forwards_both_ways_and_drips() -> None:
    async def work(proxy: Proxy) -> None:
        reader, writer = await open_to(proxy)
        proxy.drip = (1, 0.0)
        proxy.delay_s = 0.001
        writer.write(b"x" * 300)
        assert await reader.readexactly(300) == b"x" * 300
        writer.close()
        await proxy.wait_ended()

    check(work)


@pytest.mark.parametrize("reset", [False, True])
def test_it_cuts_in_the_middle_once(reset: bool) -> None:
    async def work(proxy: Proxy) -> None:
        proxy.cut_after(Direction.TO_CLIENT, 3, reset=reset)
        reader, writer = await open_to(proxy)
        writer.write(b"abcdef")
        got = b""
        try:
            while data := await reader.read(10):
                got += data
            assert not reset
        except ConnectionResetError:
            assert reset
        assert got == b"abc" or (reset and b"abc".startswith(got))
        writer.close()
        await proxy.wait_ended()
        reader, writer = await open_to(proxy)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()

    check(work)


def test_it_swallows_stalls_and_heals() -> None:
    async def work(proxy: Proxy) -> None:
        reader, writer = await open_to(proxy)
        proxy.swallow(Direction.TO_CLIENT)
        writer.write(b"lost")
        while proxy.bytes_forwarded[Direction.TO_SERVER] < 4:
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        proxy.heal()
        writer.write(b"lost, too")  # what comes after a hole in a stream is no stream
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        writer.close()
        reader, writer = await open_to(proxy)
        proxy.stall()
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        proxy.heal()
        assert await reader.readexactly(4) == b"late"
        proxy.half_open()
        writer.write(b"to nobody")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        writer.close()
        await proxy.wait_ended()

    check(work)


def test_it_refuses_and_listens_again_on_the_same_port() -> None:
    async def work(proxy: Proxy) -> None:
        address = proxy.address
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await open_to(proxy)
        await proxy.start()
        assert proxy.address == address
        _, writer = await open_to(proxy)
        writer.close()
        await proxy.wait_accepted(1)

    check(work)


def test_it_lets_the_second_connection_go_first() -> None:
    async def work(proxy: Proxy) -> None:
        proxy.hold(2)
        first, first_writer = await open_to(proxy)
        await proxy.wait_accepted(1)
        first_writer.write(b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.read(1), 0.05)
        second, second_writer = await open_to(proxy)
        second_writer.write(b"2")
        assert await second.readexactly(1) == b"2"
        assert await first.readexactly(1) == b"1"
        first_writer.close()
        second_writer.close()

    check(work)
