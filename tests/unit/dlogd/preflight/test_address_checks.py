"""Addresses before a start: of this host, free, or held by the daemon that runs."""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dlogd.config.schema import Config, build
from dlogd.config.units import Address, NodeAt
from dlogd.preflight import address_checks, processes
from dlogd.preflight.address_checks import problems, wanted
from dlogd.preflight.findings import Weight

ELSEWHERE = "192.0.2.1"
"""TEST-NET-1 (RFC 5737): nobody's address."""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def config(**values: Any) -> Config:
    named = {key.replace("__", "."): value for key, value in values.items()}
    loopback = Address("127.0.0.1", 0)
    return build({"listeners": (loopback,), "http.address": loopback, **named})


def told(made: Config, process: int | None = None) -> list[tuple[Weight, str]]:
    return [(each.weight, each.text) for each in problems(made, process)]


def test_free_addresses_are_fine() -> None:
    assert told(config()) == []
    assert told(config(listeners=(Address("0.0.0.0", 0), Address("::", 0)))) == []


def test_a_taken_port_is_told_unless_the_daemon_has_it(taken: int) -> None:
    made = config(listeners=(Address("127.0.0.1", taken),))
    ((weight, text),) = told(made)
    assert weight is Weight.LATER and f"ss -ltnp 'sport = {taken}'" in text
    assert told(made, os.getpid()) == []
    ((weight, _),) = told(made, 1)  # it runs, but it is another one that listens there
    assert weight is Weight.LATER


def test_a_port_that_a_wildcard_has_is_taken() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        ((weight, _),) = told(config(http__address=Address("127.0.0.1", port)))
    assert weight is Weight.LATER


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (Address(ELSEWHERE, 9092), "is no address of this host (see ip addr)"),
        (Address("nowhere.invalid", 9092), "nowhere.invalid is not known here"),
    ],
)
def test_an_address_of_others_is_told(address: Address, words: str) -> None:
    ((weight, text),) = told(config(listeners=(address,)))
    assert weight is Weight.NEVER and words in text and text.startswith("listeners: ")


def test_a_low_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, _place: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(address_checks.socket.socket, "bind", refuse)
    ((weight, text),) = told(build({"http.address": Address("127.0.0.1", 80)}))[-1:]
    assert weight is Weight.NEVER and "port 80 belongs to root" in text


def test_a_node_of_a_cluster_listens_to_the_others_too() -> None:
    here, there = Address("127.0.0.1", 9393), Address(ELSEWHERE, 9393)
    alone = [key for key, _ in wanted(config())]
    assert alone == ["listeners", "http.address"]
    voters = (NodeAt(1, here), NodeAt(2, there))
    in_cluster = config(node__id=1, controllers=voters)
    assert [key for key, _ in wanted(in_cluster)] == [*alone, "internal.listener", "controllers"]
    apart = config(node__id=1, controllers=voters, metadata__listener=Address("127.0.0.1", 0))
    assert [key for key, _ in wanted(apart)][-1] == "metadata.listener"
    observer = config(node__id=3, controllers=voters, metadata__listener=here)
    assert ("metadata.listener", here) in wanted(observer)


def test_the_own_entry_of_controllers_must_lead_here() -> None:
    free = Address("127.0.0.1", 0)
    values = {"node__id": 1, "metadata__listener": free, "internal__listener": free}
    ((weight, text),) = told(config(controllers=(NodeAt(1, Address(ELSEWHERE, 1)),), **values))
    assert weight is Weight.NEVER and "the entry of this node, does not lead to this host" in text
    assert told(config(controllers=(NodeAt(1, Address("127.0.0.1", 1)),), **values)) == []


def test_who_listens_is_known(taken: int) -> None:
    assert processes.listens(os.getpid(), taken)
    assert not processes.listens(os.getpid(), 1)
    assert not processes.listens(2**22 + 1, taken)  # no process has that id (proc(5), pid_max)
