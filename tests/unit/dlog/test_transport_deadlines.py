"""Connections and time: what is late, what is waited for, and when a node is given up."""

import asyncio
import socket

import pytest

from dlog.errors import ConnectFailedError, DisconnectedError, RequestTimedOutError
from dlog.transport import Address, ConnectionOptions, connect
from tests.fakes.bounded_runs import check
from tests.fakes.scripted_node import Callbacks, echo, node, read_request, request, response


def test_a_missed_deadline_closes_the_connection() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work() -> None:
        async with node(silent, inflight_max=2) as connection:
            patient = asyncio.ensure_future(connection.call(request, 0.3))
            queued = asyncio.ensure_future(connection.call(request, 10))
            waiting = asyncio.ensure_future(connection.call(request, 10))
            waiting_short = asyncio.ensure_future(connection.call(request, 0.05))
            with pytest.raises(RequestTimedOutError):
                await waiting_short
            assert connection.is_open  # nothing was sent for it: nothing is lost
            queued.cancel()
            with pytest.raises(RequestTimedOutError):
                await patient
            with pytest.raises(DisconnectedError):
                await waiting
            assert not connection.is_open
            with pytest.raises(DisconnectedError):
                await connection.call(request)

    check(work)


def test_who_is_late_behind_others_is_told_and_the_connection_stays() -> None:
    async def work() -> None:
        release = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first, _ = await read_request(reader)
            second, _ = await read_request(reader)
            await release.wait()
            writer.write(response(first) + response(second))
            await echo(reader, writer)

        async with node(slow) as connection:
            patient, hasty, next_one = Callbacks(), Callbacks(), Callbacks()
            patient.send(connection, patience_s=60)
            hasty.send(connection, patience_s=0.05)
            await hasty.done.wait()
            assert isinstance(hasty.errors[0], RequestTimedOutError)
            assert hasty.errors[0].was_sent
            assert connection.is_open
            release.set()
            await patient.done.wait()
            next_one.send(connection, b"x")
            await next_one.done.wait()
            assert (patient.frames, next_one.frames) == ([b""], [b"x"])
            assert (hasty.frames, len(hasty.errors)) == ([], 1)

    check(work)


def test_a_late_one_that_comes_first_in_line_is_waited_for_once_more() -> None:
    async def work() -> None:
        async def forgetful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first, _ = await read_request(reader)
            await read_request(reader)
            await told.wait()
            writer.write(response(first))
            await reader.read()

        told = asyncio.Event()
        async with node(forgetful) as connection:
            patient, hasty, stuck = Callbacks(), Callbacks(), Callbacks()
            patient.send(connection, patience_s=60)
            hasty.send(connection, patience_s=0.05)
            stuck.send(connection, patience_s=60)
            await hasty.done.wait()
            told.set()
            await patient.done.wait()
            assert connection.is_open
            await stuck.done.wait()  # its own deadline is far away
            assert isinstance(stuck.errors[0], DisconnectedError)
            assert len(hasty.errors) == 1

    check(work)


def test_a_peer_that_takes_no_bytes_is_given_up() -> None:
    async def work() -> None:
        async def deaf(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await given_up.wait()

        given_up = asyncio.Event()
        async with node(deaf, request_timeout_s=0.5) as connection:
            body = b"x" * (1 << 20)
            # All at once: what is left of a single one can be too little for asyncio to pause.
            requests = [connection.send(lambda cid: request(cid, body), 60) for _ in range(100)]
            try:
                ends = await asyncio.gather(*requests, return_exceptions=True)
            finally:
                given_up.set()
        assert isinstance(ends[-1], DisconnectedError)
        assert "stopped reading" in str(ends[-1])

    check(work)


def test_a_port_that_never_answers_ends_in_time() -> None:
    async def work() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            # Linux lets one more than the backlog in; the next ones hear nothing.
            crowd = [socket.socket() for _ in range(3)]
            for each in crowd:
                each.setblocking(False)
                each.connect_ex(listener.getsockname())
            address = Address(*listener.getsockname())
            options = ConnectionOptions(connect_timeout_s=0.1)
            with pytest.raises(ConnectFailedError, match="no answer in time"):
                await connect(asyncio.get_running_loop(), address, options)
            for each in crowd:
                each.close()

    check(work)


def test_requests_without_answer_obey_the_bound_of_the_socket() -> None:
    async def work() -> None:
        received = 0
        go = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            await go.wait()
            while True:
                correlation_id, body = await read_request(reader)
                received += 1
                if body == b"last":
                    writer.write(response(correlation_id))

        async with node(slow) as connection:
            body = b"x" * (1 << 20)
            with pytest.raises(RequestTimedOutError):
                for _ in range(100):
                    await connection.send(lambda cid: request(cid, body), 0.2)
            sent_before = received
            go.set()
            await connection.call(lambda cid: request(cid, b"last"))
            assert sent_before == 0
            assert 1 < received < 100

    check(work)
