"""Packages that a host needs in addition to dlog, and the error where one is missing.

Imports nothing of it, nor of dlog's client: it must work where they are missing.
"""

import importlib.util
import sys

from dlog.spark.errors import SparkSourceError

PACKAGES = ("pyspark", "pyarrow", "numpy")


def missing_packages() -> list[str]:
    """Return which packages this interpreter cannot import."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def require_packages() -> None:
    """Raise SparkSourceError where this interpreter lacks a package."""
    missing = missing_packages()
    if missing:
        raise not_installed(missing, f"this Python ({sys.executable})")


def not_installed(packages: list[str], where: str) -> SparkSourceError:
    """Return the error for packages that are missing somewhere."""
    names = " ".join(packages)
    return SparkSourceError(
        "DLOG_PACKAGE_MISSING",
        f"{where} has no {', '.join(packages)}.",
        f"Install it there (pip install {names}), or let PYSPARK_PYTHON name a Python that has it.",
    )
