"""Nothing in the project depends on the machine or the folder that it was written on."""

import re
from pathlib import Path

from tests.tidy import sources

# Folders that exist everywhere; only a path below another place gives away a machine.
STANDARD = frozenset(map(Path, ("/", "/tmp", "/opt", "/srv", "/var", "/usr", "/root", "/home")))


def _own_places() -> list[Path]:
    places = {sources.ROOT, sources.ROOT.parent, Path.home()}
    return sorted(places - STANDARD)


def test_no_file_names_a_place_of_this_machine() -> None:
    places = "|".join(re.escape(str(place)) for place in _own_places())
    found_place = re.compile(rf"(?<![\w.])(?:{places})(?=[/\s\"'`]|$)")
    found = []
    for path in sources.texts():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [
            f"{path.relative_to(sources.ROOT)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(lines, 1)
            if found_place.search(line)
        ]
    assert not found, "\n".join(found)
