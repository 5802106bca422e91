"""Real nodes of one cluster as processes: killed, paused, started again, asked, waited for.

Every address is fixed, so that a node can be asked while it waits for the others. All waiting is
for what a process says (its end, READY, an answer of its pages), never for time alone.
"""

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dlogctl.sandbox.layout import HOST, NodeLayout
from tests.cluster.hosts import Hosts
from tests.cluster.ports import claim_ports
from tests.daemon.process import environment

PATIENCE_S = 60.0
LOOK_S = 0.05  # other processes tell nobody when something changes: they are asked so often
PAGE_TIMEOUT_S = 5.0
PORTS_PER_NODE = 4  # clients, operators, metadata, other nodes
LOG_SHOWN_BYTES = 3000
FATAL = ("Traceback", " CRITICAL ", "Task failed", "unexpected error")
# Not by `preexec_fn`: this process has threads, and what they hold at a fork is held for ever.
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


async def get_page(address: str, path: str) -> tuple[int, bytes]:
    """Return status and body of an operators' page; raise OSError or TimeoutError."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(PAGE_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    if not head:
        raise ConnectionResetError("no answer")
    return int(head.split()[1]), body


class Node:
    """One node: its processes come and go; addresses, data and log stay."""

    def __init__(
        self,
        layout: NodeLayout,
        ports: Sequence[int],
        overrides: Mapping[str, str],
        hosts: Hosts | None = None,
    ) -> None:
        self.layout = layout
        self.node_id = layout.node
        self._inside = () if hosts is None else hosts.inside(self.node_id)
        outside = HOST if hosts is None else hosts.outside(self.node_id)
        self.host = HOST if hosts is None else hosts.address(self.node_id)
        self.client_address = f"{outside}:{ports[0]}"
        self.http_address = f"{outside}:{ports[1]}"
        self.raft_port = ports[2]
        self.internal_port = ports[3]
        self.process: asyncio.subprocess.Process | None = None
        self.lives = 0
        self.clock_shift_s = 0.0
        """How wrong the wall clock of the next process is."""
        self.log_bytes = 0
        """How large the log of its metadata gets before there is a snapshot; 0: as usual."""
        self.tree: Path | None = None
        """The checkout whose software the next process runs; None: this one."""
        self.images: Path | None = None
        """Where the next process writes down what becomes of its image (`image_journal`)."""
        self.write_config(overrides)

    def write_config(self, overrides: Mapping[str, str]) -> None:
        """Write the configuration that the next process reads."""
        self.layout.write_config(
            {
                "listeners": json.dumps([self.client_address]),
                "http.address": self.http_address,
                "internal.listener": f"{self.host}:{self.internal_port}",
                "log.level": "debug",  # with tracebacks
                **overrides,
            }
        )

    @property
    def data(self) -> Path:
        """The data directory, with the metadata."""
        return self.layout.folder / "data"

    @property
    def log(self) -> str:
        """Everything that all its processes have said."""
        try:
            return self.layout.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start the process; whoever needs it to serve waits for that."""
        assert not self.runs
        self.lives += 1
        with self.layout.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._inside,
                *DIE_WITH_PARENT,
                *self._program(),
                *("--config", str(self.layout.config_path)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment({"PYTHONPATH": str(self.tree)} if self.tree else {}),
                cwd=self.tree,
                start_new_session=True,
            )

    def _program(self) -> list[str]:
        if not self.clock_shift_s and not self.log_bytes and self.images is None:
            return [sys.executable, "-m", "dlogd"]
        odd = [str(self.clock_shift_s), str(self.log_bytes), str(self.images or "")]
        return [sys.executable, "-m", "tests.cluster.odd_dlogd", *odd]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self.runs and self.process is not None:
            self.process.send_signal(number)

    async def ended(self, patience_s: float = PATIENCE_S) -> int:
        """Return the exit code when the process has ended."""
        assert self.process is not None
        try:
            return await asyncio.wait_for(self.process.wait(), patience_s)
        except TimeoutError:
            raise AssertionError(f"node {self.node_id} does not end:\n{self.tail()}") from None

    async def kill(self) -> None:
        """End the process at once."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            await self.process.wait()

    async def stop(self, patience_s: float = PATIENCE_S) -> int:
        """End the process in good order; return its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended(patience_s)

    async def page(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a page; raise OSError or TimeoutError."""
        return await get_page(self.http_address, path)

    async def status(self) -> dict[str, Any] | None:
        """Return /status, None while nobody answers."""
        try:
            found: dict[str, Any] = json.loads((await self.page("/status"))[1])
        except (OSError, TimeoutError):
            return None
        return found

    async def image(self) -> dict[str, Any]:
        """Return version and digest of the image; raise OSError or TimeoutError."""
        found: dict[str, Any] = json.loads((await self.page("/metadata"))[1])
        return found

    def tail(self) -> str:
        """Return the end of the log."""
        return f"--- node {self.node_id}\n{self.log[-LOG_SHOWN_BYTES:]}"

    def complaints(self) -> list[str]:
        """Return the lines of the log that must not be there."""
        lines = self.log.splitlines()
        return [line for line in lines if any(word in line for word in FATAL)]

    def said(self, pattern: str) -> list[str]:
        """Return what the first group of a pattern was, in each line that has it."""
        return re.findall(pattern, self.log)


class Cluster:
    """Several nodes with one secret."""

    def __init__(
        self,
        directory: Path,
        count: int,
        overrides: Mapping[str, str] | None = None,
        *,
        voters: int | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        ports = claim_ports(count * PORTS_PER_NODE)
        each = [ports[n * PORTS_PER_NODE : (n + 1) * PORTS_PER_NODE] for n in range(count)]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "secret").touch(mode=0o600)
        (directory / "secret").write_text(secrets.token_hex(32) + "\n")
        self.directory = directory
        self.hosts = hosts
        self.overrides = {
            "disk.reserve.bytes": "0",
            "preallocate.bytes": "0",
            **(overrides or {}),
        }
        self._voters = voters if voters is not None else count - 1 + count % 2
        self._raft = {number: ports[2] for number, ports in enumerate(each, 1)}
        self.nodes = [
            Node(
                NodeLayout(
                    node=number,
                    folder=directory / f"node-{number}",
                    port=ports[0],
                    raft_ports=tuple(self._raft.values()),
                ),
                ports,
                self._overrides_of(number),
                hosts,
            )
            for number, ports in enumerate(each, 1)
        ]

    @property
    def voter_ids(self) -> list[int]:
        """The nodes that keep the metadata, as configured."""
        return [node for node in self._raft if node <= self._voters]

    def _host(self, number: int) -> str:
        return HOST if self.hosts is None else self.hosts.address(number)

    def _overrides_of(self, number: int) -> dict[str, str]:
        voters = [
            f"{node}@{self._host(node)}:{port}"
            for node, port in self._raft.items()
            if node <= self._voters
        ]
        return {
            **self.overrides,
            "controllers": json.dumps(voters),
            "metadata.listener": f"{self._host(number)}:{self._raft[number]}",
        }

    def overrides_of(self, node: Node) -> dict[str, str]:
        """Return what the node's configuration has beside what its layout generates."""
        return self._overrides_of(node.node_id)

    @property
    def bootstrap(self) -> list[str]:
        """Where clients begin."""
        return [node.client_address for node in self.nodes]

    def node(self, node_id: int) -> Node:
        """Return a node by its id."""
        return self.nodes[node_id - 1]

    async def start(self, nodes: Iterable[Node] | None = None) -> None:
        """Start some nodes, or all, and wait until the whole cluster is well."""
        await asyncio.gather(*(each.start() for each in (nodes or self.nodes)))
        await self.until_well()

    async def statuses(self, nodes: Iterable[Node] | None = None) -> list[dict[str, Any] | None]:
        """Return what each node says of itself."""
        return await asyncio.gather(*(each.status() for each in (nodes or self.nodes)))

    async def until(
        self,
        is_so: Callable[[list[dict[str, Any]]], bool],
        nodes: Sequence[Node] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> list[dict[str, Any]]:
        """Return all statuses when all nodes answer and `is_so`; else fail with the logs' ends."""
        asked = list(nodes or self.nodes)
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            found = await self.statuses(asked)
            known = [each for each in found if each is not None]
            if len(known) == len(asked) and is_so(known):
                return known
            if asyncio.get_running_loop().time() > deadline:
                tails = "\n".join(each.tail() for each in asked)
                raise AssertionError(f"not so after {patience_s} s: {found}\n{tails}")
            await asyncio.sleep(LOOK_S)

    async def until_well(
        self, nodes: Sequence[Node] | None = None, patience_s: float = PATIENCE_S
    ) -> list[dict[str, Any]]:
        """Return when some nodes, or all, serve under one controller, with leases, unfenced."""
        ids = [each.node_id for each in (nodes or self.nodes)]

        def is_well(statuses: list[dict[str, Any]]) -> bool:
            controllers = {each["controller"] for each in statuses}
            return (
                len(controllers) == 1
                and controllers <= set(ids)
                and all(each["state"] == "active" for each in statuses)
                and all(each["lease"]["valid"] for each in statuses)
                and not any(set(each["fenced_nodes"]) & set(ids) for each in statuses)
            )

        return await self.until(is_well, nodes, patience_s)

    async def controller(self) -> Node | None:
        """Return the running node that most nodes take for the controller."""
        votes: dict[int, int] = {}
        for each in await self.statuses(node for node in self.nodes if node.runs):
            if each is not None:
                votes[each["controller"]] = votes.get(each["controller"], 0) + 1
        known = {node: count for node, count in votes.items() if node > 0}
        if not known:
            return None
        found = self.node(max(known, key=lambda node: (known[node], -node)))
        return found if found.runs else None

    async def until_equal(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Return the image that all nodes have: equal in version and content."""
        deadline = asyncio.get_running_loop().time() + patience_s
        images: list[dict[str, Any]] = []
        while asyncio.get_running_loop().time() < deadline:
            try:
                images = list(await asyncio.gather(*(each.image() for each in self.nodes)))
            except (OSError, TimeoutError):
                continue
            for one in images:
                for other in images:
                    if one["version"] == other["version"]:
                        assert one["digest"] == other["digest"], f"images differ: {images}"
            if len({each["version"] for each in images}) == 1:
                return images[0]
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"the images stay at different versions: {images}")

    def complaints(
        self, nodes: Iterable[Node] | None = None, allowed: Sequence[str] = ()
    ) -> list[str]:
        """Return the lines of logs that hold a traceback, or tell of a part that died."""
        return [
            f"node {n.node_id}: {line}"
            for n in nodes or self.nodes
            for line in n.complaints()
            if not any(word in line for word in allowed)
        ]

    def expect_no_complaints(self, nodes: Iterable[Node] | None = None) -> None:
        """Fail when there are complaints."""
        found = self.complaints(nodes)
        assert not found, "\n".join(found[:20])

    async def close(self) -> None:
        """End whatever runs, at once."""
        for each in self.nodes:
            each.signal(signal.SIGCONT)
        await asyncio.gather(*(each.kill() for each in self.nodes))


@asynccontextmanager
async def cluster_of(
    directory: Path,
    count: int = 3,
    overrides: Mapping[str, str] | None = None,
    *,
    start: bool = True,
    voters: int | None = None,
    hosts: Hosts | None = None,
) -> AsyncIterator[Cluster]:
    """Give a cluster, started unless told otherwise; end its processes."""
    cluster = Cluster(directory, count, overrides, voters=voters, hosts=hosts)
    try:
        if start:
            await cluster.start()
        yield cluster
    finally:
        await cluster.close()


def is_port_open(port: int) -> bool:
    """Return whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
