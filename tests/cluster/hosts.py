"""Hosts of their own in the small: network namespaces on one bridge, to be cut off and healed.

Each has two links: one to the other hosts, and one on which the tests reach it whatever is cut.
Nothing that is cut is answered, not even by a reset: as when a cable is pulled. Needs root.
"""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

BRIDGE = "dlog-tbr"
HOSTS_MAX = 5
LOCK = Path("/run/dlog-test-hosts.lock")
"""Of the machine, whatever TMPDIR says."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


class Hosts:
    """Some hosts, numbered from 1. Life: a `with` block; one at a time on a machine."""

    def __init__(self, count: int) -> None:
        self.numbers = range(1, count + 1)

    def name(self, number: int) -> str:
        """Return the namespace of a host."""
        return f"dlog-t{number}"

    def address(self, number: int) -> str:
        """Return where other hosts reach it."""
        return f"10.213.7.{number}"

    def outside(self, number: int) -> str:
        """Return where the tests reach it."""
        return f"10.213.{10 + number}.2"

    def __enter__(self) -> "Hosts":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        self._lock = LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._remove()
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("link", "set", BRIDGE, "up")
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
            out, inside = f"dlog-t{link}{number}", f"{link}0"
            _ip("link", "add", out, "type", "veth", "peer", "name", inside, "netns", name)
            _ip("link", "set", out, "up")
            _ip("-n", name, "addr", "add", address, "dev", inside)
            _ip("-n", name, "link", "set", inside, "up")
        _ip("link", "set", f"dlog-tg{number}", "master", BRIDGE)
        _ip("addr", "add", f"10.213.{10 + number}.1/30", "dev", f"dlog-tm{number}")

    def inside(self, number: int) -> tuple[str, ...]:
        """Return what the command line of a process on a host begins with.

        Not `ip netns exec`: that holds on to all that is mounted, also to what other tests unmount.
        """
        return ("nsenter", f"--net=/run/netns/{self.name(number)}")

    def cut(self, number: int) -> None:
        """Pull the cable of a host to the others; the tests reach it."""
        _ip("link", "set", f"dlog-tg{number}", "down")

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
            _ip("link", "set", f"dlog-tg{each}", "up")
            for other in self.numbers:
                if other != each:
                    self._reach(each, other)

    def _reach(self, number: int, other: int) -> None:
        """Let a host reach another one, at both of its addresses by the cable between them."""
        name, address = self.name(number), self.address(other)
        subprocess.run(
            ("ip", "-n", name, "route", "del", "blackhole", f"{address}/32"),
            capture_output=True,
            check=False,
        )
        _ip("-n", name, "route", "replace", f"{self.outside(other)}/32", "via", address)

    def _remove(self) -> None:
        commands = [("link", "del", BRIDGE)]
        for number in range(1, HOSTS_MAX + 1):
            # The links first: those of a deleted namespace go some time later.
            commands += [("link", "del", f"dlog-t{link}{number}") for link in "gm"]
            commands.append(("netns", "del", self.name(number)))
        for command in commands:
            subprocess.run(("ip", *command), capture_output=True, check=False)

    def __exit__(self, *_: object) -> None:
        self._remove()
        self._lock.close()
