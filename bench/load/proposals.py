"""Changes of the metadata by three nodes' own stores, without brokers: latency and rate.

Three processes, each with what a node keeps its metadata by: Raft in its own thread, on real files,
flushed before anything counts. One proposes alone first (on the leader, then on a follower), then
all three at once, so many changes in flight. A change sets one config of one topic out of many.
"""

import argparse
import asyncio
import gc
import importlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from bench.load import latency
from bench.peers.server import HOST, ROOT, free_port
from dlog.types import NodeId, TopicId
from dlogd.metadata.commands.codec import (
    AlterConfigs,
    Command,
    ConfigChange,
    CreateTopic,
    CreateTopics,
    NewTopic,
    Proof,
    RegisterNode,
    UnfenceNode,
)
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.thread import ThreadedRaftStore
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state.image import Applied, NodeAddress
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.randomness import system_randomness
from dlogd.storage.io.posix import PosixDirectory

NODES = 3
REPLICAS = (NodeId(0), NodeId(1), NodeId(2))
TOPICS = 1_000
TIMEOUT_MS = 10_000
SWITCH_INTERVAL_S = 0.0005  # as dlogd has it
GC_THRESHOLDS = (10_000, 20, 50)


class Node:
    """One node's store, and what it is told to do with it. Owner: the loop of its process."""

    def __init__(self, node_id: int, folder: Path, ports: list[int]) -> None:
        self._node_id = node_id
        self._folder = folder
        self._ports = ports
        self._clock = SystemClock()
        # Not the seed of the store, which makes ids too.
        self._rng = random.Random(f"proposals of {node_id}")
        self._store: ThreadedRaftStore | None = None

    @property
    def store(self) -> ThreadedRaftStore:
        """The opened store."""
        assert self._store is not None
        return self._store

    async def open(self) -> None:
        """Begin; the quorum may not be there yet."""
        voters = [
            Voter(node_id=number, host=HOST, port=port) for number, port in enumerate(self._ports)
        ]
        config = RaftConfig(
            node_id=self._node_id,
            cluster="bench",
            secret=b"not a secret, but long enough",
            controllers=Voters.of(voters),
            host=HOST,
            port=self._ports[self._node_id],
        )
        self._store = await ThreadedRaftStore.open(
            PosixDirectory(str(self._folder)),
            config,
            clock=self._clock,
            randomness=system_randomness(),
        )

    async def _propose(self, command: Command) -> None:
        outcome = await self.store.propose(command, self._clock.now_ms() + TIMEOUT_MS)
        if not isinstance(outcome, Applied):
            raise RuntimeError(f"{type(command).__name__}: {outcome}")

    def _id(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)

    async def role(self) -> str:
        """Return what this node is, once the quorum has a leader."""
        while not isinstance(await self.store.barrier(self._clock.now_ms() + 1_000), Applied):
            pass
        return self.store.role

    async def fill(self, topic_count: int = TOPICS) -> None:
        """Register the nodes and create topics in one command."""
        for number in range(NODES):
            await self._propose(
                RegisterNode(
                    command_id=self._id(),
                    cluster_id="bench",
                    node_id=NodeId(number),
                    directory_ids=(self._id(),),
                    addresses=(NodeAddress(listener="clients", host=HOST, port=1),),
                    rack=None,
                    version="1",
                    proof=Proof.NONE,
                )
            )
        for node in self.store.image.nodes.values():
            epoch = node.node_epoch
            await self._propose(
                UnfenceNode(command_id=self._id(), node_id=node.node_id, node_epoch=epoch)
            )
        topics = tuple(
            NewTopic(
                name=f"topic-{number:04}",
                topic_id=self._id(),
                assignments=(REPLICAS,),
            )
            for number in range(topic_count)
        )
        if topics:
            await self._propose(CreateTopics(command_id=self._id(), topics=topics))

    async def create(self, name: str) -> TopicId:
        """Create a topic of one partition with three replicas."""
        topic_id = self._id()
        await self._propose(
            CreateTopic(
                command_id=self._id(), name=name, topic_id=topic_id, assignments=(REPLICAS,)
            )
        )
        return topic_id

    async def configure(self, topic_id: TopicId) -> None:
        """Set a config of a topic to something."""
        value = str(self._rng.randrange(1, 1 << 40))
        await self._propose(
            AlterConfigs(
                command_id=self._id(),
                topic_id=topic_id,
                changes=(ConfigChange(key="retention.ms", value=value),),
            )
        )

    async def propose_for(self, seconds: float, in_flight: int) -> dict[str, Any]:
        """Propose for a while and return the latencies in nanoseconds."""
        await self.role()
        topics = list(self.store.image.topics_by_id)
        found: list[int] = []
        end = time.perf_counter() + seconds

        async def one() -> None:
            while time.perf_counter() < end:
                begin = time.perf_counter_ns()
                await self.configure(self._rng.choice(topics))
                found.append(time.perf_counter_ns() - begin)

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(in_flight)))
        return {"latencies": found, "seconds": time.perf_counter() - began}

    async def cpu(self) -> float:
        """Return the CPU seconds that this process has used."""
        return time.process_time()

    async def serve(self) -> None:
        """Do what standard input says, one JSON list per line, until it ends."""
        loop = asyncio.get_running_loop()
        await self.open()
        actions: dict[str, Callable[..., Awaitable[object]]] = {
            "role": self.role,
            "fill": self.fill,
            "propose": self.propose_for,
            "cpu": self.cpu,
        }
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, *arguments = json.loads(line)
            print(json.dumps(await actions[name](*arguments)), flush=True)
        await self.store.close()


class Child:
    """A node in a process of its own."""

    def __init__(self, node_id: int, folder: Path, ports: list[int]) -> None:
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "bench.load.proposals", "--folder", str(folder)]
        command += ["--node", str(node_id), "--ports", *map(str, ports)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def tell(self, *request: object) -> None:
        """Begin an action."""
        pipe = self._pipe(self._process.stdin)
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()

    def answer(self) -> Any:
        """Return the result of the action that was begun."""
        return json.loads(self._pipe(self._process.stdout).readline())

    def ask(self, *request: object) -> Any:
        """Do something and return its result."""
        self.tell(*request)
        return self.answer()

    def end(self) -> None:
        """End the process."""
        self._pipe(self._process.stdin).close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _measure(children: list[Child], seconds: float, in_flight: int) -> dict[str, float]:
    roles = [child.ask("role") for child in children]
    leader = children[roles.index("leader")]
    follower = children[roles.index("follower")]
    leader.ask("fill")
    for child in children:
        child.ask("propose", 0.5, 8)
    alone = latency.summary(leader.ask("propose", seconds, 1)["latencies"])
    through = latency.summary(follower.ask("propose", seconds, 1)["latencies"])
    before = sum(child.ask("cpu") for child in children)
    for child in children:
        child.tell("propose", seconds, in_flight // len(children))
    together = [child.answer() for child in children]
    cpu_s = sum(child.ask("cpu") for child in children) - before
    every = [each for found in together for each in found["latencies"]]
    crowd = latency.summary(every)
    return {
        "p50_us": alone["p50_us"],
        "p99_us": alone["p99_us"],
        "follower_p50_us": through["p50_us"],
        "proposals_per_s": len(every) / max(found["seconds"] for found in together),
        "cpu_us": cpu_s / len(every) * 1e6,
        "crowd_p50_us": crowd["p50_us"],
        "crowd_p99_us": crowd["p99_us"],
    }


def _run_child(options: argparse.Namespace) -> None:
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    node = Node(options.node, options.folder, options.ports)
    importlib.import_module("uvloop").run(node.serve())


def main() -> int:
    """Run all three nodes and print the result; with `--node` be one of them."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.proposals")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--in-flight", type=int, default=96)
    parser.add_argument("--node", type=int)
    parser.add_argument("--ports", type=int, nargs="*")
    options = parser.parse_args()
    if options.node is not None:
        _run_child(options)
        return 0
    ports = [free_port() for _ in range(NODES)]
    children = [Child(number, options.folder / str(number), ports) for number in range(NODES)]
    try:
        print(json.dumps(_measure(children, options.seconds, options.in_flight)))
    finally:
        for child in children:
            child.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
