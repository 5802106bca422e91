"""The version of the software: what `pyproject.toml` says, or what it said when this was built.

An installed package knows it by the name of its metadata directory. `importlib.metadata` would say
the same, and takes a tenth of a node's start to import.
"""

import re
from pathlib import Path

UNKNOWN = "unknown"
"""Where the modules lie without metadata and without a project, as in an archive for Spark."""

_INFO = re.compile(r"dlog-(.+)\.dist-info")
_LINE = re.compile(r'^name = "dlog"\nversion = "([^"]+)"$', re.MULTILINE)


def version_in(folder: Path) -> str:
    """Return the version of the dlog whose packages lie in `folder`."""
    try:
        # A checkout first: its own metadata are of the last `pip install -e`.
        found = _LINE.search((folder / "pyproject.toml").read_text(encoding="utf-8"))
        if found is not None:
            return found.group(1)
    except OSError:
        pass
    named = [_INFO.fullmatch(path.name) for path in sorted(folder.glob("dlog-*.dist-info"))]
    return next((match.group(1) for match in named if match is not None), UNKNOWN)


def wire_version(version: str) -> str:
    """Return a version as ApiVersions takes it, in letters, digits, dots and dashes (KIP-511)."""
    return re.sub(r"[^a-zA-Z0-9.-]+", "-", version).strip(".-") or UNKNOWN


VERSION = version_in(Path(__file__).resolve().parents[1])
