"""Commands about topics and configs against fake nodes: formats, questions, what is changed."""

import dataclasses
import json
from typing import Any

import yaml

from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from tests.fakes.command_line import NO_TOPIC, Ctl, World, ctl, world
from tests.fakes.peer import error, zero_time

__all__ = ["ctl", "world"]  # the fixtures

SOON = ("--timeout", "2")
"""For what nobody answers."""


def test_topics_are_listed_in_every_format(ctl: Ctl) -> None:
    table = ctl("topic", "list")
    assert table.code == 0
    assert [line.split() for line in table.out.splitlines()] == [
        ["TOPIC", "PARTITIONS", "REPLICAS", "LEADERLESS", "UNDER-REPLICATED"],
        ["t", "2", "2", "0", "2"],
    ]
    assert "00000000-0000-0000-0000-00000000004d" in ctl("topic", "list", "-o", "wide").out
    bare = ctl("topic", "list", "--no-headers", "-o", "tsv").out
    assert bare == "t\t2\t2\t0\t2\tno\t00000000-0000-0000-0000-00000000004d\n"
    as_json = json.loads(ctl("topic", "list", "-o", "json").out)
    assert as_json[0]["partitions"] == 2
    assert as_json == yaml.safe_load(ctl("-o", "yaml", "topic", "list").out)


def test_a_topic_is_described(ctl: Ctl) -> None:
    described = ctl("topic", "describe", "t", *SOON).out
    assert "retention.ms" in described
    assert "cleanup.policy" not in described  # it is at its default
    assert described.splitlines()[-1].split() == ["1", "1", "1,2", "1", "10", "99"]
    document = json.loads(ctl("topic", "describe", "t", *SOON, "-o", "json").out)
    assert document["configs"] == {"retention.ms": "5"}
    assert document["partitions"][0]["high_watermark"] == 99
    assert ctl("topic", "describe", "t", *SOON, "-o", "tsv", "--no-headers").out.count("\n") == 2
    missing = ctl("topic", "describe", "missing", "--timeout", "3")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err == "dlogctl: there is no topic missing; see: dlogctl topic list\n"


def test_describe_says_why_partitions_are_out_of_service(ctl: Ctl, world: World) -> None:
    answer = world.list_offsets

    def one_is_out(request: Any, module: Any, header: RequestHeader) -> Any:
        response = answer(request, module, header)
        first, second = response.topics[0].partitions
        second = dataclasses.replace(second, error_code=error(56), offset=-1)
        topic = dataclasses.replace(response.topics[0], partitions=(first, second))
        return dataclasses.replace(response, topics=(topic,))

    world.peer.answers[ApiKey.LIST_OFFSETS] = one_is_out
    world.configs["http.address"] = (world.http_address, 4)
    world.status["problems"] = ["partition t-11: no", "partition t-1: the disk is gone"]
    out = ctl("topic", "describe", "t", *SOON).out.splitlines()
    assert out[-2].split()[-1] == "KAFKA_STORAGE_ERROR"
    assert out[-1] == "t-1: the disk is gone"

    def reasons() -> list[str | None]:
        document = json.loads(ctl("topic", "describe", "t", *SOON, "-o", "json").out)
        return [each["reason"] for each in document["partitions"]]

    assert reasons() == [None, "the disk is gone"]
    tsv = ctl("topic", "describe", "t", *SOON, "-o", "tsv", "--no-headers").out.splitlines()
    assert [line.split("\t")[-2:] for line in tsv] == [
        ["-", "-"],
        ["KAFKA_STORAGE_ERROR", "the disk is gone"],
    ]
    del world.status["problems"]
    assert reasons() == [None, "node 1 gives no reason; its log may have one"]
    world.http_address = "127.0.0.1:1"
    assert "node 1 reports no details: no answer from" in str(reasons()[1])


def test_creating(ctl: Ctl, world: World) -> None:
    created = ctl("topic", "create", "new", "-p", "3", "-c", "a=b=c", "--explain")
    assert created.code == 0
    assert created.out.startswith("topic new created")
    assert created.err == "next: dlogctl topic describe new\n"
    assert ctl("topic", "create", "new", "--dry-run").out == "topic new would be created\n"
    assert world.validated == [False, True]
    assert ctl("topic", "create", "new", "--set", "a=b", "--dry-run").code == 0  # as for `alter`
    refused = ctl("topic", "create", "t")
    assert (refused.code, refused.err) == (
        1,
        "dlogctl: there is a topic t; see: dlogctl topic describe t\n",
    )
    assert ctl("topic", "create", "t", "--if-not-exists").code == 0


def test_altering(ctl: Ctl, world: World) -> None:
    altered = ctl("topic", "alter", "t", "--set", "retention.ms=9", "-u", "a", "-p", "4")
    assert altered.out.splitlines() == [
        "topic t now: retention.ms: 5 [topic] -> 9 [topic]",
        "topic t now: a: default -> 0 [default]",
        "topic t now: 4 partitions",
    ]
    assert world.altered == [("retention.ms", 0, "9"), ("a", 1, None)]
    assert "would become" in ctl("topic", "alter", "t", "-p", "4", "--dry-run").out
    assert world.validated == [False, False, True]
    assert ctl("topic", "alter", "t").code == 64

    def refused(request: Any, module: Any, _header: RequestHeader) -> Any:
        result = module.CreatePartitionsTopicResult(name="t", error_code=error(37))
        return module.CreatePartitionsResponse(throttle_time=zero_time(), results=(result,))

    world.peer.answers[ApiKey.CREATE_PARTITIONS] = refused
    half = ctl("topic", "alter", "t", "-p", "1", "-u", "a")
    assert (half.code, half.out) == (1, "topic t now: a: 0 [default] (no change)\n")


def test_changes_are_told_in_every_format(ctl: Ctl) -> None:
    def parsed(*arguments: str) -> Any:
        found = [ctl(*arguments, "-o", name) for name in ("json", "yaml")]
        assert [each.code for each in found] == [0, 0]
        document = json.loads(found[0].out)
        assert yaml.safe_load(found[1].out) == document
        return document

    created = parsed("topic", "create", "new")
    assert [(row["topic"], row["result"]) for row in created] == [("new", "created")]
    assert parsed("topic", "create", "t", "--if-not-exists")[0]["result"] == "exists"
    assert parsed("topic", "create", "new", "--dry-run")[0]["result"] == "would be created"
    rows = parsed("topic", "alter", "t", "--set", "retention.ms=9", "-p", "4", "--dry-run")
    assert rows == [
        {"topic": "t", "changed": "retention.ms", "from": "5", "to": "9", "dry_run": True},
        {"topic": "t", "changed": "partitions", "from": None, "to": "4", "dry_run": True},
    ]
    assert parsed("topic", "delete", "t", "--yes") == [{"topic": "t", "result": "deleted"}]
    assert parsed("topic", "delete", "missing", "--yes", "--if-exists") == []
    row = ctl("topic", "delete", "t", "--yes", "-o", "tsv", "--no-headers").out
    assert row == "t\tdeleted\n"


def test_deleting_asks_first(ctl: Ctl, world: World) -> None:
    assert ctl("topic", "delete", "t", "--dry-run").out == "topic t would be deleted\n"
    assert ctl("topic", "delete", "t", stdin="n\n").code == 1
    assert ctl("topic", "delete", "t", stdin="").code == 1
    missing = ctl("topic", "delete", "t", "missing", "--yes")
    assert (missing.code, missing.err) == (1, f"dlogctl: {NO_TOPIC}\n")
    assert world.deleted == []
    assert ctl("topic", "delete", "t", stdin="y\n").code == 0
    assert ctl("topic", "delete", "t", "missing", "--yes", "--if-exists").code == 0
    assert world.deleted == ["t", "t"]


def test_configs(ctl: Ctl, world: World) -> None:
    shown = ctl("config", "show", "--topic", "t")
    assert [line.split() for line in shown.out.splitlines()] == [
        ["CONFIG", "VALUE", "SOURCE"],
        ["retention.ms", "5", "topic"],
    ]
    assert (
        "About cleanup.policy." in ctl("config", "show", "--topic", "t", "--all", "-o", "wide").out
    )
    assert world.http_address in ctl("config", "show", "--node", "1").out
