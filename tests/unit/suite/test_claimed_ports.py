"""A port of a test's node is nobody else's, even while the node is down."""

import subprocess
import sys

import pytest

from tests.cluster import ports
from tests.cluster.ports import claim_ports
from tests.tidy import sources

ROOT = sources.ROOT
OTHER = """
import sys
from tests.cluster import ports
offered = [[int(word) for word in sys.argv[1:]], [1]]
ports.free_ports = lambda count: offered.pop(0)
print(*ports.claim_ports(1))
"""


def offer(monkeypatch: pytest.MonkeyPatch, *rounds: list[int]) -> None:
    left = list(rounds)
    monkeypatch.setattr(ports, "free_ports", lambda _: left.pop(0))


def in_another_process(*offered: int) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", OTHER, *map(str, offered)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [int(word) for word in done.stdout.split()]


def test_another_process_is_not_given_them() -> None:
    mine = claim_ports(2)
    assert len(set(mine)) == 2
    assert in_another_process(*mine) == [1]


def test_a_process_is_not_given_them_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = claim_ports(1)
    offer(monkeypatch, [*mine, 2], [3])
    assert claim_ports(2) == [2, 3]


def test_they_are_free_when_the_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_another_process(4) == [4]
    offer(monkeypatch, [4])
    assert claim_ports(1) == [4]
