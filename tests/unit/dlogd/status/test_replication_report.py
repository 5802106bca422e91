"""What nodes say about replication: who lags, how far, and what has moved."""

from typing import Any

from dlogd.status.replication_page import bytes_behind
from dlogd.storage.log.log_config import LogConfig
from dlogd.telemetry import replication_metrics as metrics
from tests.fakes.logs import LogHost, append_waiting, batch_of, run
from tests.fakes.small_fleet import SmallFleet, tell

BATCH_BYTES = len(batch_of(b"x" * 100))


def test_bytes_behind_an_offset() -> None:
    async def scenario() -> None:
        host = LogHost(config=LogConfig(segment_bytes=2000, preallocate_bytes=0))
        plog = await host.open()
        assert bytes_behind(plog, 0) == 0
        for _ in range(40):
            await append_waiting(plog, b"x" * 100)
        assert len(plog.segments) > 2
        for offset in (0, 1, 11, 12, 25, 39, 40):
            assert abs(bytes_behind(plog, offset) - (40 - offset) * BATCH_BYTES) <= 1

    run(scenario)


def told(fleet: SmallFleet, node_id: int) -> dict[str, Any]:
    """Return what /status of a node says about replication."""
    found = fleet.broker(node_id).report.status()["replication"]
    assert isinstance(found, dict)
    return found


def sampled(fleet: SmallFleet, node_id: int) -> dict[tuple[str, ...], float]:
    """Return what a scrape of a node gets, by name and labels."""
    samples = list(fleet.broker(node_id).report.samples())
    return {(each.spec.name, *each.labels): each.value for each in samples}


def test_a_follower_that_is_away_lags() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", min_insync_replicas="2")
        await fleet.produce("t", b"a" * 100)
        await fleet.until_in_sync("t")
        leader, (away, near) = fleet.leader("t"), fleet.followers("t")
        calm = told(fleet, leader)
        assert [each["lag_records"] for each in calm["followers"]] == [0, 0]
        assert (calm["under_replicated"], calm["at_min_isr"], calm["worst"]) == (0, 0, [])
        assert calm["sent_bytes"] >= 2 * BATCH_BYTES
        (followed,) = told(fleet, near)["leaders"]
        assert followed == {"node": leader, "partitions": 1, "connected": True}
        assert told(fleet, near)["fetched_bytes"] >= BATCH_BYTES

        fleet.host(away).is_held_down = True
        fleet.host(away).crash()
        await fleet.until(lambda: away not in fleet.state("t").isr)
        await fleet.produce("t", *[b"b" * 100] * 5)
        await fleet.sleep(3)
        found = told(fleet, leader)
        late = next(each for each in found["followers"] if each["node"] == away)
        assert (late["lag_records"], late["following"], late["in_sync"]) == (5, 0, 0)
        assert abs(late["lag_bytes"] - 5 * BATCH_BYTES) <= 1 and late["lag_ms"] >= 3000
        assert (found["under_replicated"], found["under_min_isr"], found["at_min_isr"]) == (1, 0, 1)
        (worst,) = found["worst"]
        assert (worst["partition"], worst["node"], worst["lag_records"]) == ("t-0", away, 5)
        scraped = sampled(fleet, leader)
        assert scraped[metrics.LAG_RECORDS.name, str(away)] == 5
        assert scraped[metrics.LAG_SECONDS.name, str(away)] >= 3
        assert scraped[metrics.LAG_RECORDS.name, str(near)] == 0
        assert (scraped[metrics.UNDER_REPLICATED.name,], scraped[metrics.AT_MIN_ISR.name,]) == (
            1,
            1,
        )

        fleet.host(away).is_held_down = False
        fleet.host(away).boot()
        await fleet.until_in_sync("t")
        found = told(fleet, leader)
        assert (found["under_replicated"], found["at_min_isr"], found["isr_expands"]) == (0, 0, 1)
        assert all(each["lag_records"] == 0 for each in found["followers"])
        known = {spec.name for spec in metrics.all_specs()}
        assert {name for name, *_ in sampled(fleet, leader)} <= known

    tell(story)
