"""Substitutes for pysyncobj's sockets: peers, a wire, no poller."""

from collections.abc import Callable

from dlogd.metadata.raft import pysyncobj_adapter
from dlogd.metadata.raft.messages import Message

Send = Callable[[int, Message], None]


class Peer(pysyncobj_adapter.Node):  # type: ignore[misc]
    """A connected node. The number is its node id, or -1 - node id while it is an observer.

    Numbers hash alike in all processes, so pysyncobj's sets of peers have one order.
    """

    def __str__(self) -> str:
        return str(self.id)

    @property
    def node_id(self) -> int:
        """The node behind the number."""
        number: int = self.id
        return number if number >= 0 else -1 - number


class Wire(pysyncobj_adapter.Transport):  # type: ignore[misc]
    """What pysyncobj sends by."""

    def __init__(self, send: Send) -> None:
        super().__init__(None, None, [])
        self._send_message = send

    def send(self, node: Peer, message: Message) -> bool:
        self._send_message(node.node_id, message)
        return True


class NoPoller:
    """Stands where pysyncobj polls its sockets."""

    def poll(self, timeout: float) -> None:
        """Wait for nothing: the loop waits."""
