"""A play ends in its middle and is run again: no node is restarted twice, none stays drained.

The long form. Ctrl-C is pressed, the control process is killed, a host loses its power.
"""

from collections.abc import Sequence

import pytest

from tests.hosts.appliance.cluster import Cluster
from tests.hosts.appliance.forms import long_form

pytestmark = long_form
BOOT_S = 90.0
DRAIN = "Drain, stop, change, start, wait, undrain"
STEPS = (
    ("Hosts answer", 1),
    ("The configuration that will be used", 1),
    ("Take the lock", 1),
    ("In which order", 1),
    ("Wait until it may be restarted", 1),
    (DRAIN, 1),
    (DRAIN, 2),
    ("Leaders go back where they belong", 1),
)
STEP_NAMES = [f"{name.split(',')[0].split()[0].lower()}-{count}" for name, count in STEPS]


def run_again(cluster: Cluster, before: str) -> None:
    """Run the play again as its output says, until no node is due."""
    cluster.plays.must("rolling_restart", "-e", f"dlog_restart_before={before}")
    assert cluster.drained() == []
    assert cluster.lock() is None
    assert cluster.is_healthy()


def each_once(cluster: Cluster, starts: Sequence[int]) -> None:
    """Check that every node was started once since then."""
    assert cluster.starts() == [count + 1 for count in starts]


@pytest.mark.parametrize(("task", "count"), STEPS, ids=STEP_NAMES)
def test_ctrl_c(cluster: Cluster, task: str, count: int) -> None:
    before, starts = cluster.time(), cluster.starts()
    playing = cluster.plays.start("rolling_restart", may_warn=True)
    playing.await_task(task, count)
    playing.interrupt()
    assert playing.end().code != 0
    run_again(cluster, before)
    each_once(cluster, starts)


@pytest.mark.parametrize(("task", "count"), STEPS, ids=STEP_NAMES)
def test_a_killed_control_process(cluster: Cluster, task: str, count: int) -> None:
    before, starts = cluster.time(), cluster.starts()
    playing = cluster.plays.start("rolling_restart", may_warn=True)
    playing.await_task(task, count)
    playing.kill()
    playing.end()
    run_again(cluster, before)
    each_once(cluster, starts)


def test_a_host_that_loses_its_power_while_it_is_worked_on(cluster: Cluster) -> None:
    before, starts = cluster.time(), cluster.starts()
    playing = cluster.plays.start("rolling_restart", may_warn=True)
    playing.await_task(DRAIN, 2)
    lost = cluster.hosts[int(playing.order[1].removeprefix("h")) - 1]
    lost.crash()
    played = playing.end()
    assert played.code != 0
    assert f"{lost.name} cannot be reached any more" in played.words, played.end
    assert "Mend it, then go on: ansible-playbook rolling_restart.yml" in played.words
    assert playing.output.count(f"TASK [{DRAIN}]") == 2  # the third was not touched
    lost.start()
    assert lost.wait_booted(BOOT_S) == "running"
    assert cluster.lock() is None
    run_again(cluster, before)
    expected = [count + 1 for count in starts]
    # It boots once more, whether its daemon had been restarted or not.
    found = cluster.starts()
    place = lost.number - 1
    assert found[place] - expected[place] in (0, 1)
    found[place] = expected[place]
    assert found == expected


def test_another_host_that_loses_its_power(cluster: Cluster) -> None:
    before, starts = cluster.time(), cluster.starts()
    playing = cluster.plays.start("rolling_restart", "-e", "dlog_patience=5", may_warn=True)
    playing.await_task(DRAIN, 1)
    lost = cluster.hosts[int(playing.order[2].removeprefix("h")) - 1]
    lost.crash()
    played = playing.end()
    assert played.code != 0
    assert playing.output.count(f"TASK [{DRAIN}]") == 1
    assert cluster.drained(host=int(playing.order[0].removeprefix("h"))) == []
    lost.start()
    assert lost.wait_booted(BOOT_S) == "running"
    run_again(cluster, before)
    expected = [count + 1 for count in starts]
    assert cluster.starts() == expected
