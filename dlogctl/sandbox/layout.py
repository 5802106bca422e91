"""Where a sandbox keeps what, and what it tells others: folders, configurations, the state file.

    DIR/sandbox.json          what runs; replaced atomically whenever that changes
    DIR/control.sock          the supervisor listens here for `restart`
    DIR/node-N/dlog.yaml      generated at every start of the sandbox
    DIR/node-N/dlogd.log      everything that the daemon says
    DIR/node-N/data/          its data directory; kept

Called by `dlogctl.commands.sandbox` and `dlogctl.sandbox.supervisor`.
"""

import json
import os
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HOST = "127.0.0.1"
STATE_FILE = "sandbox.json"
CONTROL_SOCKET = "control.sock"
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_MIN = 10_000
PORT_ATTEMPTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """Folder, port and files of one node."""

    node: int
    folder: Path
    port: int

    @property
    def config_path(self) -> Path:
        """The generated configuration."""
        return self.folder / "dlog.yaml"

    @property
    def log_path(self) -> Path:
        """What the daemon says."""
        return self.folder / "dlogd.log"

    def config_text(self, overrides: Mapping[str, str]) -> str:
        """Return the configuration; overrides win over what is generated."""
        values = {
            "node.id": str(self.node),
            "listeners": f'["{HOST}:{self.port}"]',
            "http.address": f"{HOST}:0",
            "data.directories": f"[{json.dumps(str(self.folder / 'data'))}]",
            "log.format": "text",
            **overrides,
        }
        lines = "".join(f"{name}: {value}\n" for name, value in values.items())
        return "# Written by dlogctl sandbox at each start; use --config-override.\n" + lines

    def write_config(self, overrides: Mapping[str, str]) -> str:
        """Write the configuration and return its text."""
        text = self.config_text(overrides)
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(text, encoding="utf-8")
        return text


def plan_nodes(directory: Path, ports: Sequence[int]) -> list[NodeLayout]:
    """Return the layout of one node per port, numbered from 1."""
    return [
        NodeLayout(node=number, folder=directory / f"node-{number}", port=port)
        for number, port in enumerate(ports, 1)
    ]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now.

    They lie below those that the system gives to whoever connects or binds to port 0, where there
    are any: what is free would be taken by others before a daemon starts, or while it is restarted.
    """
    sockets = [_bind_somewhere() for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _bind_somewhere() -> socket.socket:
    try:
        given_from = int(EPHEMERAL_PORTS.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        given_from = 0
    if given_from > PORT_MIN:
        for _ in range(PORT_ATTEMPTS):
            try:
                return socket.create_server((HOST, random.randrange(PORT_MIN, given_from)))
            except OSError:
                continue
    return socket.create_server((HOST, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node as it runs; `pid` is 0 while it does not."""

    node: int
    pid: int
    bootstrap: str
    http: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxState:
    """What the state file holds."""

    pid: int
    nodes: tuple[NodeState, ...]

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, for clients."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def pids(self) -> str:
        """`1:PID,2:PID`."""
        return ",".join(f"{node.node}:{node.pid}" for node in self.nodes)

    def save(self, directory: Path) -> None:
        """Replace the state file."""
        fresh = directory / f"{STATE_FILE}.new"
        fresh.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        os.replace(fresh, directory / STATE_FILE)

    @classmethod
    def load(cls, directory: Path) -> "SandboxState":
        """Read the state file; raise FileNotFoundError where no sandbox runs."""
        entry = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
        return cls(pid=entry["pid"], nodes=tuple(NodeState(**node) for node in entry["nodes"]))
