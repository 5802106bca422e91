"""Sentences of log lines are text of the source; values of others are arguments."""

import ast
import re
from collections.abc import Iterator

from tests.tidy import sources
from tests.tidy.sources import Source

LEVELS = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log"})
# A client's own text under these names would be shown uncut otherwise.
FORM = re.compile(r"(?<=\s)client_id=(?!%s(\s|$))")


def _sentences(source: Source) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield every call that logs or makes an event, and its sentence."""
    for node, name in sources.calls(source):
        assert isinstance(node, ast.Call)
        owner, _, method = name.rpartition(".")
        if method in LEVELS and owner.rpartition(".")[2] in ("log", "_log", "root", "LOGGER"):
            yield node, node.args[1 if method == "log" else 0]
        elif method == "Event" and not owner and "dlogd.runtime.log_events" in source.text:
            yield node, node.args[0]


def test_sentences_are_constants() -> None:
    found = [
        source.at(node)
        for source in sources.python("dlogd")
        for node, sentence in _sentences(source)
        if not isinstance(sentence, ast.Constant) or not isinstance(sentence.value, str)
    ]
    assert not found, "\n".join(found)


def test_names_of_clients_are_whole_values() -> None:
    found = [
        source.at(node)
        for source in sources.python("dlogd")
        for node, sentence in _sentences(source)
        if isinstance(sentence, ast.Constant) and FORM.search(str(sentence.value))
    ]
    assert not found, "\n".join(found)


def test_nothing_reads_a_sentence() -> None:
    """Fields come from the arguments of the call."""
    found = [
        source.at(node)
        for source in sources.python("dlogd")
        for node, name in sources.calls(source)
        if name.endswith("getMessage") and source.module != "dlogd.runtime.log_events"
    ]
    assert not found, "\n".join(found)


def test_the_law_sees_the_calls() -> None:
    seen = [each for source in sources.python("dlogd") for each in _sentences(source)]
    assert len(seen) > 150
