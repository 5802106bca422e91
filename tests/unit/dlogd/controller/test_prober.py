"""Probes over real sockets: what a living, a dead, a hanging and a foreign process look like."""

import asyncio
import socket

from dlog.transport import Address, ConnectionOptions
from dlog.types import NodeId
from dlogd.controller.leases import Probed, ProbeOrder
from dlogd.controller.prober import Prober
from dlogd.internal.messages import Probe
from tests.fakes.probed_process import process


def prober(cluster_id: str = "c") -> Prober:
    return Prober(
        asyncio.get_running_loop(),
        lambda: Probe(cluster_id=cluster_id, node_id=NodeId(1), controller_epoch=1),
        timeout_s=0.3,
        options=ConnectionOptions(client_id="probe"),
    )


def order(node_id: int = 2) -> ProbeOrder:
    return ProbeOrder(node_id=NodeId(node_id), node_epoch=7, number=1)


def test_a_living_process_answers_and_a_stopped_one_refuses() -> None:
    async def work() -> None:
        async with process() as (address, server):
            assert await prober().probe(order(), address) == (Probed.ANSWERED, 7)
            assert await prober().probe(order(3), address) == (Probed.SILENT, None)
            assert await prober("other").probe(order(), address) == (Probed.SILENT, None)
            await server.stop()
            assert await prober().probe(order(), address) == (Probed.REFUSED, None)

    asyncio.run(work())


def test_a_hanging_process_is_silent_not_dead() -> None:
    async def work() -> None:
        # Its kernel accepts, as for a process that is stopped.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = Address("127.0.0.1", listening.getsockname()[1])
            assert await prober().probe(order(), address) == (Probed.SILENT, None)

    asyncio.run(work())


def test_a_process_that_speaks_something_else_is_silent() -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH\r\n" * 10)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        found = await prober().probe(order(), Address("127.0.0.1", port))
        assert found == (Probed.SILENT, None)
        server.close()

    asyncio.run(work())
