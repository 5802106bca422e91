"""What users meet by name is documented: formats, configuration, metrics, errors."""

import re
from pathlib import Path

from tests.tidy import sources

DOCS = sources.ROOT / "docs"
FORMATS = DOCS / "formats"
METRIC = re.compile(r"""["'](dlog_[a-z0-9_]+)["']""")
FORMAT_NAME = re.compile(r"docs/formats/([\w-]+)\.md")


def _formats() -> dict[str, str]:
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(FORMATS.glob("*.md"))}


def _operating() -> str:
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted(DOCS.rglob("*.md")))


def test_every_format_document_names_its_module() -> None:
    modules = {source.module for source in sources.production()}
    for name, text in _formats().items():
        named = set(re.findall(r"`(dlog(?:d|ctl)?(?:\.\w+)+)`", text))
        assert named & modules, f"docs/formats/{name} names no module that exists"


def test_every_format_document_is_named_by_the_module_that_it_describes() -> None:
    by_module = {source.module: source for source in sources.production()}
    for name, text in _formats().items():
        named = re.findall(r"`(dlog(?:d|ctl)?(?:\.\w+)+)`", text)
        backlinks = [
            m for m in named if m in by_module and f"docs/formats/{name}" in by_module[m].text
        ]
        assert backlinks, f"no module named in docs/formats/{name} names it back"


def test_every_format_that_a_module_names_is_there() -> None:
    there = {Path(name).stem for name in _formats()}
    for source in sources.production():
        for name in FORMAT_NAME.findall(source.text):
            assert name in there, f"{source.name} names docs/formats/{name}.md, which is missing"


def test_every_metric_is_documented() -> None:
    text = _operating()
    missing = [
        f"{source.name}: {metric}"
        for source in sources.python("dlogd")
        for metric in METRIC.findall(source.text)
        if metric not in text
    ]
    assert not missing, "\n".join(missing)
