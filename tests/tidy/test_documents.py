"""What users meet by name is documented: formats, configuration, metrics, errors."""

import re
from pathlib import Path

from dlog.errors import ERRORS
from dlogd.config.sample import sample
from dlogd.metadata.state.topic_configs import TOPIC_CONFIGS
from tests.tidy import sources

DOCS = sources.ROOT / "docs"
FORMATS = DOCS / "formats"
METRIC = re.compile(r"""["'](dlog_[a-z0-9_]+)["']""")
DECISION = re.compile(r"decisions/(\d{4}[\w-]*)")
NAMED_FILE = re.compile(r"(?<![\w./])((?:tests|docs|bench|scripts|deploy)/[\w./-]*\w)")
# Not `dlog.tls`, which are options of the Spark source, and files that begin like a module.
NAMED_MODULE = re.compile(r"^(dlog(?:d|ctl)?(?!\.(?:tls|yaml|zip|1)\b)(?:\.\w+)+)")
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


def test_every_decision_that_is_cited_is_there() -> None:
    there = {path.stem for path in (DOCS / "decisions").glob("*.md")}
    there |= {name[:4] for name in there}
    texts = {source.name: source.text for source in sources.python()}
    for path in [*sources.ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]:
        texts[str(path.relative_to(sources.ROOT))] = path.read_text(encoding="utf-8")
    cited = [(name, each) for name, text in texts.items() for each in DECISION.findall(text)]
    assert cited
    missing = [f"{name} cites docs/decisions/{each}" for name, each in cited if each not in there]
    assert not missing, "\n".join(missing)


def test_every_metric_is_documented() -> None:
    text = _operating()
    missing = [
        f"{source.name}: {metric}"
        for source in sources.python("dlogd")
        for metric in METRIC.findall(source.text)
        if metric not in text
    ]
    assert not missing, "\n".join(missing)


def _documented_errors() -> dict[int, str]:
    text = (DOCS / "operating" / "errors.md").read_text(encoding="utf-8")
    return {int(code): name for code, name in re.findall(r"^\| (-?\d+) \| (\w+) \|", text, re.M)}


def test_every_documented_error_is_tested_by_name() -> None:
    # test_errors.py goes through the table as a whole: name, number and retry flag against Kafka's.
    texts = [
        source.text
        for source in sources.python("tests")
        if source.path.name not in ("test_errors.py", "test_documents.py")
    ]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    rows = _documented_errors()
    missing = [name for code, name in rows.items() if not {name, ERRORS[code].__name__} & words]
    assert not missing, f"no test names {missing}"


def test_every_error_that_the_daemon_gives_is_documented() -> None:
    rows = _documented_errors()
    for code, name in rows.items():
        assert ERRORS[code].name == name, f"errors.md calls {code} {name}"
    words = {word for each in sources.python("dlogd") for word in re.findall(r"\w+", each.text)}
    given = {error for error in ERRORS.values() if error.__name__ in words}
    missing = sorted(error.name for error in given if error.code not in rows)
    assert not missing, f"not in docs/operating/errors.md: {missing}"


def test_every_verb_of_the_makefile_has_a_rule_and_a_place_in_the_documents() -> None:
    text = (sources.ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    rules = set(re.findall(r"^(\w+):(?! export)", text, re.MULTILINE))
    assert set(phony[1].split()) == rules
    names = ("README.md", "CONTRIBUTING.md", "docs/testing.md")
    told = "\n".join((sources.ROOT / name).read_text(encoding="utf-8") for name in names)
    missing = [verb for verb in sorted(rules - {"clean"}) if f"make {verb}" not in told]
    assert not missing, f"no document tells of: make {missing}"


def test_every_variable_that_lengthens_a_test_is_documented() -> None:
    text = (DOCS / "testing.md").read_text(encoding="utf-8")
    read = re.compile(r"""environ\.get\("(DLOG_[A-Z_]+)\"""")
    found = {name for source in sources.python("tests") for name in read.findall(source.text)}
    assert found
    missing = sorted(found - set(re.findall(r"DLOG_[A-Z_]+", text)))
    assert not missing, f"not in docs/testing.md: {missing}"


def test_every_config_key_is_documented() -> None:
    text = (sources.ROOT / "etc" / "dlog.yaml").read_text(encoding="utf-8")
    assert text == sample(), "run: python -m dlogd.config.sample > etc/dlog.yaml"
    topics = (DOCS / "operating" / "topic-configs.md").read_text(encoding="utf-8")
    missing = [name for name in TOPIC_CONFIGS if f"| `{name}` |" not in topics]
    assert not missing, f"not in docs/operating/topic-configs.md: {missing}"


def _anchors(text: str) -> set[str]:
    """Return what a link may name behind `#`: headings as GitHub spells them."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).lower() for each in heads]
    return {re.sub(r"[^\w\- ]", "", each).strip().replace(" ", "-") for each in plain}


def test_every_link_leads_somewhere() -> None:
    documents = [*sorted(sources.ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
    lost = []
    for path in documents:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            found = (path.parent / name).resolve() if name else path
            if target.startswith("https://"):
                continue
            if not found.exists() or (
                anchor and anchor not in _anchors(found.read_text(encoding="utf-8"))
            ):
                lost.append(f"{path.name}: {target}")
    assert not lost, "\n".join(lost)


def test_every_module_and_file_that_a_document_names_is_there() -> None:
    modules = {source.module: source.text for source in sources.python()}
    lost = []
    for path in [*sorted(sources.ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]:
        for code in re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8")):
            lost += [f"{path.name}: {name}" for name in NAMED_FILE.findall(code) if _is_lost(name)]
            for name in NAMED_MODULE.findall(code):
                module = next((m for m in _prefixes(name) if m in modules), "")
                rest = name[len(module) + 1 :].partition(".")[0]
                if "." not in module or not re.search(rf"\b{rest}\b", modules[module]):
                    lost.append(f"{path.name}: {name}")
    assert not lost, "\n".join(lost)


def _is_lost(name: str) -> bool:
    found = [sources.ROOT / name, sources.ROOT / f"{name}.py"]
    return "NNNN" not in name and not any(each.exists() for each in found)


def test_every_name_of_the_glossary_is_in_the_code() -> None:
    text = (DOCS / "GLOSSARY.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\|.*\| ([^|]*) \|$", text, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    words = {word for each in sources.production() for word in re.findall(r"\w+", each.text)}
    assert len(named) > 25
    assert not sorted(named - words)


def _prefixes(name: str) -> list[str]:
    """Return `a.b.c`, `a.b`, `a`."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
