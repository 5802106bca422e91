"""Every client rides over failovers at its defaults, and its caller hears of none.

All at once against one cluster of three nodes: the leader of some partitions of each client is
killed with SIGKILL, and started again when all have written on; then the next one. DLOG_FAILOVERS
says how often (`make failovers`: 10), DLOG_FAILOVER_SERVER=kafka against what.
"""

import os
from collections.abc import Iterator

import pytest

from tests.behaviour.clusters import CLUSTERS, TestedCluster
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
from tests.clients.failovers.play import Result, pause, play, stop, table
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
STOPPED_S_MAX = 15.0  # a lease of 3 s, and what a loaded machine adds
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestedCluster]:
    """Three nodes."""
    tested = CLUSTERS[SERVER](tmp_path_factory.mktemp(SERVER))
    try:
        tested.start()
        yield tested
        print(tested.last_words)
    finally:
        tested.close()


@pytest.fixture(scope="module")
def results(cluster: TestedCluster) -> dict[str, Result]:
    """What became of each client."""
    found, _ = play(cluster, kinds(), ROUNDS)
    print(f"\n{table(found)}")
    return {each.name: each for each in found}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_and_nobody_hears_of_it(name: str, results: dict[str, Result]) -> None:
    if name not in results:
        pytest.skip("java or maven is missing; as root: apt-get install openjdk-17-jdk-headless")
    result = results[name]
    assert result.errors == []
    assert result.breaches == []
    assert result.failovers == ROUNDS


def test_own_clients_do_not_wait_for_a_leader_that_is_stopped(cluster: TestedCluster) -> None:
    """Its connections live, and their requests have 30 s: others are asked meanwhile."""
    found, _ = play(cluster, OWN[:2], 1, strike=stop)
    print(f"\n{table(found)}")
    for result in found:
        assert result.errors == []
        assert result.breaches == []
        assert result.failovers == 1
        assert result.waits is not None
        assert result.waits.longest_ack_s < STOPPED_S_MAX


def test_nobody_hears_of_a_leader_that_stood_still(cluster: TestedCluster) -> None:
    """Longer than its lease (H11): others lead when it goes on, and refuses what waited for it. So
    clients that wait for 30 or 60 s before they give up a connection need not.
    """
    found, pauses = play(cluster, kinds(), 1, strike=pause)
    print(f"\n{table(found)}")
    for result in found:
        assert result.errors == [], result.name
        assert result.breaches == [], result.name
        assert result.failovers == 1
    assert all(each.acked_after_s > 0 for each in pauses)
