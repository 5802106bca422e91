"""Sample file `etc/dlog.yaml`: every key at its default, with unit and reason.

Pure. Keys are commented out, so that a copy of the file does not pin an old version's defaults.
Made by `python -m dlogd.config.sample > etc/dlog.yaml`; a test compares the file with the schema.
"""

import sys
import textwrap

from dlogd.config.keys import Key
from dlogd.config.schema import KEYS

_HEADER = """\
# Configuration of dlogd. Every key stands here at its default; remove the `#` to set it.
#
# Keys may be flat, as here, or nested (`flush: {policy: interval}`).
# Sizes: 4096, 64KiB, 1MiB, 1GiB, 1TiB (also kB, MB, GB). Durations: 250ms, 1s, 10min, 12h, 7d.
# A variable in the environment overrides a key: DLOG_FLUSH_POLICY=interval; lists by commas.
# [reload]: taken over on SIGHUP (`systemctl reload dlogd`); all other keys need a restart.
# `dlogd --check-config --config FILE` reports every problem at once.
"""


def _bounds_of(key: Key) -> str:
    parts = []
    if key.low is not None:
        parts.append(f"from {key.kind.format(key.low)}")
    if key.high is not None:
        parts.append(f"to {key.kind.format(key.high)}")
    return " ".join(parts)


def _entry(key: Key) -> str:
    facts = [key.kind.unit, _bounds_of(key), "reload" if key.reloadable else ""]
    brackets = " ".join(f"[{fact}]" for fact in facts if fact)
    prose = textwrap.wrap(key.doc, 98, break_long_words=False, break_on_hyphens=False)
    lines = [f"# {line}" for line in [*prose, brackets]]
    return "\n".join([*lines, f"#{key.name}: {key.format(key.default)}"]) + "\n"


def sample() -> str:
    """Return the text of `etc/dlog.yaml`."""
    return "\n".join([_HEADER, *(_entry(bound.key) for bound in KEYS.values())])


def main() -> None:
    """Write the sample to standard output."""
    sys.stdout.write(sample())


if __name__ == "__main__":
    main()
