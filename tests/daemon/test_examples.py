"""The examples in the docstrings of `dlog.client`, run as they stand against a real `dlogd`."""

import ast
import asyncio
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.client.blocking import Admin, Consumer, Producer
from tests.daemon.process import daemon
from tests.tidy import sources

BLOCKING = {"Admin": Admin, "Consumer": Consumer, "Producer": Producer}
ASYNCIO = ("admin", "consumer", "producer")
ADDRESS = re.compile(r'"(?:127\.0\.0\.1|localhost):9092"')
MANUAL = sources.ROOT / "docs" / "client.md"
TOPIC = re.compile(r'"(?:payments|flights)"')


class EnoughError(Exception):
    """The example has shown what it shows."""


def example_of(module: str) -> str:
    """Return the code in the docstring of a module: what is indented there."""
    text = importlib.import_module(f"dlog.client.{module}").__doc__
    assert text is not None
    lines = [line for line in text.splitlines() if line.startswith("    ") or not line]
    code = textwrap.dedent("\n".join(lines)).strip()
    assert code, module
    return code


def run(module: str, bootstrap: str, topic: str, lines_max: int) -> list[str]:
    """Run the example of a module on a cluster and a topic; return what it prints."""
    code = TOPIC.sub(repr(topic), ADDRESS.sub(repr(bootstrap), example_of(module)))
    lines: list[str] = []

    def show(*values: object) -> None:
        lines.append(" ".join(map(str, values)))
        if len(lines) >= lines_max:
            raise EnoughError

    names: dict[str, object] = {"print": show}
    if module in ASYNCIO:
        names[module.capitalize()] = getattr(
            importlib.import_module(f"dlog.client.{module}"), module.capitalize()
        )
        code = f"async def main():\n{textwrap.indent(code, '    ')}"
    else:
        names.update(BLOCKING)
    exec(compile(ast.parse(code), module, "exec"), names)
    main = names.get("main")
    if callable(main):
        asyncio.run(main())
    return lines


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("node")
    with daemon(folder) as process:
        process.start()
        yield str(process.status()["listeners"][0])


def written(bootstrap: str, topic: str) -> list[bytes | None]:
    """Return the values of two records of a topic."""
    with Consumer(bootstrap, topic) as consumer:
        values: list[bytes | None] = []
        while len(values) < 2:
            values += [record.value for record in consumer.poll()]
        return values


@pytest.mark.parametrize("module", ["producer", "blocking_producer"])
def test_a_producers(bootstrap: str, module: str) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic(module, partitions=1)
    assert run(module, bootstrap, module, 2) == ["0 1"]
    assert written(bootstrap, module) == [b"value", b"another"]


@pytest.mark.parametrize("module", ["consumer", "blocking_consumer"])
def test_a_consumers(bootstrap: str, module: str) -> None:
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topic(module, partitions=1)
        producer.send_many(module, [b"one", b"two"])
    with pytest.raises(EnoughError):
        run(module, bootstrap, module, 2)


@pytest.mark.parametrize("module", ["admin", "blocking_admin"])
def test_an_admins(bootstrap: str, module: str) -> None:
    lines = run(module, bootstrap, module, 99)
    assert any(module in line or "PartitionView" in line for line in lines)
    with Admin(bootstrap) as admin:
        assert len(admin.describe_topic(module).partitions) == 3


def test_the_manuals(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", MANUAL.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 6
    with Admin(bootstrap) as admin:
        admin.create_topic("payments", partitions=1)
    for block in blocks:
        code = ADDRESS.sub(repr(bootstrap), block)
        exec(compile(code, str(MANUAL), "exec"), {"__name__": "__main__"})
        assert capsys.readouterr().out


def test_every_example_is_run() -> None:
    here = Path(importlib.import_module("dlog.client").__path__[0])
    texts = {
        each.stem: ast.get_docstring(ast.parse(each.read_text())) for each in here.glob("*.py")
    }
    shown = {name for name, text in texts.items() if re.search(r"^    .*with ", text or "", re.M)}
    assert shown == {*ASYNCIO, *(f"blocking_{name}" for name in ASYNCIO)}
