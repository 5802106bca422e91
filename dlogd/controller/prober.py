"""Prober of suspected processes.

A connection that the host refuses says that nothing listens there any more: the process has ended,
for it listens as long as it may hold a lease. Silence says nothing. A firewall between nodes must
therefore drop and not reject: docs/decisions/0022-leases.md.
"""

import asyncio
from collections.abc import Callable

from dlog.errors import ConnectFailedError, ProtocolError, TransportError
from dlog.transport import Address, ConnectionOptions
from dlogd.controller.leases import Probed, ProbeOrder
from dlogd.internal import messages
from dlogd.internal.messages import Probe
from dlogd.internal.node_channel import Dialler


class Prober:
    """Sends probes, each on a connection of its own."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        probe: Callable[[], Probe],
        *,
        timeout_s: float,
        options: ConnectionOptions,
        dialler: Dialler | None = None,
    ) -> None:
        self._probe = probe
        self._timeout_s = timeout_s
        self._options = options
        self._dialler = dialler or Dialler(loop)

    async def probe(self, order: ProbeOrder, address: Address) -> tuple[Probed, int | None]:
        """Return what became of it and, with an answer, the life that answered."""
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._dialler.connect(address, self._options)
                try:
                    payload = await connection.call(
                        lambda correlation_id: messages.encode_probe(self._probe(), correlation_id)
                    )
                finally:
                    connection.close()
            answer = messages.decode_probe_answer(payload)
        except ConnectFailedError as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            return (Probed.REFUSED if refused else Probed.SILENT), None
        except (TimeoutError, TransportError, ProtocolError):
            return Probed.SILENT, None
        if answer.error_code != messages.NONE or answer.node_id != order.node_id:
            return Probed.SILENT, None  # somebody else is there; that is no proof
        return Probed.ANSWERED, answer.node_epoch
