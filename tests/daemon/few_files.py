"""A `dlogd` that may have few files open, as on a host whose limit is small; run with `-m`."""

import resource
import sys

from dlogd.__main__ import main

FILES_MAX = 200

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    sys.exit(main())
