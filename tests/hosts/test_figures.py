"""How long things take on hosts, and what clients notice of them; nothing here is asserted.

The long form; figures go to the file that DLOG_APPLIANCE_RESULTS names.
"""

import json
import time
from typing import Any

from tests.hosts.appliance import restarts
from tests.hosts.appliance.cluster import NEWEST, OLD, Cluster
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
MANY = 1000
WIDE_S = 300
RATE = 2000


def test_site_on_bare_hosts_and_again(bare: Cluster) -> None:
    bare.bundles.build([OLD])
    first = bare.plays.must("site", "-e", bare.bundle(OLD))
    again = bare.plays.must("site", "-e", bare.bundle(OLD))
    assert again.changes == []
    bare.note(f"site.yml on bare hosts: {first.seconds:.1f} s, again: {again.seconds:.1f} s")


def perf(cluster: Cluster, seconds: float) -> Any:
    """Return the figures of a paced producer on the first host."""
    command = f"dlogctl perf produce measured --rate {RATE} --duration {seconds}s -q -o json"
    return json.loads(cluster.hosts[0].ssh(command, timeout=seconds + 60).stdout)


def during(cluster: Cluster, version: str) -> tuple[str, float]:
    """Return the p99 of a producer while site.yml runs with a bundle, and how long that takes."""
    playing = cluster.plays.start("site", "-e", cluster.bundle(version))
    told = perf(cluster, 20)
    played = playing.end()
    assert played.code == 0, played.end
    return json.dumps(told), played.seconds


def test_a_release_that_is_made_while_clients_write(cluster: Cluster) -> None:
    cluster.bundles.build([NEWEST])
    cluster.note(f"a paced producer alone: {json.dumps(perf(cluster, 20))}")
    for version, what in ((OLD, "nothing to do"), (NEWEST, "a new release")):
        told, seconds = during(cluster, version)
        cluster.note(f"a paced producer beside site.yml, {what}, {seconds:.1f} s: {told}")
    for host in cluster.hosts:
        host.enter(f"rm -rf /opt/dlog/releases/{NEWEST}")


def test_starts_of_the_daemon(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    second.ssh("sudo systemctl restart dlogd", timeout=60)
    cluster.note(f"start of dlogd, little data: {restarts.restart_of(second).start_s:.2f} s")
    assert cluster.is_healthy()
    with cluster.large():
        second.ssh("sudo systemctl restart dlogd", timeout=60)
        seconds = restarts.restart_of(second).start_s
        cluster.note(f"start of dlogd, 5 GB after a clean stop: {seconds:.2f} s")
        assert cluster.is_healthy()


def test_a_rolling_restart_with_many_partitions(cluster: Cluster) -> None:
    first = cluster.hosts[0]
    first.ssh(f"dlogctl topic create many -p {MANY} -r 3", timeout=WIDE_S)
    assert cluster.is_healthy()
    starts, began = cluster.starts(), time.monotonic()
    with cluster.outside(f"rolling restart, {MANY} partitions") as outside:
        played = cluster.plays.must("rolling_restart", timeout_s=1200)
    outside.checked.must_be_clean()
    own = 0.0
    for host in cluster.hosts:
        found = restarts.restart_of(host)
        own += (found.ready_ns - found.stopping_ns) / 1e9
    assert cluster.starts() == [count + 1 for count in starts]
    cluster.note(
        f"rolling restart, {MANY} partitions: {played.seconds:.1f} s, of which daemons stop and"
        f" start {own:.1f} s; {(played.seconds - own) / 3:.1f} s a host beyond that;"
        f" whole block {time.monotonic() - began:.1f} s"
    )
    first.ssh("dlogctl topic delete many --yes", timeout=WIDE_S)
    cluster.forget()
