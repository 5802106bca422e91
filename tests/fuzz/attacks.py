"""What hostile and broken clients do to a listener, one coroutine for each way."""

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from tests.fuzz.frames import Frames

API_VERSIONS_0 = struct.pack(">ihhih", 10, 18, 0, 4711, -1)
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CONNECTION_COUNT = 100


class Attacker:
    """Attacks one address, randomly by `seed`; counts its connections by their own address."""

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self.address = address
        self.rng = random.Random(seed)
        self.frames = Frames(self.rng)
        self.opened: Counter[str] = Counter()
        self.answer_count = 0

    async def open(self) -> socket.socket:
        """Connect."""
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.address)
        self.opened["{}:{}".format(*sock.getsockname())] += 1
        return sock

    async def send(self, sock: socket.socket, data: bytes) -> None:
        """Send all, unless the node closes or stops reading."""
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(sock, data), 0.5)

    async def drain(self, sock: socket.socket, seconds: float) -> int:
        """Read until the end or for so long; return how many bytes came."""
        loop = asyncio.get_running_loop()
        count = 0
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                while data := await loop.sock_recv(sock, 1 << 16):
                    count += len(data)
        self.answer_count += count > 0
        return count

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return every attack."""
        return [
            self.frames_in_a_row,
            self.one_frame_each,
            self.half_closed,
            self.never_reading,
            self.cut_anywhere,
            self.storm,
            self.garbage_behind_good,
            self.large_frames,
        ]

    async def frames_in_a_row(self) -> None:
        """Many frames in one go."""
        for _ in range(10):
            with await self.open() as sock:
                await self.send(sock, b"".join(self.frames.any() for _ in range(30)))
                await self.drain(sock, 0.05)

    async def one_frame_each(self) -> None:
        """One frame per connection, so that none hides behind another."""
        for _ in range(CONNECTION_COUNT):
            with await self.open() as sock:
                await self.send(sock, self.frames.any())
                await self.drain(sock, 0.005)

    async def half_closed(self) -> None:
        """An end of file behind whole or cut requests, while answers may be owed."""
        for _ in range(CONNECTION_COUNT):
            with await self.open() as sock:
                data = self.frames.well_formed()
                await self.send(sock, data[: self.rng.choice((len(data), len(data) // 2))])
                with contextlib.suppress(OSError):
                    sock.shutdown(self.rng.choice((socket.SHUT_WR, socket.SHUT_RD)))
                await self.drain(sock, 0.01)

    async def never_reading(self) -> None:
        """Requests without end, and nobody takes the answers."""
        socks = [await self.open() for _ in range(5)]
        for sock in socks:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await self.send(sock, b"".join(self.frames.well_formed() for _ in range(100)))
        await asyncio.sleep(0.2)
        for sock in socks:
            sock.close()

    async def cut_anywhere(self) -> None:
        """Whole requests in pieces of any size, some a byte at a time."""
        for _ in range(10):
            with await self.open() as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                data = b"".join(self.frames.well_formed() for _ in range(5))
                position = 0
                while position < min(len(data), 2000):
                    step = self.rng.choice((1, 1, 2, 3, 7, 500))
                    await self.send(sock, data[position : position + step])
                    position += step
                await self.drain(sock, 0.01)

    async def storm(self) -> None:
        """Connections that come and go, with and without a reset."""
        for _ in range(CONNECTION_COUNT * 4):
            sock = await self.open()
            if self.rng.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            if self.rng.random() < 0.3:
                await self.send(sock, self.frames.any())
            sock.close()

    async def garbage_behind_good(self) -> None:
        """The good requests in front are answered, in order."""
        loop = asyncio.get_running_loop()
        for _ in range(20):
            with await self.open() as sock:
                await self.send(sock, API_VERSIONS_0 * 3 + b"\xff\xff\xff\xff" + self.frames.any())
                received = b""
                with contextlib.suppress(ConnectionResetError):
                    while data := await asyncio.wait_for(loop.sock_recv(sock, 1 << 16), 5):
                        received += data
                assert received.count(struct.pack(">i", 4711)) == 3, received

    async def large_frames(self) -> None:
        """Frames that promise much: some send all of it, some a part, some drip."""
        socks = [await self.open() for _ in range(8)]
        for sock in socks:
            size = self.rng.choice((100_000, 5 << 20, 60 << 20, 90 << 20))
            await self.send(sock, size.to_bytes(4, "big") + bytes(self.rng.randrange(1 << 20)))
        await asyncio.sleep(0.05)
        for sock in socks:
            sock.close()

    async def slow_loris(self, stop: asyncio.Event) -> None:
        """Drip one byte after the other on many connections until told to stop."""
        socks = [await self.open() for _ in range(30)]
        data = [self.frames.well_formed() * 50 for _ in socks]
        number = 0
        while not stop.is_set():
            for sock, bytes_of in zip(socks, data, strict=True):
                await self.send(sock, bytes_of[number % len(bytes_of) :][:1])
            number += 1
            await asyncio.sleep(0.01)
        for sock in socks:
            sock.close()
