"""A Raft node as a process: reads commands on standard input, answers on standard output.

    python -m tests.crash.raft_node NODE_ID DIRECTORY PORT[,PORT...]

`add N` proposes; the answer is `applied N VALUE`, `refused N` or `unknown N`. `end` waits for a
barrier and answers with the version and the next producer id.
"""

import asyncio
import sys
from uuid import UUID

from dlog.types import NodeId
from dlogd.metadata.commands.codec import AllocateProducerIds, RegisterNode
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.thread import ThreadedRaftStore
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state.image import Applied, Refused
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.randomness import system_randomness
from dlogd.storage.io.posix import PosixDirectory

CLOCK = SystemClock()
CLIENT = NodeId(7)


def soon(seconds: int) -> int:
    """Return a deadline."""
    return CLOCK.now_ms() + seconds * 1000


async def add(store: ThreadedRaftStore, number: int) -> str:
    """Propose a command whose id is `number`."""
    node = store.image.nodes.get(CLIENT)
    if node is None:
        register = RegisterNode(
            command_id=UUID(int=1 << 100),
            cluster_id="c",
            node_id=CLIENT,
            directory_ids=(),
            addresses=(),
            rack=None,
            version="1",
        )
        await store.propose(register, soon(5))
        return f"refused {number}"
    command = AllocateProducerIds(
        command_id=UUID(int=number), node_id=CLIENT, node_epoch=node.node_epoch, count=1
    )
    outcome = await store.propose(command, soon(5))
    if isinstance(outcome, Applied):
        return f"applied {number} {outcome.value}"
    return f"refused {number}" if isinstance(outcome, Refused) else f"unknown {number}"


async def main(node_id: int, directory: str, ports: list[int]) -> None:
    """Serve until standard input ends."""
    voters = Voters.of(
        Voter(node_id=n, host="127.0.0.1", port=port) for n, port in enumerate(ports, 1)
    )
    config = RaftConfig(
        node_id=node_id,
        cluster="c",
        secret=b"a secret for processes",
        controllers=voters,
        host="127.0.0.1",
        port=ports[node_id - 1],
        log_bytes_max=20_000,
        entries_kept=10,
    )
    store = await ThreadedRaftStore.open(
        PosixDirectory(directory),
        config,
        clock=CLOCK,
        randomness=system_randomness(),
        on_failed=lambda error: print(f"failed {error!r}", flush=True),
    )
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    running: set[asyncio.Task[None]] = set()

    async def answer(number: int) -> None:
        print(await add(store, number), flush=True)

    while line := (await reader.readline()).decode():
        words = line.split()
        if words[0] == "add":
            task = loop.create_task(answer(int(words[1])))
            running.add(task)
            task.add_done_callback(running.discard)
        elif words[0] == "end":
            outcome = await store.barrier(soon(20))
            image = store.image
            kind = type(outcome).__name__
            print(f"end {kind} {image.version} {image.producer_id_next}", flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3].split(",")]))
