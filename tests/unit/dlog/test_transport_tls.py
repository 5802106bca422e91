"""Connections by TLS."""

import asyncio
import ssl

import pytest

from dlog.errors import ConnectFailedError
from dlog.transport import Address, ConnectionOptions, connect
from tests.fakes.bounded_runs import check
from tests.fakes.scripted_node import echo, request


def tls_context(protocol: int) -> ssl.SSLContext:
    """TLS with anonymous peers: no keys lie about in a repository."""
    context = ssl.SSLContext(protocol)
    if protocol == ssl.PROTOCOL_TLS_CLIENT:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


def test_tls_carries_requests_and_ends_with_the_connection() -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await echo(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                ended.set()
            finally:
                writer.close()

        ended = asyncio.Event()
        server = await asyncio.start_server(
            serve, "127.0.0.1", 0, ssl=tls_context(ssl.PROTOCOL_TLS_SERVER)
        )
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        options = ConnectionOptions(tls=tls_context(ssl.PROTOCOL_TLS_CLIENT))
        connection = await connect(asyncio.get_running_loop(), address, options)
        frames = await asyncio.gather(
            *(connection.call(lambda cid, n=n: request(cid, b"x" * n * 1000)) for n in range(20))
        )
        assert [len(frame) - 4 for frame in frames] == [n * 1000 for n in range(20)]
        connection.close()
        await connection.wait_closed()
        await ended.wait()
        # A peer that must be known, and is not.
        strict = ConnectionOptions(tls=ssl.create_default_context())
        with pytest.raises(ConnectFailedError, match="cannot connect"):
            await connect(asyncio.get_running_loop(), address, strict)
        server.close()

    check(work)


def test_a_peer_that_speaks_no_tls_is_told_as_such() -> None:
    async def work() -> None:
        async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4)  # as dlogd, which finds no length of a frame there
            writer.transport.abort()

        server = await asyncio.start_server(end, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        options = ConnectionOptions(tls=tls_context(ssl.PROTOCOL_TLS_CLIENT))
        with pytest.raises(ConnectFailedError, match="perhaps it speaks no TLS"):
            await connect(asyncio.get_running_loop(), address, options)
        server.close()

    check(work)


def test_a_peer_that_never_shakes_hands_ends_in_time() -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        options = ConnectionOptions(tls=tls_context(ssl.PROTOCOL_TLS_CLIENT), connect_timeout_s=0.1)
        with pytest.raises(ConnectFailedError, match="no answer in time"):
            await connect(asyncio.get_running_loop(), address, options)
        server.close()

    check(work)
