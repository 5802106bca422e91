"""`dlogctl consume` meets a batch that no reader can decode."""

import json
from collections.abc import Callable

import pytest

from dlogctl.__main__ import main
from tests.fakes.threaded_nodes import Nodes
from tests.fakes.threaded_nodes import nodes as nodes

Consume = Callable[..., tuple[int, list[str], str]]


def problem(partition: int = 0, offset: int = 1, resume: int = 3) -> str:
    """Return what is said of a bad batch, but for the cause."""
    return (
        f"dlogctl: t-{partition}: cannot decode the batch at offset {offset}: CAUSE."
        f" Go on behind the batch: dlogctl consume t -p {partition} --from {resume}\n"
    )


@pytest.fixture
def consume(
    nodes: Nodes, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Consume:
    """Run the command about three partitions, of which the first has bad batches."""
    monkeypatch.setenv("DLOG_BOOTSTRAP", ",".join(map(str, nodes.servers.bootstrap)))
    monkeypatch.setenv("XDG_CONFIG_HOME", "/no/contexts/here")
    nodes.spoil(0)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = main(["--timeout", "20", "consume", "t", *arguments])
        out, err = capsysbinary.readouterr()
        return code, out.decode().splitlines(), err.decode()

    return run


def without_cause(err: str) -> str:
    """Return an error with its cause replaced."""
    for cause in ("a record is cut", "gzip: Error -3 while decompressing data: incorrect header"):
        err = err.replace(f"{cause} check.", "CAUSE.").replace(f"{cause}.", "CAUSE.")
    return err


def test_all_that_can_be_read_is_written_and_the_way_on_is_told(consume: Consume) -> None:
    code, out, err = consume()
    assert (code, without_cause(err)) == (1, problem())
    assert sorted(out) == sorted(["v0", *2 * [f"v{offset}" for offset in range(9)]])
    code, out, err = consume("-p", "0", "--from", "3")
    assert (code, out, without_cause(err)) == (1, [], problem(0, 3, 6))
    code, out, err = consume("-p", "0", "--from", "6")
    assert (code, out, err) == (0, ["v6", "v7", "v8"], "")


@pytest.mark.parametrize("options", [("-n", "1"), ("--until", "1"), ("-n", "1", "--follow")])
def test_what_is_before_it_needs_nothing_behind_it(
    consume: Consume, options: tuple[str, ...]
) -> None:
    assert consume("-p", "0", *options) == (0, ["v0"], "")


def test_in_each_form(consume: Consume) -> None:
    code, out, err = consume("-p", "0", "--format", "json")
    assert (code, without_cause(err)) == (1, problem())
    assert [json.loads(line)["offset"] for line in out] == [0]
    code, out, err = consume("-p", "0", "--value-format", "hex", "--place")
    assert (code, out, without_cause(err)) == (1, ["0\t0\t1000\t7630"], problem())
    code, out, err = consume("-p", "0", "--counts", "-o", "json")
    assert (code, without_cause(err)) == (1, problem())
    (row,) = json.loads("\n".join(out))
    assert (row["records"], row["last_offset"]) == (1, 0)


def test_who_follows_stops_there(consume: Consume) -> None:
    code, out, err = consume("-p", "0", "--follow")
    assert (code, out, without_cause(err)) == (1, ["v0"], problem())
