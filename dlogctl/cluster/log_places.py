"""Places in a log as they are given on the command line: `--from` and `--until`.

Pure; the time comes from the caller.
"""

import re
from datetime import datetime

from dlog.client.starts import Start, Timestamp

_UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d{1,9})(ms|s|min|h|d)")
FORMS = (
    "start, end, an offset, -N (the last N of each partition), -15min (that long ago), "
    "2026-11-21T12:00, or @ and milliseconds since 1970"
)


def parse_place(text: str, now_ms: int) -> Start:
    """Return what a text means; raise ValueError with a message for people."""
    word = text.strip()
    if word in ("start", "earliest"):
        return "earliest"
    if word in ("end", "latest"):
        return "latest"
    if re.fullmatch(r"-?\d{1,18}", word) and word != "-0":
        return int(word)
    if ago := _AGO.fullmatch(word):
        return Timestamp(max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]]))
    if re.fullmatch(r"@\d{1,18}", word):
        return Timestamp(int(word[1:]))
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(f"{text!r} is not a place in a log; valid forms: {FORMS}") from None
    # Without a zone it is the time of the clock on the wall here.
    return Timestamp(max(0, round(moment.astimezone().timestamp() * 1000)))
