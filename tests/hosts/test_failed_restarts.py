"""A node that does not come back: the way back on its host, no other host touched, nobody drained.

The long form.
"""

import json

import pytest

from tests.hosts.appliance.cluster import NEW, OLD, Cluster
from tests.hosts.appliance.forms import long_form
from tests.hosts.appliance.plays import Played

pytestmark = long_form
PATIENCE = ("-e", "dlog_patience=20")
STARTS = {
    "ends": ("raise SystemExit('broken start')", "it ends at its start"),
    "hangs": ("__import__('time').sleep(3600)", "it hangs in its start"),
}


def only_the_first(cluster: Cluster, played: Played, starts: list[int]) -> None:
    """Check that only the first host in the play's order was touched, and that the play says so."""
    assert played.code != 0
    first = int(played.order[0].removeprefix("h"))
    assert f"Node {first} on h{first} was not restarted well, and no other host is touched." in (
        played.words
    )
    assert "Mend it, then go on: ansible-playbook" in played.words
    found = cluster.starts()
    for host in cluster.hosts:
        if host.number != first:
            assert found[host.number - 1] == starts[host.number - 1]


@pytest.mark.parametrize("kind", STARTS)
def test_a_release_that_passes_every_check_and_does_not_start(cluster: Cluster, kind: str) -> None:
    statement, reason = STARTS[kind]
    bundle = cluster.bundles.with_start(NEW, f"start-{kind}", statement)
    starts, current = cluster.starts(), cluster.current()
    with cluster.outside(f"a release whose start {kind}", is_rolling=False) as outside:
        played = cluster.plays.play("upgrade", "-e", f"dlog_bundle={bundle}", *PATIENCE)
    outside.checked.must_be_clean()
    only_the_first(cluster, played, starts)
    assert reason in played.words
    assert "what ran before was taken back, and runs" in played.words
    assert cluster.is_healthy()
    assert cluster.current() == current
    for host in cluster.hosts:
        host.enter(f"rm -rf /opt/dlog/releases/{NEW}")


def test_a_failed_release_stays_for_inspection(cluster: Cluster) -> None:
    statement, _ = STARTS["ends"]
    bundle = cluster.bundles.with_start(NEW, "start-ends", statement)
    starts = cluster.starts()
    played = cluster.plays.play(
        "upgrade", "-e", f"dlog_bundle={bundle}", "-e", "dlog_rollback=false", *PATIENCE
    )
    only_the_first(cluster, played, starts)
    failed = cluster.hosts[int(played.order[0].removeprefix("h")) - 1]
    assert failed.enter("readlink /opt/dlog/current").stdout.strip().endswith(NEW)
    assert cluster.lock() is None
    failed.enter(f"ln -sfn releases/{OLD} /opt/dlog/current && systemctl start dlogd")
    for host in cluster.hosts:
        host.enter(f"rm -rf /opt/dlog/releases/{NEW}")


def test_a_unit_that_passes_every_check_and_does_not_start(cluster: Cluster) -> None:
    starts = cluster.starts()
    with cluster.broken_units():
        played = cluster.plays.play("rolling_restart", *PATIENCE)
        only_the_first(cluster, played, starts)
        assert cluster.lock() is None
    assert cluster.is_healthy()


def test_a_wrong_configuration_reaches_no_host(cluster: Cluster) -> None:
    before = cluster.fingerprints()
    variables = json.dumps({"dlog_config": {"no.such.key": 1}})
    for playbook in ("rolling_restart", "site"):
        played = cluster.plays.play(playbook, "-e", variables, "-e", cluster.bundle(OLD))
        assert played.code != 0
        assert "no.such.key" in played.words
        assert cluster.fingerprints() == before
    for host in cluster.hosts:
        host.enter("rm -f /etc/dlog/dlog.yaml.next")


def test_a_wrong_secret_takes_no_node_down(cluster: Cluster) -> None:
    secret = next(cluster.plays.folder.glob("dlog-*.secret"))
    right, starts = secret.read_text(), cluster.starts()
    secret.write_text("0" * 64 + "\n")
    try:
        played = cluster.plays.play("rolling_restart", *PATIENCE)
        assert played.code != 0
        assert cluster.is_healthy()
        assert sum(cluster.starts()) - sum(starts) <= 2
    finally:
        secret.write_text(right)
        cluster.plays.must("site", "-e", cluster.bundle(OLD))
