"""Meaning of system errors for a disk: harmless, full, or broken."""

import errno

NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
OF_THE_PROCESS = NO_DESCRIPTOR | {errno.ENOMEM}
"""The process or the system lacks something for now."""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

SHORTAGES = OF_THE_PROCESS | NO_SPACE
"""What passes: nothing is lost, and what met it may be tried again."""

# A wrong call of ours, and what somebody else did to our files, say nothing about the disk either.
_NO_DISK_FAILURE = (
    SHORTAGES
    | {errno.EFBIG, errno.EAGAIN, errno.EINTR, errno.EINVAL, errno.EBADF, errno.EEXIST}
    # Somebody has put a directory in the place of a file, or the other way round.
    | {errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR}
)


def is_disk_failure(error: OSError) -> bool:
    """Return whether the whole directory must be mistrusted (EIO, read-only, vanished, ...)."""
    return error.errno not in _NO_DISK_FAILURE
