"""Refused connections between nodes: counts by reason, few log lines.

A stranger may be refused thousands of times a second. Each refusal is counted. The log has one line
a minute for each address and reason. Takes the time, reads no clock. Owner: the listener's thread.
"""

import enum
import logging

from dlogd.net.connection_admission import RefusalLines

log = logging.getLogger(__name__)

DETAIL_CHARACTERS_MAX = 200


class Reason(enum.StrEnum):
    """Why a connection between nodes was refused; the value is the label of the metric."""

    MALFORMED = "malformed"
    """The peer does not speak the protocol."""
    VERSION = "version"
    """The peer speaks a version of the protocol that this node does not answer."""
    CLUSTER = "wrong_cluster"
    """The peer is of another cluster."""
    IDENTITY = "wrong_node"
    """The peer is not the node that was wanted, or wants another one."""
    PROOF = "wrong_proof"
    """The peer does not know the secret of the cluster."""
    SILENT = "no_proof"
    """The peer proved nothing in time."""


class PeerRefusals:
    """What was refused on one listener since the process began."""

    def __init__(self, listener: str) -> None:
        self.counts: dict[str, int] = {}
        """By reason."""
        self.listener = listener
        self._lines: dict[str, RefusalLines] = {}

    def count(self, reason: str) -> None:
        """Count a refusal that is logged elsewhere."""
        self.counts[reason] = self.counts.get(reason, 0) + 1

    def on_refused(self, reason: str, host: str, now_us: int, detail: str = "") -> None:
        """Count a refusal; `detail` is for the log line and may hold what the peer sent."""
        self.count(reason)
        lines = self._lines.setdefault(reason, RefusalLines())
        address, count = lines.count(host, now_us)
        level = logging.WARNING if count else logging.DEBUG
        log.log(
            level,
            "Refused connection between nodes listener=%s address=%s reason=%s count=%d detail=%r",
            self.listener,
            address,
            reason,
            max(count, 1),
            detail[:DETAIL_CHARACTERS_MAX],
        )
