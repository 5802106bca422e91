"""Hosts join and leave a cluster: no client notices, refusals change nothing, plays go on.

The long form; figures go to the file that DLOG_APPLIANCE_RESULTS names.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import pytest

from tests.hosts.appliance import outside
from tests.hosts.appliance.cluster import NEW, OLD, Cluster
from tests.hosts.appliance.forms import long_form
from tests.hosts.appliance.outside import Outside
from tests.hosts.appliance.plays import Played, Playing
from tests.hosts.rig.commands import await_that

pytestmark = long_form
STALL_S_MAX = 0.5
BOOT_S = 90.0
MOVE_S = 60.0
SHARE = ("-e", "dlog_rebalance=true", "-e")
FAST, SLOW = "dlog_throttle=20MiB", "dlog_throttle=128KiB"
RATE = "follower.replication.throttled.rate"
RATES = (RATE, "leader.replication.throttled.rate")
SHARES = "Replicas and leaders are evened out"
DRAIN = "Its leaders and its replicas go to others"
BULKY, LOPSIDED = "bulky", "lopsided"
BYTES = 8_000_000
RECORD_BYTES = 1000
LEFT = "is no part of the cluster any more"


@pytest.fixture(scope="module", autouse=True)
def others_get_their_own(operator: Cluster) -> Iterator[None]:
    """Let the module after this one begin with new hosts."""
    yield
    operator.forget()


@pytest.fixture
def four(operator: Cluster) -> Cluster:
    """Give a healthy cluster of four nodes; the fourth does not vote."""
    operator.make_healthy(4)
    return operator


@pytest.fixture
def three(operator: Cluster) -> Cluster:
    """Give a healthy cluster of three nodes, and a fourth host that has none."""
    operator.make_healthy(may_have_spare=True)
    if len(operator.hosts) == 3:
        operator.rig.add_host()
    operator.plays.write_inventory()
    return operator


def add(cluster: Cluster, *arguments: str) -> Played:
    """Run add_node.yml, which has to succeed."""
    return cluster.plays.must("add_node", "-e", cluster.bundle(OLD), *arguments)


def remove(cluster: Cluster, host: str) -> Played:
    """Run remove_node.yml, which has to succeed."""
    played = cluster.plays.must("remove_node", "-e", f"dlog_node={host}")
    assert f"on {host} {LEFT}" in played.words
    return played


def must_have(cluster: Cluster, members: Sequence[int], voters: Sequence[int]) -> None:
    """Check that a cluster has these nodes, and that no play has left anything."""
    assert cluster.is_healthy()  # with no lock, and nobody is drained
    assert cluster.members() == list(members)
    assert cluster.voters() == list(voters)
    assert set(chain.from_iterable(cluster.replicas().values())) <= set(members)
    assert cluster.ctl("partition", "reassignments") == []
    assert {each["source"] for each in cluster.ctl("config", "get", *RATES)} == {"default"}


def must_be_quiet(outside: Outside) -> None:
    """Check that clients did not notice an operation."""
    outside.checked.must_be_clean()
    assert outside.checked.stall_s < STALL_S_MAX


def must_change_nothing(cluster: Cluster, play: Callable[[], Played]) -> Played:
    """Run a play that changes no host and restarts no node; return what it said."""
    before = cluster.fingerprints()
    played = play()
    assert played.changes == []
    assert cluster.fingerprints() == before
    return played


def refused(cluster: Cluster, playbook: str, *arguments: str, reasons: Sequence[str]) -> None:
    """Check that a play is refused for these reasons, and changes nothing."""
    played = must_change_nothing(cluster, lambda: cluster.plays.play(playbook, *arguments))
    assert played.code != 0, played.end
    for reason in reasons:
        assert reason in played.words, played.end


def is_gone(cluster: Cluster, number: int) -> None:
    """Check that a removed node leaves its data and its release, and a daemon that is off."""
    host = cluster.hosts[number - 1]
    state = host.enter("systemctl is-active dlogd; systemctl is-enabled dlogd", check=False)
    assert state.stdout.split() == ["inactive", "disabled"]
    kept = host.enter("ls /var/lib/dlog /opt/dlog/releases").stdout
    assert OLD in kept
    assert "identity" in kept


def make_bulky(cluster: Cluster) -> None:
    """Make a topic whose replicas take time to move, and one that lies on few nodes."""
    assigned = " ".join(["--assign 1,2"] * 3)
    cluster.hosts[0].ssh(
        f"dlogctl topic create {BULKY} -p 6 -r 3 --if-not-exists"
        f" && dlogctl topic create {LOPSIDED} {assigned} --if-not-exists"
        f" && dlogctl perf produce {BULKY} -n {BYTES // RECORD_BYTES} -s {RECORD_BYTES} -q"
    )


@contextmanager
def held_back(cluster: Cluster) -> Iterator[None]:
    """Let no new replica of the bulky topic get into sync for as long as the block lasts."""
    first = cluster.hosts[0]
    first.ssh(
        f"dlogctl config set --topic {BULKY} 'follower.replication.throttled.replicas=*'"
        f" && dlogctl config set {RATE}=1"
    )
    try:
        yield
    finally:
        first.ssh(
            f"dlogctl config unset --topic {BULKY} follower.replication.throttled.replicas;"
            f" dlogctl config unset {RATE}"
        )


@contextmanager
def held_by_ann(cluster: Cluster) -> Iterator[None]:
    """Let an operator hold the lock."""
    first = cluster.hosts[0]
    first.ssh("dlogctl maintenance hold --owner ann")
    try:
        yield
    finally:
        first.ssh("dlogctl maintenance release --force")


def end_early(
    cluster: Cluster,
    playing: Playing,
    task: str,
    end: Callable[[Playing], None],
    *,
    moves: bool = False,
) -> None:
    """End a play in a task; where it moves replicas, while they move."""
    playing.await_task(task)
    if moves:
        assert await_that(lambda: bool(cluster.ctl("partition", "reassignments")), MOVE_S)
    end(playing)
    playing.end()


def test_a_fourth_host_joins(cluster: Cluster) -> None:
    cluster.rig.add_host()
    # In the rack of another node it would take replicas of that node alone.
    cluster.plays.write_inventory(own={"h4": "dlog_rack=d"})
    pids = cluster.pids()[:3]
    with cluster.outside("add_node", is_rolling=False, measured=3) as outside:
        add(cluster, *SHARE, FAST)
        placed = cluster.replicas()
    outside.checked.must_be_clean()
    held = Counter(chain.from_iterable(placed.values()))
    led = Counter(replicas[0] for replicas in placed.values())
    print(f"replicas {dict(held)}, leaders {dict(led)}")
    for counts in (held, led):
        assert set(counts) == {1, 2, 3, 4}
        assert max(counts.values()) - min(counts.values()) <= 1
    must_have(cluster, [1, 2, 3, 4], [1, 2, 3])
    assert cluster.pids()[:3] == pids
    played = must_change_nothing(cluster, lambda: add(cluster, *SHARE, FAST))
    assert "none, all hosts are nodes" in played.words
    must_be_quiet(outside)


def test_a_removal_is_refused(four: Cluster) -> None:
    leave = ("remove_node", "-e", "dlog_node=h4")
    with held_by_ann(four):
        refused(four, *leave, reasons=["ann works on the cluster", "No node was touched."])
    with four.moving():
        refused(four, *leave, reasons=["Replicas are being moved.", "No node was touched."])
    refused(four, "remove_node", "-e", "dlog_node=h9", reasons=["one of h1, h2, h3, h4"])
    four.hosts[3].enter("systemctl stop dlogd")
    try:
        assert await_that(lambda: "fenced" in four.states(), MOVE_S)
        reasons = ["2 nodes that take replicas would stay", outside.MEASURED]
        refused(four, "remove_node", "-e", "dlog_node=h1", reasons=reasons)
    finally:
        four.hosts[3].enter("systemctl start dlogd")
    must_have(four, [1, 2, 3, 4], [1, 2, 3])


def test_a_node_is_removed(four: Cluster) -> None:
    pids = four.pids()[:3]
    with four.outside("remove_node", is_rolling=False, measured=3) as outside:
        remove(four, "h4")
    must_be_quiet(outside)
    must_have(four, [1, 2, 3], [1, 2, 3])
    is_gone(four, 4)
    assert four.pids()[:3] == pids
    must_change_nothing(four, lambda: remove(four, "h4"))


def test_three_nodes_cannot_lose_one(three: Cluster) -> None:
    leave = ("remove_node", "-e", "dlog_node=h3")
    three.plays.write_inventory(hosts=[1, 2, 3])
    topics = ["2 nodes that take replicas would stay, and 1 topics have more replicas than that"]
    for name in (BULKY, LOPSIDED):
        three.hosts[0].ssh(f"dlogctl topic delete {name} --yes", check=False)
    refused(three, *leave, reasons=[*topics, f"that: {outside.MEASURED}", "No node was touched."])
    three.hosts[0].ssh(f"dlogctl topic delete {outside.MEASURED} --yes")
    try:
        refused(three, *leave, reasons=["Node 3 is one of 3 voters", "No node was touched."])
    finally:
        outside.make_topic(three.rig, outside.MEASURED)
    must_have(three, [1, 2, 3], [1, 2, 3])


def test_a_new_host_is_refused(three: Cluster) -> None:
    bundle = three.bundle(OLD)
    none = "No host was changed."
    other = ("-e", three.bundle(NEW))
    refused(three, "add_node", *other, reasons=[f"the bundle is {NEW}", none])
    with held_by_ann(three):
        reasons = ["ann works on the cluster", "No node was touched."]
        refused(three, "add_node", "-e", bundle, reasons=reasons)
    with three.moving():
        refused(three, "add_node", "-e", bundle, reasons=["Replicas are being moved."])
    votes = ("-e", bundle, "-e", "dlog_voters=h1,h2,h4")
    reasons = ["there would be 4 voters, an even number", none]
    refused(three, "add_node", *votes, reasons=reasons)
    must_have(three, [1, 2, 3], [1, 2, 3])


def test_a_member_that_lost_its_data_is_refused(four: Cluster) -> None:
    last = four.hosts[3]
    bundle = four.bundle(OLD)
    last.enter(
        "systemctl stop dlogd && rm /etc/dlog/started && find /var/lib/dlog -mindepth 1 -delete"
    )
    assert await_that(lambda: "fenced" in four.states(), MOVE_S)
    reasons = [
        "Node 4 is part of the cluster that runs, and h4 knows nothing of it.",
        "-e dlog_accept_empty=h4",
    ]
    refused(four, "add_node", "-e", bundle, reasons=reasons)
    assert last.enter("systemctl is-active dlogd; ls -A /var/lib/dlog", check=False).stdout == (
        "inactive\n"
    )
    four.plays.must("site", "-e", bundle, "-e", "dlog_accept_empty=h4")
    must_have(four, [1, 2, 3, 4], [1, 2, 3])


def test_another_control_machine_makes_no_second_secret(three: Cluster) -> None:
    bundle = three.bundle(OLD)
    last = three.hosts[3]
    last.enter("rm -f /etc/dlog/secret")
    file = next(three.plays.folder.glob("dlog-*.secret"))
    right = file.read_text()
    file.unlink()
    try:
        reasons = [f"{file.name} is missing, and the secret of this cluster is on h1, h2, h3."]
        refused(three, "add_node", "-e", bundle, reasons=reasons)
        assert not file.exists()
        # As an older version left it: the new host has the secret that a play made here.
        file.write_text(f"{'0' * 64}\n")
        last.enter(f"mkdir -p /etc/dlog && echo {'0' * 64} > /etc/dlog/secret")
        reasons = [f"{file.name} has another secret than h1, h2, h3. Put the right file back"]
        refused(three, "add_node", "-e", bundle, reasons=reasons)
    finally:
        file.write_text(right)
    cure = "systemctl stop dlogd; rm /etc/dlog/secret"
    reasons = ["h4 is no node of the cluster yet, and has another secret", f"on h4: {cure}"]
    refused(three, "add_node", "-e", bundle, reasons=reasons)
    last.enter(cure, check=False)
    add(three)
    must_have(three, [1, 2, 3, 4], [1, 2, 3])
    remove(three, "h4")


@pytest.mark.parametrize("end", [Playing.interrupt, Playing.kill], ids=["ctrl-c", "killed"])
def test_plays_that_end_early_are_run_again(three: Cluster, end: Callable[[Playing], None]) -> None:
    make_bulky(three)
    before, pids = three.replicas(), three.pids()[:3]
    arguments = ("-e", three.bundle(OLD), *SHARE, SLOW)
    for task, moves in (("dlogd : The daemon runs", False), (SHARES, True)):
        playing = three.plays.start("add_node", *arguments, may_warn=True)
        end_early(three, playing, task, end, moves=moves)
    add(three, *SHARE, FAST)
    must_have(three, [1, 2, 3, 4], [1, 2, 3])
    after = three.replicas()
    # Node 3 would have got its share of the topic that lies on few nodes.
    assert set(chain.from_iterable(set(after[key]) - set(before[key]) for key in before)) == {4}
    leave = ("remove_node", "-e", "dlog_node=h4")
    with held_back(three):
        end_early(three, three.plays.start(*leave, may_warn=True), DRAIN, end, moves=True)
    playing = three.plays.start(*leave, may_warn=True)
    end_early(three, playing, "The cluster forgets it", end)
    remove(three, "h4")
    must_have(three, [1, 2, 3], [1, 2, 3])
    is_gone(three, 4)
    assert three.pids()[:3] == pids
    must_change_nothing(three, lambda: remove(three, "h4"))


def test_a_node_is_removed_with_its_data(four: Cluster) -> None:
    last = four.hosts[3]
    last.enter("systemctl stop dlogd && sed -i s/node_id=4/node_id=5/ /var/lib/dlog/identity")
    delete = ("-e", "dlog_node=h4", "-e", "dlog_delete_data=true")
    try:
        foreign = ["/var/lib/dlog on h4 belongs to another node or cluster", "node_id=5"]
        refused(four, "remove_node", *delete, reasons=foreign)
    finally:
        last.enter("sed -i s/node_id=5/node_id=4/ /var/lib/dlog/identity && systemctl start dlogd")
    assert four.is_healthy()
    wrong = ("-e", "dlog_node=h4", "-e", "dlog_delete_data=perhaps")
    refused(four, "remove_node", *wrong, reasons=["dlog_delete_data"])
    played = four.plays.must("remove_node", *delete)
    assert "Its data, configuration and releases are deleted." in played.words
    must_have(four, [1, 2, 3], [1, 2, 3])
    left = last.enter(
        "ls -A /var/lib/dlog; ls -d /etc/dlog /opt/dlog /usr/local/bin/dlog*;"
        " systemctl cat dlogd; id dlog",
        check=False,
    )
    assert left.stdout.startswith("uid=")  # of the user, which stays
    must_change_nothing(four, lambda: four.plays.must("remove_node", *delete))
    add(four)
    must_have(four, [1, 2, 3, 4], [1, 2, 3])


def test_the_controller_is_removed_and_comes_back(four: Cluster) -> None:
    first = four.hosts[0]
    first.ssh("dlogctl controller transfer 1")
    pids = four.pids()[1:]
    with four.outside("remove_node of the controller", is_rolling=False, measured=3) as outside:
        remove(four, "h1")
    must_be_quiet(outside)
    must_have(four, [2, 3, 4], [2, 3, 4])
    assert four.controller() in (2, 3, 4)
    is_gone(four, 1)
    again = ("-e", four.bundle(OLD))
    # As it was in the inventory, its vote would be the fourth.
    refused(four, "add_node", *again, reasons=["there would be 4 voters, an even number"])
    four.plays.write_inventory(hosts=[2, 3, 4, 1])
    with four.outside("add_node of a removed node", is_rolling=False, measured=3) as outside:
        add(four, *SHARE, FAST)
    must_be_quiet(outside)
    must_have(four, [1, 2, 3, 4], [2, 3, 4])
    assert 1 in set(chain.from_iterable(four.replicas().values()))
    assert four.pids()[1:] == pids


def test_the_node_of_a_dead_host_is_removed(four: Cluster) -> None:
    last = four.hosts[3]
    make_bulky(four)
    assert 4 in set(chain.from_iterable(four.replicas().values()))
    with four.outside("remove_node of a dead host", is_rolling=False, measured=3) as outside:
        last.crash()
        assert await_that(lambda: "fenced" in four.states(), MOVE_S)
        remove(four, "h4")
    outside.checked.must_be_clean()
    must_have(four, [1, 2, 3], [1, 2, 3])
    last.start()
    last.wait_booted(BOOT_S)
    # Its daemon was enabled: it is a new node, which holds nothing, until the play is run again.
    assert await_that(lambda: four.members() == [1, 2, 3, 4], MOVE_S)
    assert 4 not in set(chain.from_iterable(four.replicas().values()))
    remove(four, "h4")
    must_have(four, [1, 2, 3], [1, 2, 3])
    is_gone(four, 4)
