"""Three Raft nodes as processes, killed at random with -9 while clients propose.

Nothing that was acknowledged is lost or done twice, and all images are equal in the end.
`DLOG_KILL_ROUNDS` sets how many kills there are.
"""

import asyncio
import contextlib
import os
import random
import sys
from pathlib import Path

from bench.peers.server import free_port

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("DLOG_KILL_ROUNDS", "12"))


class _Node:
    """One node, started again after each kill."""

    def __init__(self, node_id: int, directory: Path, ports: list[int]) -> None:
        self.node_id = node_id
        self.directory = directory
        self.ports = ports
        self.lines: list[str] = []
        self.process: asyncio.subprocess.Process | None = None
        self.reader: asyncio.Task[None] | None = None
        self.heard = asyncio.Event()
        directory.mkdir()

    async def start(self) -> None:
        ports = ",".join(map(str, self.ports))
        arguments = (str(self.node_id), str(self.directory), ports)
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.crash.raft_node", *arguments),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.reader = asyncio.create_task(self._read(self.process))
        await self.wait_for("ready")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode().strip():
            self.lines.append(line)
            self.heard.set()

    async def wait_for(self, begin: str) -> str:
        async with asyncio.timeout(60):
            seen = 0
            while True:
                for line in self.lines[seen:]:
                    if line.startswith(begin):
                        self.lines.remove(line)
                        return line
                self.heard.clear()
                await self.heard.wait()

    def tell(self, line: str) -> None:
        stdin = None if self.process is None else self.process.stdin
        if stdin is not None and not stdin.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                stdin.write(f"{line}\n".encode())

    async def kill(self) -> None:
        assert self.process is not None and self.reader is not None
        self.process.kill()
        await self.process.wait()
        await self.reader


async def _propose(nodes: list[_Node], rng: random.Random, stop: asyncio.Event) -> None:
    number = 1
    while not stop.is_set():
        for _ in range(5):
            rng.choice(nodes).tell(f"add {number}")
            number += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.01)


async def _chaos(path: Path) -> None:
    rng = random.Random(5)
    ports = [free_port() for _ in range(3)]
    nodes = [_Node(n, path / str(n), ports) for n in (1, 2, 3)]
    await asyncio.gather(*(node.start() for node in nodes))
    stop = asyncio.Event()
    client = asyncio.create_task(_propose(nodes, rng, stop))
    for _ in range(ROUNDS):
        await asyncio.sleep(rng.random() * 1.5)
        victims = rng.sample(nodes, rng.choice((1, 1, 2, 3)))
        await asyncio.gather(*(node.kill() for node in victims))
        await asyncio.gather(*(node.start() for node in victims))
    stop.set()
    await client
    ends = await _ends(nodes)
    while len(set(ends)) > 1:
        # Proposals of before were still on their way; there are no new ones.
        before, ends = ends, await _ends(nodes)
        assert before != ends, "the images stay different"
    assert ends[0].split()[1] == "Applied", ends
    _judge([line for node in nodes for line in node.lines], int(ends[0].split()[3]))
    for node in nodes:
        await node.kill()


async def _ends(nodes: list[_Node]) -> list[str]:
    ends = []
    for node in nodes:
        node.tell("end")
        ends.append(await node.wait_for("end"))
    return ends


def _judge(lines: list[str], allocated: int) -> None:
    assert not [line for line in lines if line.startswith("failed")]
    applied = [line.split() for line in lines if line.startswith("applied")]
    values = [int(value) for _, _, value in applied]
    assert len(values) > 10 * ROUNDS
    assert len(set(values)) == len(values), "two commands were given one value"
    assert max(values) < allocated, "an acknowledged command is gone"
    unknown = sum(line.startswith("unknown") for line in lines)
    print(f"kills={ROUNDS} applied={len(values)} unknown={unknown} allocated={allocated}")


def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path) -> None:
    asyncio.run(_chaos(tmp_path))
