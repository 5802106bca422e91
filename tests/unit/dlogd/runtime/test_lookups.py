"""Host names that nobody answers for."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlogd.runtime.name_resolver import share_lookups


class Resolver:
    """The system's, but `hangs.invalid` is not answered before `answered`."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.asked: list[str] = []
        self._real = socket.getaddrinfo

    def __call__(self, host: str, *rest: object) -> object:
        self.asked.append(host)
        if host == "hangs.invalid":
            self.answered.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._real(host, *rest)  # type: ignore[arg-type]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made
    made.answered.set()


def test_a_name_that_hangs_leaves_threads_for_others(resolver: Resolver) -> None:
    async def dial(host: str, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, 1)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(3))
        share_lookups(loop)
        for _ in range(8):
            with pytest.raises(TimeoutError):
                await dial("hangs.invalid", 0.01)
        with pytest.raises(ConnectionRefusedError):
            await dial("localhost", 10)
        assert resolver.asked.count("hangs.invalid") == 1
        resolver.answered.set()
        with pytest.raises(socket.gaierror):
            await dial("hangs.invalid", 10)

    asyncio.run(scenario())


def test_who_asks_later_asks_anew(resolver: Resolver) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        share_lookups(loop)
        both = await asyncio.gather(*[loop.getaddrinfo("localhost", 1) for _ in range(2)])
        assert both[0] == both[1] != []
        assert resolver.asked == ["localhost"]
        await loop.getaddrinfo("localhost", 1)
        assert resolver.asked == ["localhost"] * 2

    asyncio.run(scenario())
