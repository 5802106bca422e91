"""Acceptor of listeners for nodes, with a bound on connections without a proof.

The bounds are on unproven connections: a place is given back when the node has proven the secret.
Addresses of voters, and those from which a node has proven itself, have places of their own. A
stranger at any other address cannot take these places, and no flood ends a connection from there.

On loopback every node, and every local program, has the same address. There the bounds are wide
enough that a flood of 900 connections a second leaves a place free at all times.
"""

import ipaddress
from collections.abc import Callable, Iterable

from dlogd.net.acceptor import Acceptor, Admitted
from dlogd.net.connection_admission import (
    Bounds,
    ConnectionAdmission,
    Place,
    Rate,
    Refusal,
    address_of,
)
from dlogd.net.peer_refusals import PeerRefusals

UNPROVEN_S = 2.0
"""A connection that has proven nothing after this time is ended."""
UNPROVEN_LOOPBACK_S = 1.0

BOUNDS = Bounds(
    count_max=64,
    per_address_max=16,
    per_address_rate=Rate(per_s=50, burst=100),
    rate=Rate(per_s=200, burst=400),
    reserved_count=256,
)
BOUNDS_LOOPBACK = Bounds(
    count_max=1024,
    per_address_max=1024,
    per_address_rate=Rate(per_s=2_000, burst=2_000),
    rate=Rate(per_s=4_000, burst=4_000),
    reserved_count=1024,
)
HINTS = {
    reason: "find out which program connects to a listener for nodes, and keep it away"
    for reason in Refusal
}


def is_loopback(host: str) -> bool:
    """Whether a listening address is reached from its own host alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PeerAcceptor:
    """Judges who connects to one listener for nodes. Owner: the listener's thread."""

    def __init__(
        self,
        refusals: PeerRefusals,
        now_us: Callable[[], int],
        make: Callable[[Place[Admitted]], Admitted],
    ) -> None:
        """`make`: the connection's own object, for a connection that is admitted."""
        self.unproven_s = UNPROVEN_S
        self.first: Acceptor[Admitted] = Acceptor(
            refusals.listener,
            BOUNDS,
            now_us,
            make,
            lambda _listener, reason: refusals.count(reason.value),
            HINTS,
        )
        """The first protocol of each accepted connection."""

    @property
    def admission(self) -> ConnectionAdmission[Admitted]:
        """Who is there."""
        return self.first.admission

    def listen_at(self, host: str) -> None:
        """Choose the bounds for the address that is listened on."""
        if is_loopback(host):
            self.admission.reconfigure(BOUNDS_LOOPBACK)
            self.unproven_s = UNPROVEN_LOOPBACK_S

    def set_known(self, hosts: Iterable[str]) -> None:
        """Reserve places for the addresses of nodes; names of hosts are learned from proofs."""
        self.admission.set_known(address_of(each) for each in hosts)
