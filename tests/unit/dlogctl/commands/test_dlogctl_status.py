"""`dlogctl status` against fake nodes: healthy, sick, still recovering, without its endpoint."""

import json

import pytest

from dlogd.status.http_heads import Request, Response
from tests.fakes.command_line import Ctl, World, ctl, world

__all__ = ["ctl", "world"]  # the fixtures


def test_status_of_a_healthy_and_of_a_sick_cluster(ctl: Ctl, world: World) -> None:
    sick = ctl("status")
    assert sick.code == 10
    assert sick.out.startswith("unhealthy\n  - 2 partitions are under-replicated: t-0, t-1\n")
    world.nodes.isr = (1, 2)
    directory = {"path": "/d", "online": True, "total_bytes": 1 << 40, "free_bytes": 1 << 39}
    world.status["storage"] = {"directories": [directory], "logs": 2}
    world.status["flush_p99_ms"] = 1.2
    healthy = ctl("status")
    assert healthy.code == 0
    assert healthy.out.startswith("healthy\n")
    assert "2 h" in healthy.out
    assert "1.2 ms" in healthy.out
    assert "50 %" in healthy.out
    document = json.loads(ctl("status", "-o", "json").out)
    assert document["healthy"]
    assert document["nodes"][0]["status"]["state"] == "active"
    assert ctl("status", "--watch", "--exit-when-healthy").code == 0
    world.status["problems"] = ["data directory /d failed: I/O error"]
    world.status["storage"]["directories"][0]["online"] = False
    sick = ctl("status")
    assert sick.code == 10
    assert "  - node 1: data directory /d failed: I/O error\n" in sick.out
    waited = ctl("status", "--watch", "100ms", "--exit-when-healthy", "--patience", "300ms")
    assert waited.code == 10 and waited.out.count("data directory /d failed") >= 2


def test_status_without_the_http_endpoint_says_so(ctl: Ctl, world: World) -> None:
    world.nodes.isr = (1, 2)
    there = world.http_address
    world.http_address = "127.0.0.1:1"
    partial = ctl("status")
    assert partial.code == 0
    assert "note: node 1 reports no details" in partial.err
    assert " active " in partial.out
    assert "2 h" not in partial.out
    assert "2 h" in ctl("status", "--http", there).out


@pytest.mark.parametrize("body", [b"[]", b"null", b'"ok"', b"[" * 100_000, b"<html>"])
def test_status_beside_an_endpoint_that_is_not_dlogds(ctl: Ctl, world: World, body: bytes) -> None:
    async def answer(_request: Request) -> Response:
        return Response(body=body)

    world.http._pages = {"/status": answer}
    world.nodes.isr = (1, 2)
    partial = ctl("status")
    assert partial.code == 0
    assert f"the server at http://{world.http_address}/status is not dlogd" in partial.err


def test_status_of_a_node_that_still_recovers(ctl: Ctl, world: World) -> None:
    nobody = ("--bootstrap", "127.0.0.1:1", "status", "--timeout", "500ms")
    world.status["state"], world.status["node_id"] = "recovering", 1
    world.status["problems"] = ["not serving: recovering logs: 3 of 9, 12 MiB scanned"]
    shown = ctl(*nobody, "--http", world.http_address)
    assert shown.code == 10
    assert "  - node 1: not serving: recovering logs: 3 of 9, 12 MiB scanned\n" in shown.out
    assert " recovering " in shown.out
    assert "could be asked" in shown.err
    document = json.loads(ctl(*nobody, "--http", world.http_address, "-o", "json").out)
    assert (document["healthy"], document["nodes"][0]["state"]) == (False, "recovering")
    assert ctl(*nobody, "--http", "127.0.0.1:1").code == 2


def test_a_disk_that_is_full_to_the_last_byte(ctl: Ctl, world: World) -> None:
    directory = {"path": "/d", "online": True, "total_bytes": 1 << 40, "free_bytes": 0}
    world.status["storage"] = {"directories": [directory], "logs": 2}
    assert "100 %" in ctl("status").out


def test_throttles_that_somebody_has_set_are_told(ctl: Ctl, world: World) -> None:
    leader, follower = (f"{part}.replication.throttled.rate" for part in ("leader", "follower"))
    world.node_configs = {leader: (str(2**63 - 1), 5), follower: (str(10 << 20), 3)}
    shown = ctl("status")
    assert leader not in shown.err
    assert (
        f"note: replication is throttled: {follower} is 10.0 MiB a second on node 1, for the"
        " replicas that topics name in follower.replication.throttled.replicas\n"
    ) in shown.err
    world.node_configs = {follower: ("0", 3)}
    assert "throttled.rate is 0 B a second" in ctl("status").err
    assert any("throttled" in each for each in json.loads(ctl("status", "-o", "json").out)["notes"])
