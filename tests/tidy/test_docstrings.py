"""What a docstring says is raised exists."""

import ast
import builtins
import re
from collections.abc import Iterator

import click

from tests.tidy import sources
from tests.tidy.sources import Source

ERROR_NAME = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")


def _classes(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name).rpartition(".")[2] for each in node.names)


def _named(source: Source) -> Iterator[tuple[ast.AST, str]]:
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for name in ERROR_NAME.findall(ast.get_docstring(node) or ""):
                yield node, name


def test_docstrings_name_errors_that_exist() -> None:
    files = [each for root in sources.PRODUCTION for each in sources.python(root)]
    known = {*dir(builtins), *dir(click)}
    for source in files:
        known.update(_classes(source))
    found = [
        f"{source.at(node)}: there is no {name}"
        for source in files
        for node, name in _named(source)
        if name not in known
    ]
    assert not found, "\n".join(found)
