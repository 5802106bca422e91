"""Writes both units of systemd from one template: `python -m scripts.units`.

dlogd.service is for one dlogd on a host, dlogd@.service for several.
"""

from pathlib import Path

UNITS = Path(__file__).resolve().parents[1] / "deploy" / "systemd"
TEMPLATE = UNITS.parent / "unit.template"
MADE = "# Made from deploy/unit.template by `python -m scripts.units`.\n"

ONE = """\
# One dlogd per host. Several: dlogd@.service.
"""
SEVERAL = """\
# One of several dlogd on a host: `dlogd@1`, `dlogd@2`, ..., each with its own file
# /etc/dlog/dlog-1.yaml, ports, disks and (examples/cpus.conf) CPUs, and the host as its rack.
"""

VALUES = {
    "dlogd.service": (ONE, {"DESCRIPTION": "", "FILE": "", "DIRECTORY": ""}),
    "dlogd@.service": (
        SEVERAL,
        {"DESCRIPTION": ", instance %i", "FILE": "-%i", "DIRECTORY": "/%i"},
    ),
}


def unit(name: str) -> str:
    """Return the text of a unit."""
    head, values = VALUES[name]
    text = TEMPLATE.read_text(encoding="utf-8")
    for word, value in values.items():
        text = text.replace(f"@{word}@", value)
    return head + MADE + text


def main() -> None:
    """Write them."""
    for name in VALUES:
        (UNITS / name).write_text(unit(name), encoding="utf-8")


if __name__ == "__main__":
    main()
