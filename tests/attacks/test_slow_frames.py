"""Frames that come slowly or never end, and what they leave to honest frames and to memory."""

import asyncio
import socket
import time

from tests.attacks.frames import ATTACKER, NEIGHBOUR, Frames
from tests.attacks.honest import ANSWER_S, Times, timed
from tests.attacks.load import Stage, beside
from tests.attacks.scene import Scene

ANNOUNCED = (94_371_840).to_bytes(4, "big")
KEPT_BYTES_MAX = 17 * 1024
WIDE_MS = 5_000.0


async def _open(address: tuple[str, int], first: bytes, source: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((source, 0))
    await loop.sock_connect(sock, address)
    try:
        sock.send(first)
    except OSError:
        pass  # closed by the node
    return sock


async def drip(
    stage: Stage,
    address: tuple[str, int],
    count: int,
    first: bytes,
    more: bytes,
    pause_s: float,
    source_count: int,
) -> int:
    """Begin a frame on each connection, then send a little again and again; never end one.

    Returns how many connections are open in the end.
    """
    socks = [
        await _open(address, first, f"127.0.0.{1 + number % source_count}")
        for number in range(count)
    ]
    stage.ready()
    next_s = time.monotonic() + pause_s
    while not stage.ended.is_set():
        await asyncio.sleep(0.2)
        if time.monotonic() < next_s:
            continue
        next_s += pause_s
        for sock in socks:
            try:
                sock.send(more)
            except OSError:
                continue
    open_count = 0
    for sock in socks:
        try:
            open_count += sock.recv(1) != b""
        except BlockingIOError:
            open_count += 1
        except OSError:
            pass
        sock.close()
    return open_count


async def asked(client: Frames, size: int, seconds: float) -> Times:
    return await timed(lambda: client.ask(size), seconds)


def test_slow_large_frames(scene: Scene) -> None:
    """128 connections announce 90 MiB, send 64 KiB and then 4.2 kB a second each."""
    seconds = scene.pick(short=2.0, long=15.0)

    async def work() -> None:
        async with scene.victims(1) as victims:
            clients = {each: await Frames.connect(victims, each) for each in (ATTACKER, NEIGHBOUR)}
            sizes = (300 << 10, 1 << 20)
            quiet = {
                (each, size): await asked(clients[each], size, seconds / 2)
                for each in clients
                for size in sizes
            }
            memory = victims.resident_bytes()
            first = ANNOUNCED + bytes(65_636)
            load = beside(drip, victims.address, 128, first, bytes(4_200), 1.0, 1)
            async with load as result:
                slow = await Frames.connect(victims, ATTACKER)
                slowly = asyncio.ensure_future(slow.ask(1 << 20, 128 << 10))
                during = {
                    (each, size): await asked(clients[each], size, seconds)
                    for each in clients
                    for size in sizes
                }
                grown = victims.resident_bytes() - memory
                await asyncio.wait_for(slowly, ANSWER_S)
                await asyncio.sleep(scene.pick(short=0.0, long=15.0))
            slow.close()
            for client in clients.values():
                client.close()
        scene.bound("slow connections left", result.value, at_most=scene.pick(short=128, long=0))
        scene.bound("resident memory", grown / 2**20, "MiB", at_most=64)
        for (source, size), times in during.items():
            who = "the same address" if source == ATTACKER else "another address"
            before = quiet[source, size].p99_ms
            scene.bound(f"failures, {size >> 10} KiB, {who}", times.failures, at_most=0)
            scene.bound(
                f"p99 of {size >> 10} KiB from {who} ({before:.3g} ms when quiet)",
                times.p99_ms,
                "ms",
                at_most=3 * before,
                short=WIDE_MS,
                is_timing=True,
            )

    scene.run(work)


def test_unfinished_small_frames(scene: Scene) -> None:
    """Each connection sends 60 kB of a frame of 60,100 bytes, then a byte each 14 s."""
    count, sources = scene.pick(short=(1_000, 1), long=(10_000, 20))
    limits = {"connections.max": "20000"}

    async def work() -> None:
        async with scene.victims(1, limits) as victims:
            honest = await Frames.connect(victims, NEIGHBOUR)
            await asked(honest, 300 << 10, 1.0)
            memory = victims.resident_bytes()
            first = (60_100).to_bytes(4, "big") + bytes(59_996)
            load = beside(drip, victims.address, count, first, b"\0", 14.0, sources)
            peak = victims.resident_bytes()
            async with load as result:
                begun = time.monotonic()
                while time.monotonic() < begun + 30:
                    peak = max(peak, victims.resident_bytes())
                    await asyncio.sleep(0.2)
                times = await asked(honest, 300 << 10, 1.0)
            honest.close()
            late = await victims.metric("dlog_server_connections_late_total")
            left = 0.0
            ends = time.monotonic() + scene.pick(short=30, long=60)
            while time.monotonic() < ends:
                left = victims.resident_bytes() - memory
                if left < 50 << 20:
                    break
                await asyncio.sleep(0.5)
        scene.bound("connections left after 30 s", result.value, at_most=0)
        scene.bound("connections closed as too slow", late, at_least=count * 0.9)
        kept = (peak - memory) / count
        scene.bound("kept by a connection", kept, "bytes", at_most=KEPT_BYTES_MAX)
        scene.bound("honest failures", times.failures, at_most=0)
        scene.bound("memory within a minute afterwards", left / 2**20, "MiB", at_most=50)

    scene.run(work)
