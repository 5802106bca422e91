"""Loading of a configuration from YAML and the environment; all problems at once.

Keys may be flat (`flush.policy: always`), nested (`flush: {policy: always}`) or mixed. The YAML is
walked as nodes, not as values: that gives each problem its line, and each scalar as it was written
(`on` stays `on`). Nothing is raised but `ConfigError`, with one sentence per problem.
"""

import difflib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dlog.errors import ConfigError
from dlogd.config import plain_yaml
from dlogd.config.bounds import violations
from dlogd.config.keys import Key
from dlogd.config.schema import KEYS, Config, build

DEPTH_MAX = 8
TEXT_BYTES_MAX = plain_yaml.TEXT_CHARS_MAX
ENVIRONMENT_PREFIX = "DLOG_"
# The others are of the command line.
ENVIRONMENT_OTHER = frozenset(
    {
        *("DLOG_CONFIG", "DLOG_BOOTSTRAP", "DLOG_CONTEXT", "DLOG_HTTP", "DLOG_OUTPUT"),
        *("DLOG_TIMEOUT", "DLOG_MAINTENANCE_TOKEN"),
    }
)
"""Variables with our prefix that are no keys: the path of the file; whom `dlogctl` asks first."""

_NULL_TAG = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as a source gives it, before it is parsed."""

    texts: list[str]
    place: str  # for messages: `dlog.yaml line 3`, `environment DLOG_NODE_ID`
    line: int  # 0: not in the file


@dataclass(frozen=True, slots=True, order=True)
class _Problem:
    line: int
    place: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.place}: {self.sentence}" if self.place else self.sentence


class _Reader:
    """Collects what one file gives, and its problems."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.given: dict[str, _Given] = {}
        self.problems: list[_Problem] = []
        self.is_yaml = True
        self.faulty: set[str] = set()
        """Keys whose value is not known."""

    def problem(self, line: int, sentence: str) -> None:
        self.problems.append(_Problem(line, self._place(line), sentence))

    def _place(self, line: int) -> str:
        return f"{self.source} line {line}" if line else self.source

    def read(self, text: str) -> None:
        try:
            root = plain_yaml.compose(text)
        except plain_yaml.PlainYamlError as error:
            self.problem(error.line, str(error))
            self.is_yaml = False
        else:
            if root is not None and not _is_null(root):
                self._walk(root, "", 0)

    def _walk(self, node: yaml.Node, prefix: str, depth: int) -> None:
        """Walk one mapping whose keys all begin with `prefix`."""
        if not isinstance(node, yaml.MappingNode):
            self.problem(_line_of(node), _no_section(prefix))
            return
        sections: dict[str, int] = {}
        for name_node, value in node.value:
            line = _line_of(name_node)
            if not isinstance(name_node, yaml.ScalarNode):
                self.problem(line, "a key must be a plain name")
                continue
            name = prefix + name_node.value
            if name in KEYS and not isinstance(value, yaml.MappingNode):
                self._take(name, value, line)
            elif _is_null(value) and _is_section(name):
                continue  # `flush:` with everything below it commented out
            elif name in sections:
                self.problem(line, f"{name}: given twice, first at line {sections[name]}")
            elif isinstance(value, yaml.MappingNode) and depth < DEPTH_MAX:
                sections[name] = line
                self._walk(value, f"{name}.", depth + 1)
            else:
                self.problem(line, _unknown(name))

    def _take(self, name: str, value: yaml.Node, line: int) -> None:
        if (earlier := self.given.get(name)) is not None:
            self.problem(line, f"{name}: given twice, first at line {earlier.line}")
            return
        nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(node, yaml.ScalarNode) for node in nodes):
            self.problem(line, f"{name}: wants {KEYS[name].key.kind.unit}")
            self.faulty.add(name)
            return
        if not _is_null(value):  # null: the default
            self.given[name] = _Given([node.value for node in nodes], self._place(line), line)


def _line_of(node: yaml.Node) -> int:
    line: int = node.start_mark.line + 1
    return line


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == _NULL_TAG)


def _is_section(name: str) -> bool:
    return any(known.startswith(f"{name}.") for known in KEYS)


def _no_section(prefix: str) -> str:
    return f"{prefix.rstrip('.')}: wants keys and values" if prefix else "wants keys and values"


def _unknown(name: str) -> str:
    """Say that a key is unknown, with what may have been meant."""
    inside = [known for known in KEYS if known.startswith(f"{name}.")]
    if inside:
        return f"{name}: is a section; its keys are {', '.join(inside)}"
    near = difflib.get_close_matches(name, KEYS, n=1, cutoff=0.5)
    return f"{name}: unknown key" + (f"; did you mean {near[0]}?" if near else "")


def _read_environment(environment: Mapping[str, str], reader: _Reader) -> dict[str, _Given]:
    by_variable = {bound.key.environment_name: bound.key for bound in KEYS.values()}
    given: dict[str, _Given] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in ENVIRONMENT_OTHER:
            continue
        key = by_variable.get(variable)
        place = f"environment {variable}"
        if key is None:
            near = difflib.get_close_matches(variable, by_variable, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            reader.problems.append(_Problem(0, place, f"belongs to no key{hint}"))
            continue
        text = environment[variable]
        given[key.name] = _Given(text.split(",") if key.kind.is_list else [text], place, 0)
    return given


def _parse(key: Key, given: _Given, reader: _Reader) -> Any:
    try:
        return key.parse(given.texts)
    except ValueError as error:
        reader.problems.append(_Problem(given.line, given.place, f"{key.name}: {error}"))
        reader.faulty.add(key.name)
        return key.default


@dataclass(frozen=True, slots=True)
class Examined:
    """A configuration as far as it can be read."""

    config: Config | None
    """With the defaults of faulty keys; None: the text is no YAML."""
    problems: list[str]
    faulty: frozenset[str]
    """Keys whose value cannot be read."""


def load_config(
    source: str | Path, environment: Mapping[str, str] | None = None, *, name: str = "dlog.yaml"
) -> Config:
    """Make a configuration from YAML text, or a file's path, and `DLOG_…` variables over it.

    Raises `ConfigError` with all problems: those of the environment first, then by line.
    """
    found = examine(source, environment, name=name)
    if found.problems or found.config is None:
        raise ConfigError(found.problems)
    return found.config


def examine(
    source: str | Path, environment: Mapping[str, str] | None = None, *, name: str = "dlog.yaml"
) -> Examined:
    """Do what `load_config` does, and return the problems with what can be read in spite of them.

    Raises `ConfigError` when there is no text.
    """
    text, name = (source, name) if isinstance(source, str) else (_text_of(source), str(source))
    reader = _Reader(name)
    reader.read(text)
    given = reader.given | _read_environment(environment or {}, reader)
    problems = reader.problems
    wrong_before = len(problems)
    values = {each: _parse(KEYS[each].key, given[each], reader) for each in given}
    config = build(values)
    if len(problems) == wrong_before:
        # With a value missing, the rules between keys would blame the wrong one.
        problems.extend(_violations(config, given, name))
    sentences = [str(problem) for problem in sorted(problems)]
    faulty = frozenset(reader.faulty)
    return Examined(config if reader.is_yaml else None, sentences, faulty)


def _text_of(path: Path) -> str:
    try:
        # Without blocking: a FIFO would be waited for, and a device has no end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: is not a regular file")
            data = file.read(TEXT_BYTES_MAX + 1)
        if len(data) > TEXT_BYTES_MAX:
            raise ConfigError(f"{path}: is larger than {TEXT_BYTES_MAX} bytes")
        return data.decode().replace("\r\n", "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}") from error


def _violations(config: Config, given: dict[str, _Given], name: str) -> list[_Problem]:
    problems = []
    for violation in violations(config):
        # Blame a key that somebody wrote, rather than a default.
        culprit = next((each for each in violation.names if each in given), None)
        place, line = (name, 0) if culprit is None else (given[culprit].place, given[culprit].line)
        problems.append(_Problem(line, place, f"{violation.names[0]}: {violation.message}"))
    return problems
