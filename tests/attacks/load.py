"""Loads of an attack in a process of their own, so that they do not slow down what is measured.

A load is a coroutine function of a module; it is called with a `Stage` and plain values. It opens
what it needs, calls `ready`, and works until `ended`.
"""

import asyncio
import multiprocessing
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

READY_S = 120.0
"""A load stands after this time at the latest."""
END_S = 60.0
SOURCES = 100
"""Addresses of the loopback range that a crowd comes from: no bound per address is the subject."""

Work = Callable[..., Awaitable[Any]]


class Stage:
    """The load's side of the pipe to the test."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.ended = asyncio.Event()
        """The test has measured enough."""
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._on_word)

    def _on_word(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        self.ended.set()

    def ready(self) -> None:
        """Say that the load stands."""
        self._pipe.send("ready")


class Result:
    """What a load returned; None until it has ended."""

    value: Any = None


def source_of(number: int) -> tuple[str, int]:
    """Return a local address for connection `number`: a crowd comes from many hosts."""
    return f"127.0.1.{1 + number % SOURCES}", 0


def _main(pipe: Connection, work: Work, arguments: tuple[Any, ...]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def run() -> Any:
        return await work(Stage(pipe), *arguments)

    pipe.send(asyncio.run(run()))


async def _word(pipe: Connection, process: Any, patience_s: float) -> Any:
    """Return the next word of the load; fail when none comes."""
    has_word = await asyncio.to_thread(pipe.poll, patience_s)
    assert has_word, f"the load said nothing for {patience_s} s, exit code {process.exitcode}"
    return pipe.recv()


@asynccontextmanager
async def beside(work: Work, *arguments: Any) -> AsyncIterator[Result]:
    """Run a load while the block runs; the block begins when the load stands."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_main, args=(other, work, arguments), daemon=True)
    process.start()
    other.close()
    result = Result()
    try:
        assert await _word(pipe, process, READY_S) == "ready"
        yield result
        pipe.send("end")
        result.value = await _word(pipe, process, END_S)
    finally:
        process.kill()
        await asyncio.to_thread(process.join)
        pipe.close()
