"""Contexts: named sets of settings, so that one need not name the cluster each time.

    ~/.config/dlog/contexts.yaml            (or below XDG_CONFIG_HOME)
    /etc/dlog/contexts.yaml                 for all users of a host; what a user has himself wins

    current: prod
    contexts:
      prod:
        bootstrap: n1:9092,n2:9092
        timeout: 10s

Read when a setting is asked for that neither an option nor the environment gives. `dlogctl context`
writes the user's file, never the host's. yaml is loaded when there is a file.
"""

import contextlib
import fcntl
import importlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

SETTINGS = ("bootstrap", "http", "output", "timeout")
"""What a context may hold; `dlogctl.settings` says what each means."""

HOST_PATH = Path("/etc/dlog/contexts.yaml")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ContextError(click.ClickException):
    """The file of contexts cannot be used, or has no such context."""


def contexts_path(environ: Mapping[str, str]) -> Path:
    """Return where the contexts of this user are."""
    configured = environ.get("XDG_CONFIG_HOME", "")
    # A relative path is to be ignored (XDG Base Directory Specification).
    folder = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    return folder / "dlog" / "contexts.yaml"


def check_name(name: str) -> str:
    """Return `name`; raise click.BadParameter when no context may be called so."""
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r} is not a name of a context; use letters, digits, '.', '_' and '-'"
        )
    return name


@dataclass(slots=True)
class Contexts:
    """All contexts of a user and which of them is in use."""

    path: Path
    current: str | None = None
    contexts: dict[str, dict[str, str]] = field(default_factory=dict)
    where: Path | None = None
    """The file that says which is in use; None: `path`."""

    def named(self, name: str, where: str) -> dict[str, str]:
        """Return a context's settings; `where` says who asks for it, in the error."""
        if name not in self.contexts:
            there = ", ".join(self.contexts) or "none"
            raise ContextError(
                f"there is no context {name} ({where}); there are: {there}. "
                f"Make it: dlogctl context set {name} --bootstrap HOST:PORT"
            )
        return self.contexts[name]

    def save(self) -> None:
        """Write the file anew; whoever reads it sees the old one or the new one."""
        document = {"current": self.current, "contexts": self.contexts}
        text = importlib.import_module("yaml").safe_dump(document, sort_keys=False)
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=".contexts-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, self.path.resolve())  # a link to a file kept elsewhere stays one
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


@contextlib.contextmanager
def changing(path: Path) -> Iterator[Contexts]:
    """Give the contexts and save them at the end; others who change them wait meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        contexts = load_contexts(path)
        yield contexts
        contexts.save()
    finally:
        os.close(folder)


def load_contexts(path: Path) -> Contexts:
    """Read the contexts; none when there is no file. Raise ContextError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ContextError(f"{path}: cannot be read: {reason}") from None
    try:
        document = importlib.import_module("dlogd.config.plain_yaml").load(text)
    except ValueError as error:  # PlainYamlError, which is loaded only now
        at = getattr(error, "line", 0)
        line = f" line {at}" if at else ""
        raise ContextError(f"{path}{line}: {error}; mend it or move it away") from None
    return _checked(path, document)


def known_contexts(environ: Mapping[str, str]) -> Contexts:
    """Return the user's contexts and those of the host, for reading. Raise ContextError."""
    own, host = load_contexts(contexts_path(environ)), load_contexts(HOST_PATH)
    is_own = own.current is not None
    return Contexts(
        path=own.path,
        current=own.current if is_own else host.current,
        contexts={**host.contexts, **own.contexts},
        where=own.path if is_own or host.current is None else HOST_PATH,
    )


def _checked(path: Path, document: Any) -> Contexts:
    if document is None:
        return Contexts(path)
    if not isinstance(document, dict) or not isinstance(document.get("contexts") or {}, dict):
        raise ContextError(f"{path}: it must have `current: NAME` and `contexts:` with names")
    found = Contexts(path)
    for name, settings in (document.get("contexts") or {}).items():
        found.contexts[str(name)] = _settings(path, str(name), settings)
    current = document.get("current")
    found.current = None if current is None else str(current)
    return found


def _settings(path: Path, name: str, settings: Any) -> dict[str, str]:
    if settings is not None and not isinstance(settings, dict):
        raise ContextError(f"{path}: context {name} must have keys: {', '.join(SETTINGS)}")
    for key, value in (settings or {}).items():
        if key not in SETTINGS:
            raise ContextError(
                f"{path}: context {name} has an unknown key {key}; known are {', '.join(SETTINGS)}"
            )
        if isinstance(value, dict | list) or value is None:
            raise ContextError(f"{path}: context {name}: {key} must be a text")
    return {key: str(value) for key, value in (settings or {}).items()}
