"""Hosts that a bundle is for: their Pythons, their machines, and where the lock files lie."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bundle"

PYTHONS = ("3.11", "3.13")
"""Debian 12 and Debian 13."""

MACHINES = ("x86_64", "aarch64")
"""As `platform.machine()` says; a bundle is for the one that it is made on."""

REQUIREMENTS = ROOT / "deploy" / "bundle" / "requirements.txt"
TOOLS = ROOT / "deploy" / "bundle" / "tools.txt"
"""What builds wheels (setuptools), and what unpacks them on a host (pip)."""

SOURCE_ONLY = frozenset({"pysyncobj"})
"""Packages without a wheel: they are built here, for they hold no compiled code."""

# glibc of Debian 12 is 2.36; pip does not take an older one from a newer name.
_GLIBCS = ("2_34", "2_31", "2_28", "2_17", "2_12", "2_5")


def platforms(machine: str) -> list[str]:
    """Return the platform tags that a host of this machine takes, newest first (PEP 600)."""
    return [f"manylinux_{glibc}_{machine}" for glibc in _GLIBCS] + [f"manylinux2014_{machine}"]


def choices(python: str, machine: str) -> list[str]:
    """Return pip's options for wheels of another host than this one."""
    named = [option for tag in platforms(machine) for option in ("--platform", tag)]
    return ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *named]
