"""Plain YAML: one document without anchors and aliases, bounded in size, depth and number of nodes.

Pure. With aliases a text of 800 bytes stands for 10^8 nodes, and no configuration needs them. No
other module reads YAML (`tests/tidy/test_purity.py`): `dlogd.config.load` and `dlogctl.contexts`
call this one.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import yaml

TEXT_CHARS_MAX = 1 << 20
DEPTH_MAX = 32
NODES_MAX = 20_000


class PlainYamlError(ValueError):
    """A text is no plain YAML; `line` counts from 1, 0: unknown."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(problem)
        self.line = line


class _Loader(yaml.SafeLoader):
    """Refuses what is not plain before anything is built from it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node; raise PlainYamlError."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise PlainYamlError(
                f"{sign}{anchor}: anchors and aliases are not read; write the value itself"
                " wherever it is meant",
                line,
            )
        self._depth += 1
        self._count += 1
        if self._depth > DEPTH_MAX:
            raise PlainYamlError(f"nested too deeply, {DEPTH_MAX} levels are read", line)
        if self._count > NODES_MAX:
            raise PlainYamlError(f"has more than {NODES_MAX} keys and values", line)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _no_yaml(error: Exception) -> PlainYamlError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return PlainYamlError(f"is no YAML: {problem}", mark.line + 1 if mark else 0)


@contextlib.contextmanager
def _reading(text: str) -> Iterator[_Loader]:
    """Give a loader of a text; raise PlainYamlError for whatever PyYAML raises."""
    if len(text) > TEXT_CHARS_MAX:
        raise PlainYamlError(f"is larger than {TEXT_CHARS_MAX} bytes")
    try:
        loader = _Loader(text)
        try:
            yield loader
        finally:
            loader.dispose()
    except PlainYamlError:
        raise
    # A ValueError: a number of thousands of digits, a day that there is not.
    except (yaml.YAMLError, ValueError) as error:
        raise _no_yaml(error) from None


def compose(text: str) -> yaml.Node | None:
    """Return the root node of a text, None of an empty one; raise PlainYamlError."""
    with _reading(text) as loader:
        root: yaml.Node | None = loader.get_single_node()
        return root


def load(text: str) -> Any:
    """Return the document of a text, in which no mapping has a key twice; raise PlainYamlError."""
    with _reading(text) as loader:
        root = loader.get_single_node()
        if root is None:
            return None
        _check_keys(root)
        return loader.construct_document(root)


def _check_keys(node: yaml.Node) -> None:
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name in lines:
                raise PlainYamlError(f"{name}: given twice, first at line {lines[name]}", line)
            lines[name] = line
            _check_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check_keys(each)
