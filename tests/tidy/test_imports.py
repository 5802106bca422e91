"""The shape of the import graph, beyond the layers that import-linter checks."""

import ast
from collections.abc import Iterator

from tests.tidy import sources
from tests.tidy.sources import Source

ENTRY_POINTS = ("dlogd.__main__", "dlogctl.__main__", "bench.__main__", "scripts.bundle.__main__")


def _modules() -> dict[str, Source]:
    return {source.module: source for source in sources.python()}


def _imported_modules(source: Source, modules: dict[str, Source]) -> Iterator[tuple[ast.AST, str]]:
    """Yield each module of the project that `source` imports."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parents = source.package.split(".")
                kept = parents[: len(parents) - node.level + 1]
                module = ".".join([*kept, module] if module else kept)
            for alias in node.names:
                below = f"{module}.{alias.name}"
                if below in modules:
                    yield node, below
                elif module in modules:
                    yield node, module


def _graph() -> dict[str, list[str]]:
    modules = _modules()
    return {
        name: [target for _, target in _imported_modules(source, modules)]
        for name, source in modules.items()
    }


def test_no_import_cycle() -> None:
    graph = _graph()
    state: dict[str, int] = {}  # 1: on the present path, 2: done
    path: list[str] = []
    cycles = []

    def visit(name: str) -> None:
        state[name] = 1
        path.append(name)
        for target in graph[name]:
            if target == name:
                continue
            if state.get(target) == 1:
                cycles.append(" -> ".join([*path[path.index(target) :], target]))
            elif target not in state:
                visit(target)
        path.pop()
        state[name] = 2

    for name in graph:
        if name not in state:
            visit(name)
    assert not cycles, "\n".join(cycles)


def test_no_import_inside_a_function() -> None:
    found = []
    for source in sources.production():
        if source.module.startswith("dlog.spark"):
            continue
        for function in source.functions:
            found += [
                source.at(node)
                for node in ast.walk(function)
                if isinstance(node, ast.Import | ast.ImportFrom)
            ]
    assert not found, "\n".join(found)


def test_nothing_is_imported_from_a_module_of_tests() -> None:
    """What modules of tests share stands in `tests/fakes`, or beside them under another name."""
    modules = _modules()
    found = [
        f"{source.at(node)}: {target}"
        for source in modules.values()
        for node, target in _imported_modules(source, modules)
        if target.rpartition(".")[2].startswith("test_")
    ]
    assert not found, "\n".join(found)


def test_no_star_import_and_nothing_from_a_package_root() -> None:
    found = []
    modules = _modules()
    for source in sources.python():
        for node, target in _imported_modules(source, modules):
            if not isinstance(node, ast.ImportFrom):
                continue
            names = {alias.name for alias in node.names}
            if target == "dlog.spark" and names == {"register"}:
                continue  # what jobs say
            is_root = modules[target].path.name == "__init__.py"
            if "*" in names or is_root:
                found.append(f"{source.at(node)}: from {target} import {', '.join(sorted(names))}")
    assert not found, "\n".join(found)


def _is_entry_point(source: Source) -> bool:
    name = source.path.name
    if name.startswith("test_") or name in {"conftest.py", "__main__.py"}:
        return source.name.startswith("tests/") or source.module in ENTRY_POINTS
    # A file in scripts/, a program of the bench or of the tests runs by itself.
    runs = any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        for node in source.tree.body
    )
    return runs and source.name.startswith(("scripts/", "bench/", "tests/"))


def test_every_file_is_reached_from_an_entry_point_or_a_test() -> None:
    graph = _graph()
    modules = _modules()
    todo = [name for name, source in modules.items() if _is_entry_point(source)]
    reached = set(todo)
    while todo:
        for target in graph[todo.pop()]:
            if target not in reached:
                reached.add(target)
                todo.append(target)
    lost = [
        source.name
        for name, source in modules.items()
        if name not in reached and source.path.name != "__init__.py"
    ]
    assert not lost, "\n".join(lost)
