"""The one part of the build that pyproject.toml cannot say: the optional compiled extension.

Where it cannot be compiled, the build goes on without it and `dlog.batch.native` takes the pure
Python instead. The sources are in csrc/.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("csrc")

setup(
    ext_modules=[
        Extension(
            "dlog.batch._speedups",
            sources=sorted(path.as_posix() for path in SOURCES.glob("*.c")),
            depends=sorted(path.as_posix() for path in SOURCES.glob("*.h")),
            optional=True,
        )
    ]
)
