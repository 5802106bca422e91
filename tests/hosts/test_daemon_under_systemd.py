"""What systemd does with a daemon on a host: limits, hangs, wrong files, failures, reboots.

The long form.
"""

import os
import resource
import time

from tests.hosts.appliance import restarts
from tests.hosts.appliance.cluster import BROKEN_UNIT, DROP_IN, Cluster
from tests.hosts.appliance.forms import long_form
from tests.hosts.rig import processes
from tests.hosts.rig.commands import await_that
from tests.hosts.rig.host import Host

pytestmark = long_form
FILE = "/etc/dlog/dlog.yaml"
OPEN_FILES = 1_048_576
OOM_SCORE = "-500"
CAP_SYS_RESOURCE = 24  # capabilities(7)
WRONG_CONFIGURATION = 78
STARTS_MAX = 10
FAIL_S = 60.0
HUNG_S = 120.0


def property_of(host: Host, name: str) -> str:
    """Return a property of the daemon's unit."""
    command = ["systemctl", "show", restarts.UNIT, f"--property={name}", "--value"]
    return host.enter(command).stdout.strip()


def await_state(host: Host, state: str, timeout_s: float = FAIL_S) -> None:
    """Return when the unit is in this state."""
    found = await_that(lambda: property_of(host, "ActiveState") == state, timeout_s)
    assert found, property_of(host, "ActiveState")


def may_raise_limits() -> bool:
    """Return whether processes of this machine's root have CAP_SYS_RESOURCE."""
    return bool(int(processes.status(os.getpid(), "CapEff"), 16) >> CAP_SYS_RESOURCE & 1)


def write_and_read(cluster: Cluster, name: str) -> None:
    """Check that a host's programs can write and read."""
    first = cluster.hosts[0]
    first.ssh(f"dlogctl topic create {name} -p 3 -r 3")
    first.ssh(f"echo record | dlogctl produce {name} --acks all")
    assert first.ssh(f"dlogctl consume {name} -q").stdout == "record\n"
    first.ssh(f"dlogctl topic delete {name} --yes")


def limit_of(host: Host, pid: int, name: str) -> tuple[str, str]:
    """Return the soft and the hard limit of a process."""
    lines = host.enter(f"cat /proc/{pid}/limits").stdout.splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    soft, hard = line.removeprefix(name).split()[:2]
    return soft, hard


def test_limits_of_the_process(cluster: Cluster) -> None:
    # A machine whose containers may not raise limits gives a host what it has itself.
    _, here = resource.getrlimit(resource.RLIMIT_NOFILE)
    expected = str(OPEN_FILES if may_raise_limits() else min(here, OPEN_FILES))
    for host in cluster.hosts:
        pid = restarts.main_pid(host)
        assert property_of(host, "LimitNOFILE") == str(OPEN_FILES)
        assert property_of(host, "OOMScoreAdjust") == OOM_SCORE
        assert limit_of(host, pid, "Max open files") == (expected, expected)
        assert limit_of(host, pid, "Max core file size") == ("0", "0")
        score = OOM_SCORE if may_raise_limits() else "0"
        assert host.enter(f"cat /proc/{pid}/oom_score_adj").stdout.strip() == score
        assert host.enter(f"stat -c %U /proc/{pid}").stdout.strip() == "dlog"


def test_a_hung_daemon_is_killed_by_the_watchdog_and_comes_back(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    hung = restarts.main_pid(second)
    began = time.monotonic()
    second.enter(["kill", "-STOP", str(hung)])
    try:
        assert await_that(lambda: restarts.main_pid(second) not in (0, hung), HUNG_S)
        assert cluster.is_healthy()
        print(f"hung: healthy again after {time.monotonic() - began:.0f} s")
    finally:
        second.enter(f"kill -CONT {hung}", check=False)
    said = second.enter(["journalctl", f"--unit={restarts.UNIT}", "--lines=200", "-o", "cat"])
    assert "Watchdog timeout" in said.stdout


def test_a_wrong_file_is_told_once_and_not_tried_again(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    second.enter(f"cp -p {FILE} /root/right && echo 'no.such.key: 1' >> {FILE}")
    try:
        pid = restarts.main_pid(second)
        reloaded = second.ssh("sudo systemctl reload dlogd", check=False)
        assert reloaded.returncode
        assert restarts.main_pid(second) == pid
        assert second.ssh("sudo systemctl restart dlogd", check=False).returncode
        await_state(second, "failed")
        assert property_of(second, "ExecMainStatus") == str(WRONG_CONFIGURATION)
        assert property_of(second, "NRestarts") == "0"
        said = second.enter(["journalctl", f"--unit={restarts.UNIT}", "--lines=50", "-o", "cat"])
        assert "no.such.key" in said.stdout
    finally:
        second.enter(f"cp -p /root/right {FILE} && systemctl reset-failed dlogd")
        second.enter("systemctl start dlogd")
    assert cluster.is_healthy()


def test_ten_failures_in_five_minutes_end_the_attempts(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    # Earlier starts count, too.
    second.enter("systemctl reset-failed dlogd; systemctl stop dlogd")
    second.enter(f"printf '{BROKEN_UNIT}' > {DROP_IN} && systemctl daemon-reload")
    try:
        second.enter("systemctl reset-failed dlogd; systemctl start dlogd", check=False)
        await_state(second, "failed")
        assert property_of(second, "Result") in ("start-limit-hit", "exit-code")
        assert int(property_of(second, "NRestarts")) == STARTS_MAX
        assert second.enter("systemctl start dlogd", check=False).returncode
    finally:
        second.enter(f"rm {DROP_IN} && systemctl daemon-reload")
        second.enter("systemctl reset-failed dlogd && systemctl start dlogd")
    assert cluster.is_healthy()


def test_a_host_that_reboots_serves_again(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    starts = restarts.starts(second)
    assert second.reboot() == "running"
    assert cluster.is_healthy()
    assert restarts.starts(second) == starts + 1
    write_and_read(cluster, "after-a-reboot")


def test_all_hosts_lose_their_power(cluster: Cluster) -> None:
    first = cluster.hosts[0]
    first.ssh("dlogctl topic create kept -p 3 -r 3")
    first.ssh("seq 1000 | dlogctl produce kept --acks all")
    for host in cluster.hosts:
        host.crash()
    for host in cluster.hosts:
        host.start()
    for host in cluster.hosts:
        assert host.wait_booted() == "running"
    assert cluster.is_healthy()
    read = first.ssh("dlogctl consume kept -q").stdout
    assert sorted(map(int, read.split())) == list(range(1, 1001))
    first.ssh("dlogctl topic delete kept --yes")


def test_a_killed_daemon_comes_back(cluster: Cluster) -> None:
    second = cluster.hosts[1]
    pid = restarts.main_pid(second)
    with cluster.outside("kill -9 of one daemon", is_rolling=False) as outside:
        second.enter(["kill", "-KILL", str(pid)])
        assert await_that(lambda: restarts.main_pid(second) not in (0, pid), HUNG_S)
        assert cluster.is_healthy()
    report = outside.checked
    assert report.records["breaches"] == 0
    assert report.records["failed"] == 0
