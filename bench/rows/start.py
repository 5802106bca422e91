"""How long until a server takes the first record: on an empty folder, and after a crash."""

import struct
import time

from bench.arena import Arena
from bench.load import wire
from bench.peers.server import Server, StartError
from bench.rows.read import PARTITIONS, fill
from bench.rows.row import Numbers, Row, Target

TOPIC = "bench-start"
TIMEOUT_S = 300
TRY_S = 0.002
TOPIC_EXISTS = 36


def _accepted(server: Server) -> bool:
    """Try once to create the topic and to produce one record."""
    try:
        with wire.connect(server.bootstrap) as connection:
            if wire.create_topic(connection, TOPIC, PARTITIONS) not in (0, TOPIC_EXISTS):
                return False
            connection.sendall(wire.produce(TOPIC, 0, wire.batch(1, 100)))
            answer = wire.response(connection)
            (code,) = struct.unpack_from(">h", answer, wire.produce_error_at(TOPIC) - 4)
            return bool(code == 0)
    except (OSError, wire.LoadError, struct.error):
        return False


def _seconds_to_first_produce(server: Server) -> float:
    started = time.perf_counter()
    server.launch()
    while not _accepted(server):
        if time.perf_counter() - started > TIMEOUT_S:
            raise StartError(f"{server.name} took no record in {TIMEOUT_S} s")
        time.sleep(TRY_S)
    return time.perf_counter() - started


class ColdStartRow(Row):
    """From the start of the process on an empty (formatted) folder to the first answer."""

    name = "cold-start"
    title = "cold start to the first accepted produce"
    targets = (Target(metric="seconds", at_most=0.25),)

    def open(self, arena: Arena, contender: str) -> None:
        """Install what is missing; nothing runs between the runs."""
        arena.add(contender).install()

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Start in a folder of its own and kill it."""
        server = arena.add(contender)
        number = len(list(arena.folder.iterdir()))
        server.folder = arena.folder / f"{contender}-{number}"
        server.folder.mkdir()
        server.prepare()
        seconds = _seconds_to_first_produce(server)
        server.kill()
        return {"seconds": seconds}


class RestartRow(Row):
    """From the start of the process to the first answer, after a crash over 5 GB."""

    name = "restart-after-kill"
    title = "restart after `kill -9` with 5 GB to the first accepted produce"
    targets = (Target(metric="seconds", at_most=0.25),)

    def open(self, arena: Arena, contender: str) -> None:
        """Start, fill 5 GB."""
        super().open(arena, contender)
        server = arena.servers[contender]
        with wire.connect(server.bootstrap) as connection:
            wire.create_topic(connection, TOPIC, PARTITIONS)
        time.sleep(1)
        fill(arena, server, TOPIC)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Write a little, kill, start."""
        server = arena.servers[contender]
        where = ("--topic", TOPIC, "--partitions", PARTITIONS, "--connections", 4)
        arena.load("requests", server, *where, "--in-flight", 5, "--requests", 500)
        server.kill()
        return {"seconds": _seconds_to_first_produce(server)}


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [ColdStartRow(), RestartRow()]
