"""The project's files, parsed once, for the laws beside this module.

Walks the tree instead of asking git, so that a law also sees what is not committed yet.
"""

import ast
import gc
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCTION = ("dlog", "dlogd", "dlogctl")
PYTHON_ROOTS = (*PRODUCTION, "bench", "scripts", "tests")
TEXT_ROOTS = (*PYTHON_ROOTS, "docs", "etc", "deploy", "grafana", ".ci")
TEXT_SUFFIXES = frozenset(
    {
        *(".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".sh", ".service", ".java", ".xml"),
        *(".json", ".cfg", ".ini", ".conf", ".j2"),
    }
)
SKIPPED_FOLDERS = frozenset({"__pycache__", "target", "results"})


class Source:
    """One Python file: its text, its tree, its dotted module name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.package = self.module if path.name == "__init__.py" else self.module.rpartition(".")[0]

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def text(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        # A collection would walk the trees of all other files, and a tree has no cycle.
        gc.disable()
        try:
            return ast.parse(self.text, self.name)
        finally:
            gc.enable()

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree; the laws share one walk."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function and method, nested ones included."""
        return [n for n in self.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]

    def at(self, node: ast.AST) -> str:
        """Say where `node` stands, as `file:line`."""
        return f"{self.name}:{getattr(node, 'lineno', 1)}"


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in SKIPPED_FOLDERS and not path.name.endswith(".egg-info"):
                yield from _walk(path)
        elif path.is_file():
            yield path


@cache
def _source(path: Path) -> Source:
    """Return the one source of a path, so that each file is parsed once."""
    return Source(path)


@cache
def python(*roots: str) -> tuple[Source, ...]:
    """Return the Python files below `roots` (all when none is named)."""
    found = [ROOT / root for root in roots or PYTHON_ROOTS]
    return tuple(
        _source(path)
        for folder in found
        if folder.is_dir()
        for path in _walk(folder)
        if path.suffix == ".py"
    )


@cache
def production() -> tuple[Source, ...]:
    """Return the files of the library, the daemon and the command line."""
    return python(*PRODUCTION)


@cache
def texts() -> tuple[Path, ...]:
    """Return every text file of the project."""
    # In a worktree .git is a file, which names the repository's folder.
    found = [path for path in sorted(ROOT.iterdir()) if path.is_file() and path.name != ".git"]
    for root in TEXT_ROOTS:
        if (ROOT / root).is_dir():
            found.extend(_walk(ROOT / root))
    return tuple(p for p in found if p.suffix in TEXT_SUFFIXES or p.suffix == "")


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a chain of names, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        below = dotted(node.value)
        return f"{below}.{node.attr}" if below else ""
    return ""


def imported_names(source: Source) -> dict[str, str]:
    """Map each name that `source` imports to what it stands for, as a dotted path."""
    names: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


@cache
def calls(source: Source) -> tuple[tuple[ast.Call, str], ...]:
    """Return each call with the full dotted name of what is called, imports resolved."""
    return tuple(_calls(source))


def _calls(source: Source) -> Iterator[tuple[ast.Call, str]]:
    names = imported_names(source)
    for node in source.nodes:
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name:
                head, dot, rest = name.partition(".")
                yield node, names.get(head, head) + dot + rest
