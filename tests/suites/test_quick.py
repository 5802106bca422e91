"""A few minutes of a foreign suite: kafka-python's tests of its producer pass on dlog."""

from pathlib import Path

from bench.peers.dlog import DlogServer
from tests.suites import outcomes, running
from tests.suites.outcomes import PASSED

ONLY = "test_producer_integration and not transactional"


def test_kafka_pythons_producer(tmp_path: Path) -> None:
    node = DlogServer(tmp_path / "node", overrides={"topic.auto_create": "true"})
    node.start()
    try:
        found, _ = running.kafka_python(node.bootstrap, tmp_path, ONLY)
    finally:
        node.stop()
    known = next(
        each.outcomes
        for each in outcomes.load()
        if each.suite == "kafka-python" and each.server.startswith("dlog")
    )
    assert len(found) >= 5
    assert {name for name, each in found.items() if each != PASSED} == {
        name for name in found if known[name] != PASSED
    }
