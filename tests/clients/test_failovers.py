"""Every client rides over failovers at its defaults, and its caller hears of none.

All at once against one cluster of three nodes: the leader of some partitions of each client is
killed with SIGKILL, and started again when all have written on; then the next one. DLOG_FAILOVERS
says how often (`make failovers`: 10), DLOG_FAILOVER_SERVER=kafka against what.
"""

import os
from collections.abc import Iterator

import pytest

from tests.behaviour.clusters import CLUSTERS
from tests.clients.failovers.java import Java3Load, Java4Load
from tests.clients.failovers.libraries import (
    AiokafkaLoad,
    BlockingDlogLoad,
    DlogLoad,
    KafkaPythonLoad,
    LibrdkafkaLoad,
    PlainAiokafkaLoad,
    PlainLibrdkafkaLoad,
)
from tests.clients.failovers.load import Load
from tests.clients.failovers.play import Result, play, table
from tests.clients.tools import MissingError, program

ROUNDS = int(os.environ.get("DLOG_FAILOVERS", "3"))
SERVER = os.environ.get("DLOG_FAILOVER_SERVER", "dlogd")
OWN: tuple[type[Load], ...] = (
    DlogLoad,
    BlockingDlogLoad,
    LibrdkafkaLoad,
    PlainLibrdkafkaLoad,
    KafkaPythonLoad,
    AiokafkaLoad,
    PlainAiokafkaLoad,
)
JAVA: tuple[type[Load], ...] = (Java3Load, Java4Load)
NAMES = [kind.name for kind in (*OWN, *JAVA)]


def kinds() -> tuple[type[Load], ...]:
    """Return the clients that are here."""
    try:
        program("java", "openjdk-17-jdk-headless")
        program("mvn", "maven")
    except MissingError:
        return OWN
    return (*OWN, *JAVA)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Result]]:
    """What became of each client."""
    cluster = CLUSTERS[SERVER](tmp_path_factory.mktemp(SERVER))
    try:
        cluster.start()
        found, _ = play(cluster, kinds(), ROUNDS, print)
        print(f"\n{table(found)}")
        yield {each.name: each for each in found}
        print(cluster.last_words)
    finally:
        cluster.close()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_and_nobody_hears_of_it(name: str, results: dict[str, Result]) -> None:
    if name not in results:
        pytest.skip("java or maven is missing; as root: apt-get install openjdk-17-jdk-headless")
    result = results[name]
    assert result.errors == []
    assert result.breaches == []
    assert result.failovers == ROUNDS
