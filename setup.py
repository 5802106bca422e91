"""The one part of the build that pyproject.toml cannot say: the optional compiled extension.

Where it cannot be compiled, the build goes on without it and `dlog.batch.native` takes the pure
Python instead. The sources are in csrc/. DLOG_BUILD=pure leaves it out, for a wheel that fits every
Python and machine.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("csrc")

SPEEDUPS = Extension(
    "dlog.batch._speedups",
    sources=sorted(path.as_posix() for path in SOURCES.glob("*.c")),
    depends=sorted(path.as_posix() for path in SOURCES.glob("*.h")),
    optional=True,
)

setup(ext_modules=[] if os.environ.get("DLOG_BUILD") == "pure" else [SPEEDUPS])
