"""Prose that reads at once: first lines, short sentences, the field's words, small pages."""

import re
from collections.abc import Iterator

import pytest

from tests.tidy import sources
from tests.tidy.sources import Source

README_BYTES_MAX = 10_000
SENTENCE_WORDS_MAX = 25
FOLDER_FILES_MAX = 20
CROWDED = frozenset({"dlogd/server/handlers", "dlogd/metadata/raft", "dlogctl/commands"})
"""Folders with one file for each API, part of Raft or command."""
NOT_A_NOUN = re.compile(
    r"^(Who|What|Which|Where|When|Whether|How|From|Of|Else|Makes|Looks|Puts|Gives|Asks|Tells|Takes"
    r"|Deletes|Keeps|Learns|Builds|Fetches|Appends|Follows|Runs|Reads|Writes|Cuts|Carries|Finds)\b"
)
PAGES = ("README.md", "CHANGELOG.md", *(f"docs/{name}.md" for name in ("ARCHITECTURE", "GLOSSARY")))
PAGES += (
    "docs/NOT.md",
    "docs/performance.md",
    "docs/testing.md",
    "docs/client.md",
    "docs/spark.md",
)
PAGES += tuple(f"docs/operating/{name}.md" for name in ("daemon", "cluster", "recovery"))
PAGES += tuple(f"docs/operating/{name}.md" for name in ("configuration", "topic-configs"))
PAGES += tuple(f"docs/operating/{name}.md" for name in ("errors", "metrics", "protocol", "dlogctl"))
PAGES += tuple(f"docs/operating/{name}.md" for name in ("install", "upgrade", "add-remove"))
PAGES += ("deploy/ansible/README.md",)
OLD_WORDS = re.compile(
    r"\b(anew|in vain|somebody|nobody|whoever|no further than|so long as|tells of|told of)\b", re.I
)
OLD_STARTS = re.compile(r"^(Who|What|Of|Where|Else)\b(?!.*\?$)")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`X\[(])")
_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs, items of lists and cells of tables; no headings and no code."""
    lines: list[str] = []
    for line in [*re.sub(r"^```.*?^```|^    .*?$", "", text, flags=re.S | re.M).split("\n"), ""]:
        is_row = line.startswith("|")
        if is_row or not line.strip() or line.startswith("#") or _ITEM.match(line):
            if lines:
                yield " ".join(lines)
            lines = []
        if is_row:
            yield from (cell.strip() for cell in line.strip("|").split("|"))
        elif line.strip() and not line.startswith("#"):
            lines.append(_ITEM.sub("", line).strip())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page, code and links as one word each."""
    for paragraph in _paragraphs(text):
        plain = _LINK.sub(r"\1", re.sub(r"`[^`]*`", "X", paragraph)).replace("**", "")
        yield from _SENTENCE_END.split(plain)


@pytest.mark.parametrize("source", sources.production(), ids=repr)
def test_first_lines_say_what_a_module_holds(source: Source) -> None:
    first = source.text.partition('"""')[2].partition("\n")[0]
    assert not NOT_A_NOUN.match(first), f"{source.name}: no noun phrase: {first}"


def test_the_readme_is_read_in_one_go() -> None:
    assert (sources.ROOT / "README.md").stat().st_size <= README_BYTES_MAX


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short_and_begin_with_a_subject(page: str) -> None:
    found = list(sentences((sources.ROOT / page).read_text(encoding="utf-8")))
    wrong = [each for each in found if len(each.split()) > SENTENCE_WORDS_MAX]
    wrong += [each for each in found if OLD_STARTS.match(each)]
    wrong += [each for each in found if OLD_WORDS.search(each)]
    assert len(found) > 10
    assert not wrong, "\n".join(wrong)


def test_folders_have_few_files_and_a_line_in_the_architecture() -> None:
    text = (sources.ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders: dict[str, int] = {}
    for source in sources.production():
        folder = source.path.parent.relative_to(sources.ROOT).as_posix()
        folders[folder] = folders.get(folder, 0) + (source.path.name != "__init__.py")
    crowded = [name for name, count in folders.items() if count > FOLDER_FILES_MAX]
    assert set(crowded) <= CROWDED, crowded
    lost = [name for name in folders if f"| `{name.replace('/', '.')}` |" not in text]
    assert not lost, f"no line in docs/ARCHITECTURE.md: {lost}"


def test_file_names_are_unique_within_the_daemon() -> None:
    places: dict[str, list[str]] = {}
    for source in sources.python("dlogd"):
        folder = source.path.parent.name
        if source.path.name != "__init__.py" and folder not in {"machine", "commands", "raft"}:
            places.setdefault(source.path.name, []).append(source.name)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, twice


def test_a_law_of_prose_can_fail() -> None:
    text = "Who leads `x`. " + "Word " * 26 + ".\n\n| a cell | Of two |\n\n```\nWho\n```\n"
    found = list(sentences(text))
    assert [bool(OLD_STARTS.match(each)) for each in found] == [True, False, False, True]
    assert max(len(each.split()) for each in found) > SENTENCE_WORDS_MAX
