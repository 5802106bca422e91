"""A node whose start takes long is waited for, as long as it makes progress.

The long form. A node that hangs in its start: test_failed_restarts.py.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from tests.hosts.appliance import restarts
from tests.hosts.appliance.cluster import LARGE, LARGE_RECORD_BYTES, LARGE_RECORDS, Cluster
from tests.hosts.appliance.forms import long_form
from tests.hosts.rig.host import Host

pytestmark = long_form
SLOW_BYTES = 20_000_000
PATIENCE_S = 20
DROP_IN = "/etc/systemd/system/dlogd.service.d/zz-killed.conf"
# After a kill alone a node reads what is behind the last index entries, here some kilobytes.
FORGET = f"find /var/lib/dlog/topics/ -path '*/{LARGE}-*/0*' ! -name '*.log' -delete"
KILLED = rf'[Service]\nKillSignal=SIGKILL\nExecStopPost=/bin/sh -c "{FORGET}"\n'
METRICS = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
SCANNED = "dlog_storage_recovered_bytes_total"


@contextmanager
def killed_when_stopped(host: Host) -> Iterator[None]:
    """Let each stop of a daemon be a kill that its indexes do not survive, in the block."""
    host.enter(f"printf {shlex.quote(KILLED)} > {DROP_IN} && systemctl daemon-reload")
    try:
        yield
    finally:
        host.enter(f"rm {DROP_IN} && systemctl daemon-reload")


@contextmanager
def slow_disk(host: Host) -> Iterator[None]:
    """Let the disk of a host be slow in the block."""
    host.slow_disk(SLOW_BYTES)
    try:
        yield
    finally:
        host.slow_disk(None)


def recovered_bytes(host: Host) -> int:
    """Return what the daemon read of its logs when it started."""
    address = f"http://{host.address}:9644/metrics"
    said = host.ssh(["python3", "-c", METRICS, address]).stdout.splitlines()
    return sum(int(float(line.split()[-1])) for line in said if line.startswith(SCANNED))


def test_a_recovery_of_five_gigabytes_from_a_slow_disk(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    with cluster.large("-s", "flush.policy=never"):
        starts = cluster.starts()
        with killed_when_stopped(second), slow_disk(second):
            patience = f"dlog_patience={PATIENCE_S}"
            cluster.plays.must("rolling_restart", "-e", patience, timeout_s=1200)
        assert cluster.starts() == [count + 1 for count in starts]
        seconds = restarts.restart_of(second).start_s
        read_gb = recovered_bytes(second) / 1e9
        cluster.note(f"{read_gb:.1f} GB recovered in {seconds:.0f} s, patience {PATIENCE_S} s")
        assert seconds > 2 * PATIENCE_S
        assert read_gb > LARGE_RECORDS * LARGE_RECORD_BYTES / 1e9
        counts = cluster.ctl("consume", LARGE, "--counts")
        assert sum(row["records"] for row in counts) == LARGE_RECORDS
