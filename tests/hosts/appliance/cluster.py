"""A cluster on the hosts of a rig, and its operator: what tests of plays begin with."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlog.client.admin_views import Drain
from tests.hosts.appliance import outside, restarts
from tests.hosts.appliance.bundles import Bundles
from tests.hosts.appliance.outside import Outside
from tests.hosts.appliance.plays import Plays
from tests.hosts.rig.host import Host
from tests.hosts.rig.rig import Rig

HOSTS = 3
OLD, NEW, NEWEST = "0.1.0", "0.1.1", "0.1.2"
RESULTS = "DLOG_APPLIANCE_RESULTS"
HEALTHY_S = 60
MOVING = "moving"
LARGE = "large"
LARGE_PARTITIONS = 6
LARGE_RECORDS, LARGE_RECORD_BYTES = 5_000_000, 1000
LARGE_WRITE_S = 600
HELD_RECORDS = 4000
BROKEN_UNIT = "[Service]\\nExecStartPre=/bin/false\\n"
DROP_IN = "/etc/systemd/system/dlogd.service.d/zz-broken.conf"
# What plays change on a host; a file's time and bytes tell whether one did.
FINGERPRINT = """
id dlog
find /opt/dlog /etc/dlog /etc/systemd/system /usr/local/bin -xdev -not -name '*.next' \\
  -not -path '*/__pycache__*' \\( -type f -o -type l \\) -printf '%p %l %m %u %T@\\n' | sort
systemctl show dlogd.service --property=MainPID,ActiveEnterTimestampMonotonic
ls -d /var/tmp/dlog-bundle-*
true
"""


class Cluster:
    """The hosts of a rig and what an operator has. Owner: a session of tests."""

    def __init__(self, rig: Rig, bundles: Bundles, folder: Path) -> None:
        self.rig = rig
        self.bundles = bundles
        self.folder = folder
        self.plays = Plays(rig, folder)
        self._made_on: list[Host] | None = None

    @property
    def hosts(self) -> list[Host]:
        """The hosts."""
        return self.rig.hosts

    def bundle(self, version: str) -> str:
        """Return the argument of a play that names a bundle."""
        return f"dlog_bundle={self.bundles.path(version)}"

    def make_healthy(self, size: int = HOSTS, *, may_have_spare: bool = False) -> None:
        """Make a cluster of OLD on the first hosts, unless one is there and no test has harmed it.

        A spare host has no node, or had one that was removed.
        """
        self.plays.write_inventory()
        has_size = len(self.hosts) == size or (may_have_spare and len(self.hosts) > size)
        if self._made_on is self.rig.hosts and has_size and self._is_whole(size):
            return
        if not self.rig.is_untouched:
            self.rig.renew()
        self.rig.is_untouched = False
        while len(self.hosts) < size:
            self.rig.add_host()
        self.plays.write_inventory()
        self.plays.must("site", "-e", self.bundle(OLD))
        self._made_on = self.rig.hosts
        outside.make_topic(self.rig, outside.MEASURED)

    def _is_whole(self, size: int) -> bool:
        numbers = [host.number for host in self.hosts]
        return (
            self.is_healthy()
            and self.members() == numbers[:size]
            and self.voters() == numbers[:HOSTS]
            and set(self.current().values()) == {OLD}
        )

    def forget(self) -> None:
        """Let the next test begin with new hosts."""
        self._made_on = None

    def is_healthy(self) -> bool:
        """Return whether the cluster is, or becomes, healthy, with no lock and nobody drained."""
        first = self.hosts[0]
        if not first.is_on:
            return False
        watch = f"dlogctl status --watch 1s --exit-when-healthy --patience {HEALTHY_S}s"
        done = first.ssh(watch, check=False, timeout=4 * HEALTHY_S)
        if done.returncode:
            print(f"not healthy: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return done.returncode == 0 and not self.drained() and not self.lock()

    def ctl(self, *words: str, host: int = 1, check: bool = True) -> Any:
        """Return what dlogctl of an unprivileged user of a host says, in JSON."""
        words = ("dlogctl", *words, "-o", "json")
        done = self.hosts[host - 1].ssh(list(words), check=check)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def members(self) -> list[int]:
        """Return the nodes of the cluster."""
        return sorted(each["node"] for each in self.ctl("node", "list"))

    def voters(self) -> list[int]:
        """Return the nodes that vote on the metadata."""
        nodes = self.ctl("controller", "list")["nodes"]
        return sorted(each["node"] for each in nodes if each["role"] != "observer")

    def controller(self) -> int:
        """Return the node that is the controller."""
        nodes = self.ctl("controller", "list")["nodes"]
        (found,) = [each["node"] for each in nodes if each["role"] == "controller"]
        return int(found)

    def replicas(self) -> dict[str, list[int]]:
        """Return the replicas of each partition, all of which must be in sync and have a leader."""
        found = {}
        for each in self.ctl("partition", "list"):
            name = f"{each['topic']}-{each['partition']}"
            assert set(each["isr"]) == set(each["replicas"]), each
            assert each["leader"] in each["isr"], each
            found[name] = list(each["replicas"])
        return found

    def states(self) -> list[str]:
        """Return the states of all nodes, as the cluster knows them."""
        return [each["state"] for each in self.ctl("node", "list")]

    def time(self) -> str:
        """Return the time as the argument of a play."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def drained(self, host: int = 1) -> list[int]:
        """Return the nodes that are drained, as a host knows it."""
        nodes = self.ctl("node", "list", host=host)
        return [each["node"] for each in nodes if each["drain"] != str(Drain.NONE)]

    def lock(self) -> Any:
        """Return the maintenance lock; None when nobody holds it."""
        done = self.hosts[0].ssh("dlogctl maintenance show -o json", check=False)
        return json.loads(done.stdout) if done.returncode == 10 else None

    def current(self) -> dict[str, str]:
        """Return the version of the present release by host of a node; no other runs there."""
        found, members = {}, self.members()
        for host in self.hosts:
            if host.number not in members:
                continue
            listed = json.loads(host.ssh("sudo dlogctl release list -o json").stdout)
            (found[host.name],) = [each["version"] for each in listed if each["link"] == "current"]
            assert [each["version"] for each in listed if each["processes"]] == [found[host.name]]
        return found

    def pids(self) -> list[int]:
        """Return the processes of the daemons."""
        return [restarts.main_pid(host) for host in self.hosts]

    def starts(self) -> list[int]:
        """Return how often each daemon was started."""
        return [restarts.starts(host) for host in self.hosts]

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Let a replica move from node 1 to node 2 for as long as the block lasts."""
        first = self.hosts[0]
        first.ssh(f"dlogctl topic create {MOVING} --assign 1")
        first.ssh(f"dlogctl perf produce {MOVING} -n {HELD_RECORDS} -s 1000 -q")
        first.ssh(
            f"dlogctl config set --topic {MOVING} 'follower.replication.throttled.replicas=*'"
            " && dlogctl config set --node 2 follower.replication.throttled.rate=1"
            f" && dlogctl partition reassign {MOVING}-0=2"
        )
        try:
            yield
        finally:
            first.ssh(f"dlogctl partition reassign --cancel {MOVING}")
            first.ssh("dlogctl config unset --node 2 follower.replication.throttled.rate")
            first.ssh(f"dlogctl topic delete {MOVING} --yes")

    @contextmanager
    def large(self, *options: str) -> Iterator[None]:
        """Let node 2 hold 5 GB that no other node has, for as long as the block lasts."""
        first = self.hosts[0]
        where = " ".join(["--assign 2"] * LARGE_PARTITIONS)
        first.ssh(f"dlogctl topic create {LARGE} {where} {' '.join(options)}")
        try:
            produce = f"dlogctl perf produce {LARGE} -n {LARGE_RECORDS} -s {LARGE_RECORD_BYTES} -q"
            first.ssh(produce, timeout=LARGE_WRITE_S)
            yield
        finally:
            first.ssh(f"dlogctl topic delete {LARGE} --yes")

    @contextmanager
    def broken_units(self) -> Iterator[None]:
        """Let no start of the daemon work in the block, whatever the checks say."""
        for host in self.hosts:
            host.enter(f"printf '{BROKEN_UNIT}' > {DROP_IN} && systemctl daemon-reload")
        try:
            yield
        finally:
            for host in self.hosts:
                host.enter(f"rm {DROP_IN} && systemctl daemon-reload")
                host.enter("systemctl reset-failed dlogd; systemctl start dlogd")

    def fingerprints(self) -> Mapping[str, str]:
        """Return all that a play may change on the hosts."""
        return {host.name: host.enter(FINGERPRINT).stdout for host in self.hosts if host.is_on}

    def note(self, figure: str) -> None:
        """Write a figure to the output, and to the file that RESULTS names."""
        print(f"\n{figure}", flush=True)
        if results := os.environ.get(RESULTS):
            with Path(results).open("a") as file:
                file.write(f"{figure} load={os.getloadavg()[0]:.1f}\n")

    def outside(self, what: str, *, is_rolling: bool = True, measured: int = 6) -> Outside:
        """Return a load and a sampler; the figures go to the file that RESULTS names."""
        results = os.environ.get(RESULTS)
        return Outside(
            self.rig,
            self.folder,
            what,
            results=Path(results) if results else None,
            is_rolling=is_rolling,
            measured=measured,
        )
