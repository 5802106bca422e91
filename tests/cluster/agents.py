"""Real Serf agents as processes, on loopback or each in a network namespace of its own."""

import asyncio
import ctypes
import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dlog.transport import Address
from dlog.types import NodeId
from dlogd.membership.members import Member, Membership, MemberState, encode_tags
from dlogd.membership.serf import SerfMembership, SerfSettings
from dlogd.metadata.state.image import NodeAddress

SERF = shutil.which("serf")
needs_serf = pytest.mark.skipif(SERF is None, reason="serf is not installed (Debian: serf)")
AUTH_KEY = "92edb99b0910ce97100d317530a6175f3c9a7e1bd84c6f8091b2a3e4c5d6f70a"
ENCRYPT_KEY = "cg8StVXbQJ0gPvMd9o7yrg=="
PATIENCE_S = 40.0
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """Return a port of loopback that is free for TCP and UDP at this moment."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port: int = tcp.getsockname()[1]
            try:
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class SerfAgent:
    """One agent; its processes come and go, name, ports and snapshot stay."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        host: str = "127.0.0.1",
        rpc_host: str = "127.0.0.1",
        namespace: str | None = None,
        join: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.gossip = f"{host}:{free_port()}"
        self.rpc = Address(rpc_host, free_port())
        self.namespace = namespace
        self.process: subprocess.Popen[bytes] | None = None
        self._config = folder / "agent.json"
        self._log = folder / "agent.log"
        self._settings = {
            "node_name": name,
            "bind": self.gossip,
            "rpc_addr": str(self.rpc),
            "rpc_auth": AUTH_KEY,
            "encrypt_key": ENCRYPT_KEY,
            "profile": "local",
            "snapshot_path": str(folder / "snapshot"),
            "leave_on_terminate": True,
            "skip_leave_on_interrupt": True,
            "start_join": list(join),
            "disable_coordinates": True,
        }

    def join(self, gossip: str) -> None:
        """Look for another agent at the next start, until it is there."""
        self._settings |= {"retry_join": [gossip], "retry_interval": "1s"}

    def start(self) -> None:
        """Start the process; whoever needs it to listen has to wait."""
        self._config.write_text(json.dumps(self._settings))
        # Not `ip netns exec`: that holds on to all that is mounted, also to what others unmount.
        inside = ["nsenter", f"--net=/run/netns/{self.namespace}"] if self.namespace else []
        assert SERF is not None
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*inside, SERF, "agent", "-config-file", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )

    def forget(self) -> None:
        """Lose the snapshot, as a host that is installed anew."""
        Path(str(self._settings["snapshot_path"])).unlink(missing_ok=True)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process at once, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def leave(self) -> None:
        """End the process in good order."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        self.process.wait(PATIENCE_S)

    @property
    def log(self) -> str:
        """What the processes said."""
        return self._log.read_text(errors="replace")


class Seat:
    """One node's membership and the agent beside it."""

    def __init__(self, node_id: int, agent: SerfAgent, settings: SerfSettings | None = None):
        self.node_id = NodeId(node_id)
        self.agent = agent
        base = settings or SerfSettings(
            timeout_ms=1500, resync_ms=3000, rejoin_ms=5000, backoff_ms_max=500
        )
        settings = replace(base, address=agent.rpc)
        if settings.auth_key is None:
            settings = replace(settings, auth_key=AUTH_KEY)
        self.membership = SerfMembership(
            settings, loop=asyncio.get_running_loop(), rng=Random(node_id)
        )
        self.seen: list[tuple[Member, ...]] = []
        self._changed = asyncio.Event()
        self.membership.subscribe(self._on_members)

    def _on_members(self, old: tuple[Member, ...], new: tuple[Member, ...]) -> None:
        assert old != new
        assert new == self.membership.members()
        self.seen.append(new)
        self._changed.set()

    def announce(self, rack: str = "r") -> None:
        """Say who the node is."""
        address = NodeAddress(listener="internal", host="127.0.0.1", port=9000 + self.node_id)
        self.membership.announce(
            encode_tags(self.node_id, [address], cluster_id="c", rack=rack, version="1")
        )

    async def start(self) -> None:
        """Announce and start."""
        self.announce()
        await self.membership.start()

    def states(self) -> dict[int, MemberState]:
        """Return the state of every member."""
        return {member.node_id: member.state for member in self.membership.members()}

    async def until(
        self, is_so: Callable[[Membership], bool], patience_s: float = PATIENCE_S
    ) -> None:
        """Return when `is_so`; fail with what is so instead."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while not is_so(self.membership):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise AssertionError(
                    f"node {self.node_id} sees {self.states()}, problem"
                    f" {self.membership.problem!r}; its agent said:\n{self.agent.log[-3000:]}"
                )
            self._changed.clear()
            try:
                # `problem` changes without an event, so look now and then too.
                async with asyncio.timeout(min(left_s, 0.1)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def until_states(self, **states: MemberState) -> None:
        """Return when the members are exactly these: `n1=ALIVE`."""
        wanted = {int(name[1:]): state for name, state in states.items()}
        await self.until(lambda _: self.states() == wanted)
