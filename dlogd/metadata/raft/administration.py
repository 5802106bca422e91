"""Operators' requests on their way to the leader and back. Owner: the Raft loop."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from dlog.errors import NotControllerError, WireError
from dlogd.metadata.raft.membership import AdminRequest, Membership, Operation
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.peers import Send
from dlogd.metadata.raft.proposals import Outbox
from dlogd.metadata.state.image import Applied, Refused

_TEXT_LENGTH_MAX = 500


class Administration:
    """Carries requests out when this node leads, else sends them to the leader, once."""

    def __init__(
        self,
        core: Any,
        membership: Membership,
        outbox: Outbox,
        *,
        send: Send,
        on_changed: Callable[[], None],
        version: Callable[[], int],
    ) -> None:
        self._core = core
        self._membership = membership
        self._outbox = outbox
        self._send = send
        self._on_changed = on_changed
        self._version = version

    def ask(self, request: AdminRequest) -> None:
        """Begin a request of this node; the outbox settles it."""
        core = self._core
        leader_id = core.leader_id
        if core.is_leader:
            code, text = self._carry_out(request)
            self._settle(request.request_id, code, text, request.operation)
        elif leader_id is None or core.seat(leader_id) is None:
            refused = Refused.of(NotControllerError("The quorum has no leader that can be reached"))
            self._outbox.settle(request.request_id.bytes, refused)
        else:
            self._send(
                leader_id,
                {
                    "type": "admin",
                    "request_id": request.request_id,
                    "operation": str(request.operation),
                    "node_id": request.node_id,
                    "host": request.host,
                    "port": request.port,
                },
            )

    def on_request(self, node_id: int, message: Message) -> None:
        """Carry out another node's request and answer."""
        fields = {name: value for name, value in message.items() if name != "type"}
        code, text = self._carry_out(AdminRequest(**fields))
        reply = {"request_id": message["request_id"], "code": code, "text": text}
        self._send(node_id, {"type": "admin_reply"} | reply)

    def on_reply(self, message: Message) -> None:
        """Take the leader's answer."""
        text = message["text"]
        self._settle(message["request_id"], message["code"], text, text)

    def _carry_out(self, request: AdminRequest) -> tuple[int, str]:
        """Return code and reason of a refusal, or 0 and what was begun."""
        try:
            self._membership.carry_out(request)
        except WireError as error:
            return error.code, str(error)[:_TEXT_LENGTH_MAX]
        self._on_changed()
        return 0, str(request.operation)

    def _settle(self, request_id: UUID, code: int, text: str, operation: str) -> None:
        """A change of the voters that was begun is settled when its entry is applied."""
        if code:
            self._outbox.settle(request_id.bytes, Refused(code=code, message=text))
        elif operation == Operation.TRANSFER:
            self._outbox.settle(request_id.bytes, Applied(version=self._version()))
