"""Names and docstrings: who reads a file learns from its first lines what it holds."""

import ast
import re
import sys

import pytest

from tests.tidy import sources
from tests.tidy.sources import Source

BANNED_NAMES = frozenset({"utils", "util", "common", "helpers", "misc", "base", "core"})
# The word for the two owners of many partitions, and for nothing else.
MANAGERS = frozenset({"dlogd.storage.log_manager", "dlogd.replication.replica_manager"})
# `dlog.types` is the one exception that the conventions name; `posix` is the file system's.
STDLIB_NAMES_ALLOWED = frozenset({"dlog.types", "dlogd.storage.io.posix", "dlogd.storage.io"})
PARAMETER_LIST = re.compile(r"^\s*:(param|return|returns|rtype|raises|type)\b", re.MULTILINE)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
UNFINISHED = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")


def _documented(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool((ast.get_docstring(node) or "").strip())


def _is_error_leaf(node: ast.ClassDef) -> bool:
    """An error class of a table: nothing but constants."""
    return node.name.endswith("Error") and all(
        isinstance(part, ast.Assign | ast.AnnAssign | ast.Pass) for part in node.body
    )


def test_every_module_says_what_it_holds() -> None:
    silent = [source.name for source in sources.python() if not _documented(source.tree)]
    assert not silent, "\n".join(silent)


def test_package_roots_hold_only_a_docstring() -> None:
    wrong = []
    for source in sources.python():
        # Jobs say `dlog.spark.register(spark)`, after which Spark finds the rest by itself.
        if source.path.name != "__init__.py" or source.package == "dlog.spark":
            continue
        wrong += [source.at(node) for node in source.tree.body[1:]]
    assert not wrong, "\n".join(wrong)


def test_public_classes_and_functions_are_documented() -> None:
    silent = []
    for source in sources.production():
        for node in source.tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            leaf = isinstance(node, ast.ClassDef) and _is_error_leaf(node)
            if not node.name.startswith("_") and not leaf and not _documented(node):
                silent.append(f"{source.at(node)}: {node.name}")
    assert not silent, "\n".join(silent)


def test_docstrings_have_no_parameter_lists() -> None:
    wrong = []
    for source in sources.python():
        for node in source.nodes:
            if not isinstance(node, DOCUMENTED):
                continue
            if PARAMETER_LIST.search(ast.get_docstring(node) or ""):
                wrong.append(source.at(node))
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{source.name}:{number}: {line.strip()}"
        for source in sources.python()
        if source.path.name != "test_prose.py"
        for number, line in enumerate(source.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("source", sources.production(), ids=repr)
def test_module_names_say_what_is_inside(source: Source) -> None:
    name = source.module.rpartition(".")[2]
    assert name not in BANNED_NAMES, f"{source.name} says nothing"
    if name == "manager":
        assert source.module in MANAGERS
    if "." in source.module and name != "__main__" and source.module not in STDLIB_NAMES_ALLOWED:
        assert name not in sys.stdlib_module_names, f"{source.name} hides a stdlib module's name"


def test_nothing_cites_numbers_of_a_list_that_is_not_here() -> None:
    cited = re.compile(r"\b(?:rules?|requirements?|sections?) \d+\.\d+\b")
    found = [
        f"{path.relative_to(sources.ROOT)}: {each}"
        for path in sources.texts()
        for each in cited.findall(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)
