"""Every `dlogctl` command that a document shows is one that the parser takes as it stands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dlogctl.__main__ import dlogctl
from tests.tidy import sources

DOCUMENTS = (
    *sorted(sources.ROOT.glob("*.md")),
    *sorted((sources.ROOT / "docs").rglob("*.md")),
)
PLANNED = {"group"}
"""What README lists among what is not there yet; no other document may count on it."""
PROGRAM = re.compile(r"(?:\.venv/bin/)?dlogctl\s+(.*)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _blocks(text: str) -> Iterator[str]:
    """Yield the lines of fenced and of indented blocks."""
    fences = FENCE.findall(text)
    yield from (line for fence in fences for line in fence.splitlines())
    yield from (line for line in FENCE.sub("", text).splitlines() if line.startswith("    "))


def _shown(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a block; a pipe or `&&` begins another one."""
    for line in _blocks(text):
        plain = re.sub(r"(?:^|\s)#.*", "", line).strip().removeprefix("$ ")
        for part in re.split(r"\s+(?:&&|\|)\s+", plain):
            if found := PROGRAM.match(part):
                yield shlex.split(re.split(r"\s[<>]", found[1])[0])


def _named(text: str) -> Iterator[list[str]]:
    """Yield the words of each command within a line; `a|b` stands for two of them."""
    for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)):
        if not (found := PROGRAM.match(code)):
            continue
        commands: list[list[str]] = [[]]
        for word in found[1].replace("\\|", "|").split():
            several = word.split("|") if re.fullmatch(r"[a-z|-]+", word) else [word]
            commands = [[*each, one] for each in commands for one in several]
        yield from commands


def _find(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the first words name, and the words behind it."""
    command: click.Command = dlogctl
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        while rest and rest[0].startswith("-"):  # an option of all commands and its value
            rest = rest[2:]
        if not rest or rest[0] == "COMMAND":
            break
        below = command.get_command(click.Context(command), rest[0])
        assert below is not None, f"there is no {rest[0]} in {' '.join(words)}"
        command, rest = below, rest[1:]
    return command, rest


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_every_command_is_taken_as_it_stands(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text("{}")
    text = document.read_text(encoding="utf-8")
    for words in _shown(text):
        command, rest = _find(words)
        does = not isinstance(command, click.Group) or command.invoke_without_command
        assert does, f"{document.name}: dlogctl {' '.join(words)}"
        try:
            command.make_context(str(command.name), rest)
        except click.ClickException as error:
            pytest.fail(f"{document.name}: {' '.join(words)}: {error.format_message()}")
    for words in _named(text):
        if words[0] in PLANNED and document.name == "README.md":
            continue
        command, rest = _find(words)
        known = {each for one in command.params for each in (*one.opts, *one.secondary_opts)}
        options = {each.strip("[]").partition("=")[0] for each in rest if "--" in each}
        assert options <= known | {"--help"}, f"{document.name}: dlogctl {' '.join(words)}"


def test_the_documents_show_commands() -> None:
    texts = [each.read_text(encoding="utf-8") for each in DOCUMENTS]
    assert sum(1 for text in texts for _ in _shown(text)) > 40
    assert sum(1 for text in texts for _ in _named(text)) > 60
