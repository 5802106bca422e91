"""Requests of a hundred thousand names each, from many connections at once."""

import asyncio
import time
from contextlib import suppress

from tests.attacks.frames import NEIGHBOUR, Frames
from tests.attacks.honest import appender, timed
from tests.attacks.load import Stage, beside
from tests.attacks.scene import Scene, Victims

NAMES = 99_000
IN_FLIGHT = 4
FIRST_ANSWER_S = 45.0
"""A slow machine needs a while for the first answer of 99,000 names."""
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0"


def metadata_frame(count: int) -> bytes:
    """Return a Metadata request, version 1, for `count` topics that do not exist."""
    names = (f"{a}{b}{c}".encode() for a in ALPHABET for b in ALPHABET for c in ALPHABET)
    entries = b"".join(b"\0\3" + next(names) for _ in range(count))
    body = b"\0\3\0\1\0\0\0\7\xff\xff" + count.to_bytes(4, "big") + entries
    return len(body).to_bytes(4, "big") + body


async def ask_for_many(stage: Stage, address: tuple[str, int], count: int, names: int) -> int:
    """Keep IN_FLIGHT requests under way on each of `count` connections; return the answers read."""
    frame = metadata_frame(names)
    answers = 0
    is_answered = asyncio.Event()

    async def client() -> None:
        nonlocal answers
        try:
            reader, writer = await asyncio.open_connection(*address)
        except OSError:
            return
        try:
            for _ in range(IN_FLIGHT):
                writer.write(frame)
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
                answers += 1
                is_answered.set()
                writer.write(frame)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    clients = [asyncio.ensure_future(client()) for _ in range(count)]
    stage.ready()
    await stage.ended.wait()
    with suppress(TimeoutError):
        await asyncio.wait_for(is_answered.wait(), FIRST_ANSWER_S)
    for each in clients:
        each.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return answers


async def until_back(victims: Victims, bytes_max: int, seconds: float) -> tuple[int, float]:
    """Return memory and entries once they are back.

    Memory has `seconds`; entries have a minute, in which a slow machine makes the last answers.
    """
    begun = time.monotonic()
    while True:
        left = victims.resident_bytes()
        entries = await victims.metric("dlog_server_inflight_entries")
        passed = time.monotonic() - begun
        is_back = not entries and (left <= bytes_max or passed > seconds)
        if is_back or passed > 60:
            return left, entries
        await asyncio.sleep(0.2)


def test_metadata_of_many_names(scene: Scene) -> None:
    """Metadata requests of 99,000 unknown names, four under way on each connection."""
    seconds, count = scene.pick(short=(3.0, 20), long=(20.0, 60))

    async def work() -> None:
        async with scene.victims(3) as victims, appender(victims) as append:
            honest = await Frames.connect(victims, NEIGHBOUR)
            quiet = await append(2.0)
            memory = victims.resident_bytes()
            victims.mark()
            peak = memory
            load = beside(ask_for_many, victims.address, count, NAMES)
            async with victims.stalls() as stalls, load as result:

                async def watch() -> None:
                    nonlocal peak
                    while True:
                        peak = max(peak, victims.resident_bytes())
                        await asyncio.sleep(0.05)

                watching = asyncio.ensure_future(watch())
                asking = asyncio.ensure_future(timed(lambda: honest.ask(100), seconds))
                during = await append(seconds)
                asked = await asking
                watching.cancel()
            honest.close()
            patience_s = scene.pick(short=10.0, long=60.0)
            left, kept = await until_back(victims, memory + (50 << 20), patience_s)
            harms = victims.harms()
        mib = 1 << 20
        scene.bound("answers that the attackers got", result.value, at_least=1)
        scene.bound("leases and leaders lost", harms, at_most=0)
        scene.bound("loop stall", stalls[0] * 1000, "ms", at_most=50, short=500, is_timing=True)
        scene.bound("resident memory", (peak - memory) / mib, "MiB", at_most=200)
        scene.bound("after they left", (left - memory) / mib, "MiB", at_most=50, is_timing=True)
        scene.bound("entries still counted", kept, at_most=0)
        scene.bound("failures of honest clients", during.failures + asked.failures, at_most=0)
        scene.bound(
            f"append p99 ({quiet.p99_ms:.3g} ms when quiet)",
            during.p99_ms,
            "ms",
            at_most=None,
        )
        scene.bound("ApiVersions p99", asked.p99_ms, "ms", at_most=None)

    scene.run(work)
