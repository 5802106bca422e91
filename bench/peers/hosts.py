"""Hosts of their own in the small: network namespaces on one bridge, to be cut off and healed.

Each has two links: one to the other hosts, and one on which tests and clients reach it whatever is
cut between hosts. Nothing that is cut is answered, not even by a reset: as when a cable is pulled.
Needs root and the programs ip and nsenter. The cluster tests use it, too.
"""

import fcntl
import os
import subprocess
from pathlib import Path
from typing import NamedTuple, Self

from bench.peers.server import StartError

HOSTS_MAX = 5


class Place(NamedTuple):
    """What tells some hosts from others on the same machine."""

    name: str
    letter: str
    """In the names of their namespaces and links."""
    wire: int
    """The third byte of their addresses on the bridge between them."""
    outside: int
    """The same of the first one's link to the outside; the others' follow."""


TESTS = Place("test", "t", 7, 11)
DLOG, KAFKA = Place("dlog", "o", 8, 21), Place("kafka", "k", 9, 31)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


class Hosts:
    """Some hosts, numbered from 1. Life: a `with` block; one at a time in a place of a machine.

    Entering raises StartError without root, and waits for who is in the place.
    """

    def __init__(self, count: int, place: Place = TESTS) -> None:
        self.numbers = range(1, count + 1)
        self._place = place
        self._bridge = f"dlog-{place.letter}br"
        # Of the machine, whatever TMPDIR says.
        self._lock_path = Path(f"/run/dlog-{place.name}-hosts.lock")

    def name(self, number: int) -> str:
        """Return the namespace of a host."""
        return f"dlog-{self._place.letter}{number}"

    def _link(self, kind: str, number: int) -> str:
        """Return our end of a link: `g` to the other hosts, `m` to the outside."""
        return f"dlog-{self._place.letter}{kind}{number}"

    def address(self, number: int) -> str:
        """Return where other hosts reach it."""
        return f"10.213.{self._place.wire}.{number}"

    def outside(self, number: int) -> str:
        """Return where tests and clients reach it."""
        return f"10.213.{self._place.outside + number - 1}.2"

    def _gate(self, number: int) -> str:
        """Return where tests and clients are, for a host."""
        return f"10.213.{self._place.outside + number - 1}.1"

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise StartError("hosts of their own need root")
        self._lock = self._lock_path.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._remove()
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for number in self.numbers:
            self._add(number)
        self.heal()
        return self

    def _add(self, number: int) -> None:
        name = self.name(number)
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        links = (("g", f"{self.address(number)}/24"), ("m", f"{self.outside(number)}/30"))
        for link, address in links:
            out, inside = self._link(link, number), f"{link}0"
            _ip("link", "add", out, "type", "veth", "peer", "name", inside, "netns", name)
            _ip("link", "set", out, "up")
            _ip("-n", name, "addr", "add", address, "dev", inside)
            _ip("-n", name, "link", "set", inside, "up")
        _ip("link", "set", self._link("g", number), "master", self._bridge)
        _ip("addr", "add", f"{self._gate(number)}/30", "dev", self._link("m", number))

    def inside(self, number: int) -> tuple[str, ...]:
        """Return what the command line of a process on a host begins with.

        Not `ip netns exec`: that holds on to all that is mounted, also to what other tests unmount.
        """
        return ("nsenter", f"--net=/run/netns/{self.name(number)}")

    def cut(self, number: int) -> None:
        """Pull the cable of a host to the others; tests and clients reach it."""
        _ip("link", "set", self._link("g", number), "down")

    def lose(self, number: int) -> None:
        """Pull the cable, and let nothing that the host says come out to anybody else either."""
        _ip("-n", self.name(number), "route", "replace", "blackhole", f"{self._gate(number)}/32")
        self.cut(number)

    def cut_way(self, number: int, other: int) -> None:
        """Lose all that a host sends to another one, but not what comes back."""
        for address in (self.address(other), self.outside(other)):
            _ip("-n", self.name(number), "route", "replace", "blackhole", f"{address}/32")

    def cut_pair(self, number: int, other: int) -> None:
        """Lose all between two hosts."""
        self.cut_way(number, other)
        self.cut_way(other, number)

    def heal(self, number: int | None = None) -> None:
        """Put everything back, or what has been done to one host."""
        for each in self.numbers if number is None else (number,):
            _ip("link", "set", self._link("g", each), "up")
            self._unblock(each, self._gate(each))
            for other in self.numbers:
                if other != each:
                    self._reach(each, other)

    def _reach(self, number: int, other: int) -> None:
        """Let a host reach another one, at both of its addresses by the cable between them."""
        name, address = self.name(number), self.address(other)
        self._unblock(number, address)
        _ip("-n", name, "route", "replace", f"{self.outside(other)}/32", "via", address)

    def _unblock(self, number: int, address: str) -> None:
        subprocess.run(
            ("ip", "-n", self.name(number), "route", "del", "blackhole", f"{address}/32"),
            capture_output=True,
            check=False,
        )

    def _remove(self) -> None:
        commands = [("link", "del", self._bridge)]
        for number in range(1, HOSTS_MAX + 1):
            # The links first: those of a deleted namespace go some time later.
            commands += [("link", "del", self._link(link, number)) for link in "gm"]
            commands.append(("netns", "del", self.name(number)))
        for command in commands:
            subprocess.run(("ip", *command), capture_output=True, check=False)

    def __exit__(self, *_: object) -> None:
        self._remove()
        self._lock.close()
