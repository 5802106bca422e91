"""docs/ARCHITECTURE.md is a whole map: every module stands in its tables, and no other."""

import re
from collections.abc import Iterator

from tests.tidy import sources

TEXT = (sources.ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
SECTIONS = {
    "dlog": "### dlog\n",
    "dlogd": "### dlogd\n",
    "dlogctl": "### dlogctl\n",
    "dlog.client": "## The client library\n",
    "dlog.spark": "## The Spark data source\n",
}
NAME = re.compile(r"`([\w.]+(?:\.\*)?)`")
COMMANDS = {"perf"}  # a name that is no module: commands stand beside modules in that section


def _rows(base: str) -> Iterator[list[str]]:
    """Yield the names in the first column of each row; dlogctl has one paragraph instead."""
    text = TEXT.partition(SECTIONS[base])[2]
    text = re.split(r"^#", text, maxsplit=1, flags=re.MULTILINE)[0]
    if base == "dlogctl":
        yield [name for name in NAME.findall(text) if name not in COMMANDS]
    for cell in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE):
        yield NAME.findall(cell)


def _resolved(base: str, modules: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each name and the module or the package that it stands for, if any.

    A name with a dot says the package of those behind it: `server.feeds`, `feed`.
    """
    for row in _rows(base):
        package = base
        for name in row:
            plain = name.removesuffix(".*")
            full = next((m for m in (f"{package}.{plain}", f"{base}.{plain}") if m in modules), "")
            if "." in plain:
                package = full.rpartition(".")[0]
            yield name, full + name[len(plain) :] if full else ""


def test_every_module_is_on_the_map_and_no_other() -> None:
    modules = {source.module for source in sources.production()}
    files = {s.module for s in sources.production() if s.path.name != "__init__.py"}
    lost, covered = [], set[str]()
    for base in SECTIONS:
        for name, full in _resolved(base, modules):
            if not full:
                lost.append(f"{base}: {name} is no module")
            elif not full.endswith(".*"):
                covered.add(full)
            elif (package := full[:-2]) not in SECTIONS:
                covered |= {each for each in files if each.startswith(f"{package}.")}
    lost += [f"{name} is in no table" for name in sorted(files - covered)]
    assert not lost, "\n".join(lost)
