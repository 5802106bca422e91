"""Space kept back on a disk for the note that retention must write before it deletes.

Retention notes where a log begins before it removes segments. On a disk without a free block that
note finds no space, and the disk would stay full for ever. docs/formats/data-directory.md.
"""

from contextlib import suppress

from dlogd.storage.io.errnos import NO_SPACE
from dlogd.storage.io.files import Directory

SPARE = "spare"
SPARE_BYTES = 1 << 20


class EmergencySpace:
    """The spare space of one data directory. Its methods block; several threads may call them."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def keep(self) -> None:
        """Take the space unless it is taken, or there is none. Raises OSError."""
        try:
            file = self._directory.open(SPARE, create=True)
            try:
                if file.size() < SPARE_BYTES:
                    file.preallocate(0, SPARE_BYTES)
            finally:
                file.close()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def give(self) -> None:
        """Let go of the space. Raises OSError."""
        with suppress(FileNotFoundError):
            self._directory.unlink(SPARE)
