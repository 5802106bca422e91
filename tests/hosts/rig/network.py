"""The network of a rig: one namespace for the controller, one for each host, joined by a bridge.

The controller's namespace has no route to anywhere but the hosts.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.hosts.rig.commands import run

BRIDGE = "rigbr"
NAMESPACES = Path("/run/netns")


def _ip(lines: Sequence[str], namespace: str | None = None) -> None:
    """Run some commands of ip(8)."""
    inside = [] if namespace is None else ["-n", namespace]
    run(["ip", *inside, "-batch", "-"], said="\n".join(lines) + "\n")


class Network:
    """The wires of one rig. Life: `make`, then `add` for each host, then `remove`."""

    def __init__(self, name: str, net: str) -> None:
        self.name = name
        self._net = net

    @property
    def path(self) -> Path:
        """The controller's namespace."""
        return NAMESPACES / self.name

    def path_of(self, number: int) -> Path:
        """Return the namespace of a host."""
        return NAMESPACES / f"{self.name}-h{number}"

    def address(self, number: int) -> str:
        """Return the address of a host."""
        return f"{self._net}.{10 + number}"

    def make(self) -> None:
        """Make the controller's namespace and the bridge in it."""
        _ip([f"netns add {self.name}"])
        _ip(
            [
                "link set lo up",
                f"link add {BRIDGE} type bridge forward_delay 0 stp_state 0",
                f"addr add {self._net}.1/24 dev {BRIDGE}",
                f"link set {BRIDGE} up",
            ],
            self.name,
        )

    def add(self, number: int) -> None:
        """Make the namespace of a host, with its cable to the bridge."""
        name = self.path_of(number).name
        _ip([f"netns add {name}"])
        _ip(
            [
                f"link add p-h{number} type veth peer name host0 netns {name}",
                f"link set p-h{number} master {BRIDGE} up",
            ],
            self.name,
        )
        _ip(
            [
                "link set lo up",
                f"addr add {self.address(number)}/24 dev host0",
                "link set host0 up",
            ],
            name,
        )

    def connect(self, number: int, connected: bool) -> None:
        """Plug the cable of a host in or pull it; nothing that is cut off gets an answer."""
        _ip([f"link set p-h{number} {'up' if connected else 'down'}"], self.name)

    def remove(self) -> None:
        """Remove every namespace of the rig, and with them the links."""
        for path in sorted(NAMESPACES.glob(f"{self.name}-h[0-9]")):
            run(["ip", "netns", "del", path.name])
        if self.path.exists():
            run(["ip", "netns", "del", self.name])
