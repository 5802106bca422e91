"""The command line against fake nodes: formats, exit codes, questions, errors without traceback."""

import asyncio
import contextlib
import dataclasses
import io
import json
import os
import pty
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from dlogctl import terminal
from dlogctl.__main__ import COMMANDS, main
from dlogctl.output import format_bytes, format_cell, format_duration
from dlogd.status.http_server import HttpServer, Request, Response
from tests.fakes.peer import PeerCluster, error, no_error, zero_time

NO_CONTEXTS = "/no/contexts/here"


class World:
    """Fake nodes, and an HTTP endpoint for the first of them, on a thread of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.nodes = PeerCluster()
        del self.nodes.peers[2]
        self.peer = self.nodes.peers[1]
        self.nodes.leaders = [1, 1]
        # As an older node, which cannot tell of fenced nodes, of the quorum and of what moves.
        for name in ("DESCRIBE_CLUSTER", "DESCRIBE_QUORUM", "LIST_PARTITION_REASSIGNMENTS"):
            del self.peer.versions[ApiKey[name]]
        self.status: dict[str, Any] = {"state": "active", "version": "0.1.0", "uptime_s": 7200.0}
        self.http_address = ""
        self.deleted: list[str] = []
        self.altered: list[tuple[str, int, str | None]] = []
        self.validated: list[bool] = []
        self.configs = {"retention.ms": ("5", 1), "cleanup.policy": ("delete", 5)}
        self.http = HttpServer(self.loop, {"/status": self.http_status})
        self._answer_all()

    async def http_status(self, _request: Request) -> Response:
        return Response(body=json.dumps(self.status).encode())

    async def start(self) -> None:
        await self.peer.start()
        self.http_address = f"127.0.0.1:{await self.http.start('127.0.0.1', 0)}"

    async def stop(self) -> None:
        self.peer.stop()
        await self.http.close()

    def _answer_all(self) -> None:
        self.peer.answers |= {
            ApiKey.CREATE_TOPICS: self.create,
            ApiKey.DELETE_TOPICS: self.delete,
            ApiKey.CREATE_PARTITIONS: self.grow,
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.alter,
            ApiKey.LIST_OFFSETS: self.list_offsets,
        }

    def create(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        self.validated.append(request.validate_only)
        name = request.topics[0].name
        result = module.CreatableTopicResult(
            name=name,
            topic_id=None,
            error_code=error(36 if name == "t" else 0),
            error_message="topic t exists" if name == "t" else None,
            configs=None,
        )
        return module.CreateTopicsResponse(throttle_time=zero_time(), topics=(result,))

    def delete(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        self.deleted.append(request.topics[0].name)
        result = module.DeletableTopicResult(name="t", topic_id=None, error_code=no_error())
        return module.DeleteTopicsResponse(throttle_time=zero_time(), responses=(result,))

    def grow(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        self.validated.append(request.validate_only)
        result = module.CreatePartitionsTopicResult(name="t", error_code=no_error())
        return module.CreatePartitionsResponse(throttle_time=zero_time(), results=(result,))

    def describe_configs(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        wanted = request.resources[0]
        node = {"http.address": (self.http_address, 4)}
        configs = node if int(wanted.resource_type) == 4 else self.configs
        entries = tuple(
            module.DescribeConfigsResourceResult(
                name=name,
                value=value,
                read_only=False,
                config_source=source,
                is_sensitive=False,
                synonyms=(),
                documentation=f"About {name}.",
            )
            for name, (value, source) in configs.items()
        )
        result = module.DescribeConfigsResult(
            error_code=no_error(),
            error_message=None,
            resource_type=wanted.resource_type,
            resource_name=wanted.resource_name,
            configs=entries,
        )
        return module.DescribeConfigsResponse(throttle_time=zero_time(), results=(result,))

    def alter(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        self.validated.append(request.validate_only)
        for each in request.resources[0].configs:
            self.altered.append((each.name, int(each.config_operation), each.value))
            if not request.validate_only:
                is_set = int(each.config_operation) == 0
                self.configs[each.name] = (each.value, 1) if is_set else ("0", 5)
        result = module.AlterConfigsResourceResponse(
            error_code=no_error(), error_message=None, resource_type=2, resource_name="t"
        )
        return module.IncrementalAlterConfigsResponse(
            throttle_time=zero_time(), responses=(result,)
        )

    def list_offsets(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        topic = request.topics[0]
        answered = tuple(
            module.ListOffsetsPartitionResponse(
                partition_index=each.partition_index,
                error_code=no_error(),
                offset=10 if int(each.timestamp) == -2 else 99,
            )
            for each in topic.partitions
        )
        response = module.ListOffsetsTopicResponse(name=topic.name, partitions=answered)
        return module.ListOffsetsResponse(throttle_time=zero_time(), topics=(response,))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    thread = threading.Thread(target=world.loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(world.start(), world.loop).result(10)
    yield world
    asyncio.run_coroutine_threadsafe(world.stop(), world.loop).result(10)
    world.loop.call_soon_threadsafe(world.loop.stop)
    thread.join()
    world.loop.close()


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def ctl(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    def run(*arguments: str, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setenv("DLOG_BOOTSTRAP", str(world.peer.address))
        monkeypatch.setenv("XDG_CONFIG_HOME", NO_CONTEXTS)
        code = main(["--timeout", "2", *arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run


Ctl = Callable[..., Result]


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
    described = ctl("topic", "describe", "t").out
    assert "retention.ms" in described
    assert "cleanup.policy" not in described  # it is at its default
    assert described.splitlines()[-1].split() == ["1", "1", "1,2", "1", "10", "99"]
    document = json.loads(ctl("topic", "describe", "t", "-o", "json").out)
    assert document["configs"] == {"retention.ms": "5"}
    assert document["partitions"][0]["high_watermark"] == 99
    assert ctl("topic", "describe", "t", "-o", "tsv", "--no-headers").out.count("\n") == 2
    missing = ctl("topic", "describe", "missing", "--timeout", "0.2")
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
    out = ctl("topic", "describe", "t").out.splitlines()
    assert out[-2].split()[-1] == "KAFKA_STORAGE_ERROR"
    assert out[-1] == "t-1: the disk is gone"

    def reasons() -> list[str | None]:
        document = json.loads(ctl("topic", "describe", "t", "-o", "json").out)
        return [each["reason"] for each in document["partitions"]]

    assert reasons() == [None, "the disk is gone"]
    tsv = ctl("topic", "describe", "t", "-o", "tsv", "--no-headers").out.splitlines()
    assert [line.split("\t")[-2:] for line in tsv] == [
        ["-", "-"],
        ["KAFKA_STORAGE_ERROR", "the disk is gone"],
    ]
    del world.status["problems"]
    assert reasons() == [None, "node 1 gives no reason; its log may have one"]
    world.http_address = "127.0.0.1:1"
    assert "node 1 tells no details: no answer from" in str(reasons()[1])


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


def test_status_without_the_http_endpoint_says_so(ctl: Ctl, world: World) -> None:
    world.nodes.isr = (1, 2)
    there = world.http_address
    world.http_address = "127.0.0.1:1"
    partial = ctl("status")
    assert partial.code == 0
    assert "note: node 1 tells no details" in partial.err
    assert " active " in partial.out
    assert "2 h" not in partial.out
    assert "2 h" in ctl("status", "--http", there).out


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


def test_nobody_there(ctl: Ctl) -> None:
    result = ctl("--bootstrap", "127.0.0.1:1", "status", "--timeout", "0.2")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "dlogctl: cannot connect to 127.0.0.1:1: Connection refused; is dlogd running there? The "
        "address is 127.0.0.1:1, from --bootstrap; see: dlogctl context show, dlogctl sandbox "
        "--help\n"
    )


def test_a_node_that_takes_the_request_and_says_nothing(ctl: Ctl, world: World) -> None:
    """As one whose quorum is away: it runs, so nobody has to look for it."""
    world.peer.raw[ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda _header, _frame: None
    result = ctl("topic", "alter", "t", "--set", "retention.ms=9", "--timeout", "0.3")
    assert result.code == 2
    assert result.err == (
        f"dlogctl: no answer within 0.3 s from {world.peer.address}: the node can be reached, but"
        " whether it was done is not known. Most of the controllers may be away, see: dlogctl"
        " status; or it takes longer: --timeout\n"
    )


def test_a_node_that_speaks_something_else(ctl: Ctl, world: World) -> None:
    def nonsense(header: RequestHeader, _frame: memoryview) -> bytes:
        return struct.pack(">ii", 6, header.correlation_id) + b"\0\0"

    world.peer.raw[ApiKey.API_VERSIONS] = nonsense
    result = ctl("topic", "list", "--timeout", "0.2")
    assert result.code in (1, 2)
    assert result.err.startswith("dlogctl: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic"],
        ["topic", "create"],
        ["topic", "create", "x", "-c", "novalue"],
        ["topic", "list", "-o", "xml"],
        ["--bootstrap", "nowhere", "status"],
        ["config", "show", "--topic", "t", "--node", "1"],
    ],
)
def test_wrong_usage(ctl: Ctl, arguments: list[str]) -> None:
    result = ctl(*arguments)
    assert (result.code, result.out) == (64, "")
    assert result.err


NO_TOPIC = "there is no topic missing; see: dlogctl topic list"
MISUSES = (
    ("--nonsense", 64, r"No such option '?--nonsense'?; see dlogctl --help"),
    ("topic list --bogus", 64, r"No such option '?--bogus'?; see dlogctl topic list --help"),
    ("topic create x -p zero", 64, r".*--partitions.*'zero'.*; see dlogctl topic create --help"),
    ("topic create x -p 0", 64, r".*--partitions.* 0 is not in .*"),
    ("--timeout soon status", 64, r".*--timeout.*'soon' is no time: 2, 2s, .*"),
    ("--timeout 50ms status", 64, r".*--timeout.*'50ms' is below 0.1 s.*"),
    ("topic alter missing --config a=b --timeout 200ms", 1, NO_TOPIC),
    ("--bootstrap h:99999 status", 64, r".*--bootstrap.*'h:99999' is not host:port; see .*"),
    (
        "--bootstrap no.invalid:1 status",
        2,
        r"cannot connect to no.invalid:1: .* --bootstrap; see.*",
    ),
    ("topic alter missing -s a=b --timeout 0.2", 1, NO_TOPIC),
    ("topic alter missing -p 9 --timeout 0.2", 1, NO_TOPIC),
    ("config show --topic missing --timeout 0.2", 1, NO_TOPIC),
    ("config check /no/such.yaml", 1, r"/no/such.yaml: cannot be read: No such file.*"),
    ("config check /", 64, r".*'/' is a directory; see dlogctl config check --help"),
    ("segment check /no/such", 64, r".*'/no/such' does not exist; see .*"),
    ("segment check /proc", 64, r"/proc is neither a data directory .* nor a partition's .*"),
    ("segment dump /etc/hosts", 64, r"/etc/hosts is not named like a segment's file .*"),
    ("sandbox", 64, r"--dir is missing: .*; see dlogctl sandbox --help"),
    ("sandbox --dir /etc/hosts", 64, r".*'/etc/hosts' is a file; see .*"),
    ("sandbox --dir /proc/nope", 1, r"/proc/nope.*: No such file or directory"),
    ("sandbox --dir /tmp/x --nodes 6", 64, r".*--nodes.*6 is not in the range 1<=x<=5.*"),
    ("sandbox --dir /tmp/x --nodes 0", 64, r".*--nodes.*0 is not in .*"),
    ("sandbox --dir /tmp/x --port 99999", 64, r".*--port.*99999 is not in .*"),
    ("sandbox --dir /tmp/x --config-override a", 64, r".*'a' is not key=value; see .*"),
    (
        "sandbox --dir /tmp/x --config-override flush.policy=x --config-override a.b=1",
        64,
        r"--config-override: flush.policy: 'x' .*; a.b: unknown key.*; see dlogctl sandbox --help",
    ),
    ("sandbox restart 1 --dir /tmp", 1, r"no sandbox runs in /tmp; start one: dlogctl sandbox .*"),
    ("sandbox restart one --dir /tmp", 64, r".*NODE.*'one'.*"),
)


@pytest.mark.parametrize(("line", "code", "message"), MISUSES, ids=[each[0] for each in MISUSES])
def test_misuse_gets_one_line_that_names_cause_and_cure(
    ctl: Ctl, world: World, line: str, code: int, message: str
) -> None:
    def nothing(request: Any, module: Any, _header: RequestHeader) -> Any:
        raise AssertionError("nothing should be asked")

    refused = error(3)

    def unknown_configs(request: Any, module: Any, _header: RequestHeader) -> Any:
        result = module.DescribeConfigsResult(
            error_code=refused,
            error_message=None,
            resource_type=2,
            resource_name="missing",
            configs=(),
        )
        return module.DescribeConfigsResponse(throttle_time=zero_time(), results=(result,))

    def unknown_growth(request: Any, module: Any, _header: RequestHeader) -> Any:
        result = module.CreatePartitionsTopicResult(name="missing", error_code=refused)
        return module.CreatePartitionsResponse(throttle_time=zero_time(), results=(result,))

    world.peer.answers[ApiKey.DESCRIBE_CONFIGS] = unknown_configs
    world.peer.answers[ApiKey.CREATE_PARTITIONS] = unknown_growth
    world.peer.answers[ApiKey.CREATE_TOPICS] = nothing
    result = ctl(*line.split())
    assert (result.code, result.out) == (code, "")
    assert re.fullmatch(f"dlogctl: (?i:{message})\n", result.err), result.err
    assert not Path("/tmp/x").exists()


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


def test_a_file_is_checked(ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "dlog.yaml"
    file.write_text("node.id: 1\n")
    assert ctl("config", "check", str(file)).code == 0
    file.write_text("node.idd: 1\nflush.policy: sometimes\n")
    wrong = ctl("config", "check", str(file))
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.count("\n") == 2
    assert "line 1" in wrong.err
    assert "did you mean node.id" in wrong.err
    as_json = ctl("config", "check", str(file), "-o", "json")
    assert (as_json.code, as_json.err) == (1, "")
    document = json.loads(as_json.out)
    assert (document["file"], document["correct"]) == (str(file), False)
    assert document["problems"] == [
        each.removeprefix("dlogctl: ") for each in wrong.err.splitlines()
    ]
    assert yaml.safe_load(ctl("config", "check", str(file), "-o", "yaml").out) == document
    assert ctl("config", "check", str(file), "-o", "tsv", "--no-headers").out.count("\n") == 2
    file.write_text("node.id: 1\n")
    as_json = ctl("-o", "json", "config", "check", str(file))
    assert as_json.code == 0
    assert json.loads(as_json.out) == {"file": str(file), "correct": True, "problems": []}


def test_times_that_do_not_go_together_are_found_offline(ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "dlog.yaml"
    file.write_text(
        'node.id: 1\ncluster.id: c\ncluster.secret.file: /s\ncontrollers: ["1@h:1"]\n'
        "lease.duration: 1s\n"
    )
    wrong = ctl("config", "check", str(file))
    assert wrong.code == 1
    assert "lease.duration must be at least 5 times lease.heartbeat" in wrong.err


def test_help_and_version(ctl: Ctl) -> None:
    shown = ctl("--help")
    assert shown.code == 0
    for name, (_, doc) in COMMANDS.items():
        assert name in shown.out
        assert doc in shown.out
    assert ctl("--version").out.startswith("dlogctl, version ")


def test_every_command_helps(ctl: Ctl) -> None:
    for name in COMMANDS:
        assert ctl(name, "--help").code == 0


def on_a_terminal(arguments: list[str], environ: Mapping[str, str]) -> str:
    """Run dlogctl on a terminal 70 columns wide and return what it shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "dlogctl", *arguments], dict(environ))
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 4096):
            shown += piece
    os.waitpid(pid, 0)
    os.close(terminal)
    return shown.decode()


def test_a_table_on_a_terminal_takes_names_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.show_table(["NAME"], [["[red]x[/red]"]], [False], "t")
    assert "[red]x[/red]" in capsys.readouterr().out


def test_a_terminal_gets_rules_and_colours(world: World) -> None:
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "70"}
    environ["XDG_CONFIG_HOME"] = NO_CONTEXTS
    environ["DLOG_BOOTSTRAP"] = str(world.peer.address)
    shown = on_a_terminal(["topic", "list"], environ)
    assert "─" in shown
    assert "UNDER-REPLICATED" in shown
    assert "\x1b[31m" in on_a_terminal(["status"], environ)


def test_cells() -> None:
    assert [format_cell(each) for each in (None, "", [], True, [1, 2], 3)] == [
        "-", "-", "-", "yes", "1,2", "3",
    ]  # fmt: skip
    assert [format_bytes(each) for each in (None, -1, 5, 1536, 1 << 50)] == [
        None, None, "5 B", "1.5 KiB", "1024.0 TiB",
    ]  # fmt: skip
    assert [format_duration(each) for each in (None, 0.0123, 5, 300, 9000, 1e6)] == [
        None, "12.3 ms", "5 s", "5 min", "2 h", "12 d",
    ]  # fmt: skip
