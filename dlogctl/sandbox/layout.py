"""Layout of a sandbox: folders, configurations, the state file.

    DIR/sandbox.json          what runs; replaced atomically whenever that changes
    DIR/control.sock          the supervisor listens here for `restart`
    DIR/secret, raft-ports    of several nodes: what they share, and where they meet; kept
    DIR/node-N/dlog.yaml      generated at every start of the sandbox
    DIR/node-N/dlogd.log      everything that the daemon says
    DIR/node-N/data/          its data directory; kept

Called by `dlogctl.commands.sandbox` and `dlogctl.sandbox.supervisor`.
"""

import json
import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dlogctl.sandbox.folders import make_folder, read_secret, replace_file

HOST = "127.0.0.1"
STATE_FILE = "sandbox.json"
CONTROL_SOCKET = "control.sock"
SECRET_FILE = "secret"
RAFT_PORTS_FILE = "raft-ports"
OWN_NAMES = (STATE_FILE, CONTROL_SOCKET, SECRET_FILE, RAFT_PORTS_FILE, "node-*")
"""What a sandbox keeps in its directory."""
VOTERS_MAX = 5
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_MIN = 10_000
PORT_ATTEMPTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """Folder, port and files of one node."""

    node: int
    folder: Path
    port: int
    raft_ports: tuple[int, ...] = ()
    """Of all nodes, where they keep the metadata together; empty when the node is alone."""

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
            # All clients of a sandbox share one address.
            "connections.per_ip.max": "10000",
            "connections.per_ip.rate": "1000",
            **self._cluster_values(),
            **overrides,
        }
        lines = "".join(f"{name}: {value}\n" for name, value in values.items())
        return "# Written by dlogctl sandbox at each start; use --config-override.\n" + lines

    @property
    def secret_path(self) -> Path:
        """The secret that all nodes of the sandbox share."""
        return self.folder.parent / SECRET_FILE

    def _cluster_values(self) -> dict[str, str]:
        if not self.raft_ports:
            return {}
        controllers = [f"{node}@{HOST}:{port}" for node, port in enumerate(self.raft_ports, 1)]
        voters = controllers[: len(controllers) - (len(controllers) + 1) % 2][:VOTERS_MAX]
        own = f"{HOST}:{self.raft_ports[self.node - 1]}"
        return {
            "cluster.id": "sandbox",
            # One each: so that what racks change can be tried out.
            "node.rack": f"rack-{self.node}",
            "cluster.secret.file": json.dumps(str(self.secret_path)),
            "controllers": json.dumps(voters),
            "metadata.listener": own,
            "internal.listener": f"{HOST}:0",
        }

    def write_config(self, overrides: Mapping[str, str]) -> str:
        """Write the configuration and return its text; raise FolderError."""
        text = self.config_text(overrides)
        make_folder(self.folder)
        make_folder(self.folder / "data")
        if self.raft_ports and not read_secret(self.secret_path):
            replace_file(self.secret_path, secrets.token_hex(32) + "\n")
        replace_file(self.config_path, text)
        return text


def plan_nodes(
    directory: Path, ports: Sequence[int], raft_ports: Sequence[int] = ()
) -> list[NodeLayout]:
    """Return the layout of one node per port, numbered from 1."""
    return [
        NodeLayout(
            node=number,
            folder=directory / f"node-{number}",
            port=port,
            raft_ports=tuple(raft_ports),
        )
        for number, port in enumerate(ports, 1)
    ]


def known_raft_ports(directory: Path, count: int) -> list[int]:
    """Return where the nodes keep the metadata together: what was chosen at the first start.

    The voters remember their addresses, so these ports stay.
    """
    path = directory / RAFT_PORTS_FILE
    try:
        known = [int(each) for each in path.read_text(encoding="ascii").split()]
    except FileNotFoundError:
        known = []
    fresh = free_ports(max(0, count - len(known)))
    return (known + fresh)[:count]


def save_raft_ports(directory: Path, ports: Sequence[int]) -> None:
    """Remember the ports for the next start."""
    text = " ".join(map(str, ports))
    replace_file(directory / RAFT_PORTS_FILE, text + "\n")


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
        replace_file(directory / STATE_FILE, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> "SandboxState":
        """Read the state file; raise FileNotFoundError where no sandbox runs."""
        entry = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
        return cls(pid=entry["pid"], nodes=tuple(NodeState(**node) for node in entry["nodes"]))
