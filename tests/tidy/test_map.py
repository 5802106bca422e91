"""docs/modules.md is a whole map of the modules, and ARCHITECTURE names every folder."""

from scripts import modules
from tests.tidy import sources


def test_the_map_of_modules_is_what_the_modules_say() -> None:
    written = (sources.ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
    assert written == modules.text(), "run: python -m scripts.modules > docs/modules.md"
