"""Floods of connections at the Raft ports of two nodes, while the third one starts again.

The strangers come from the nodes' own address, loopback: no bound per address tells them apart.
"""

import asyncio
import socket
import time
from contextlib import suppress

from tests.attacks.load import Stage, beside
from tests.attacks.scene import HARMS, Scene
from tests.attacks.strangers import hello

HELD = 400
"""Connections that a flood keeps open at each port, the newest ones."""
WIDE_S = 30.0
"""A short form asserts no more of the time of a start than that it does not wait for the end."""


async def flood(
    stage: Stage, ports: list[int], per_s: int, burst: int, cluster_id: str
) -> dict[str, int]:
    """Connect at a rate in bursts, a quarter of them with a hello; return how many it were."""
    loop = asyncio.get_running_loop()
    data = hello(cluster_id)
    held: dict[int, list[socket.socket]] = {port: [] for port in ports}
    counts = {"opened": 0, "refused": 0}

    async def one(port: int, number: int) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, ("127.0.0.1", port))
            if number % 4 == 0:
                await loop.sock_sendall(sock, data)
            counts["opened"] += 1
            held[port].append(sock)
        except OSError:
            counts["refused"] += 1
            sock.close()
        while len(held[port]) > HELD:
            held[port].pop(0).close()

    stage.ready()
    begun_s, number = loop.time(), 0
    while not stage.ended.is_set():
        await asyncio.gather(*(one(port, number + k) for port in ports for k in range(burst)))
        number += burst
        with suppress(TimeoutError):
            async with asyncio.timeout_at(begun_s + number / per_s):
                await stage.ended.wait()
    for socks in held.values():
        for sock in socks:
            sock.close()
    return counts


def measure(scene: Scene, per_s: int, burst: int) -> None:
    """Restart a node without and with the flood; bound what the flood may cost."""

    async def work() -> None:
        async with scene.victims() as victims:
            cluster = victims.cluster
            controller = await cluster.controller()
            restarted = next(each for each in cluster.nodes if each is not controller)
            others = [each for each in cluster.nodes if each is not restarted]
            status = await restarted.status()
            assert status is not None

            async def restart_s() -> float:
                assert await restarted.stop() == 0
                begun_s = time.monotonic()
                await restarted.start()
                await cluster.until_well(patience_s=WIDE_S)
                return time.monotonic() - begun_s

            before_s = await restart_s()
            victims.mark()
            ports = [each.raft_port for each in others]
            async with beside(flood, ports, per_s, burst, status["cluster_id"]) as load:
                during_s = await restart_s()
                await asyncio.sleep(scene.pick(short=1.0, long=15.0))  # the flood goes on
                harms = [
                    line
                    for each, mark in zip(cluster.nodes, victims.marks, strict=True)
                    if each is not restarted
                    for line in each.log[mark:].splitlines()
                    # The node that is stopped in order gives its lease up by itself.
                    if any(event in line for event in HARMS) and "=surrendered" not in line
                ]
                print(*harms, sep="\n")
        scene.bound("connections", load.value["opened"], at_least=per_s)
        scene.bound("leases and leaders lost", len(harms), at_most=0)
        scene.bound(
            f"ready ({before_s:.3g} s without)",
            during_s,
            "s",
            at_most=2 * before_s,
            short=WIDE_S,
            is_timing=True,
        )

    scene.run(work)


def test_connections_at_the_raft_ports_while_a_node_starts(scene: Scene) -> None:
    measure(scene, scene.pick(short=300, long=1_000), burst=5)


def test_bursts_at_the_raft_ports_while_a_node_starts(scene: Scene) -> None:
    measure(scene, scene.pick(short=300, long=600), burst=200)
