"""A real `dlogd` has one heap, however many threads allocate."""

import subprocess
import sys
from pathlib import Path

import pytest

from dlog.client.admin import NewTopic
from dlog.client.blocking import Admin, Producer
from dlogd.runtime import allocator
from tests.daemon.process import daemon

HEAP_BYTES = 64 << 20
"""What glibc reserves for the heap of a thread, and what it is aligned to (malloc/arena.c)."""


def heaps_of_threads(pid: int) -> int:
    """Return how many heaps besides the main one a process has: their reservations are in maps."""
    spans: list[tuple[int, int]] = []
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if len(fields) != 5:  # of a file
            continue
        start, end = (int(each, 16) for each in fields[0].split("-"))
        if spans and spans[-1][1] == start and start % HEAP_BYTES:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return sum(start % HEAP_BYTES == 0 and end - start == HEAP_BYTES for start, end in spans)


@pytest.mark.parametrize(("tunables", "is_one"), [("", True), ("glibc.malloc.arena_max=8", False)])
def test_all_threads_share_one_heap(tmp_path: Path, tunables: str, is_one: bool) -> None:
    with daemon(tmp_path) as node:
        node.start(env={"GLIBC_TUNABLES": tunables})
        assert node.process is not None
        bootstrap = node.status()["listeners"][0]
        with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            admin.create_topics([NewTopic(name="t", partitions=12)])
            for number in range(240):
                producer.send("t", b"x" * 1000, partition=number % 12)
            producer.flush()
        # What an operator sets is left alone; it also shows that heaps are recognised here.
        assert (heaps_of_threads(node.process.pid) == 0) is is_one


def test_what_the_environment_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Libc:
        @staticmethod
        def mallopt(number: int, value: int) -> int:
            asked.append((number, value))
            return 1

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _name: Libc)
    assert allocator.tune({"MALLOC_ARENA_MAX": "4"})
    assert asked == [(-3, 4 << 20), (-1, 2 << 20)]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _name: object())
    assert not allocator.tune({})


def test_free_memory_in_the_middle_of_the_heap_is_given_back() -> None:
    """What lies below a block that is in use stays with the process until it is trimmed."""
    code = (
        "import sys; from dlogd.runtime import allocator; allocator.tune({})\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "blocks = [bytearray(100_000) for _ in range(640)]; top = bytearray(100_000)\n"
        "del blocks; before = rss()\n"
        "assert allocator.give_back()\n"
        "print(before - rss())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) > 40 << 20
