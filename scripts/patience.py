"""How long the demo waits: as long as something comes. A slow machine is no failure. Pure."""


class LateError(Exception):
    """Nothing came for too long; the message says of what how much was there."""


class Patience:
    """Ends when a count has not grown for `quiet_s`, however long the whole takes."""

    def __init__(self, quiet_s: float, now_s: float) -> None:
        """Begin to wait."""
        self._quiet_s = quiet_s
        self._grown_s = now_s
        self._count = 0

    def look(self, what: str, count: int, wanted: int, now_s: float) -> None:
        """Take note of how much has come; raise LateError where that is at an end."""
        if count > self._count:
            self._count, self._grown_s = count, now_s
        elif now_s - self._grown_s > self._quiet_s:
            quiet = f"nothing came for {self._quiet_s:.0f} s"
            raise LateError(f"not {what} in time: {count:,} of {wanted:,}, then {quiet}")
