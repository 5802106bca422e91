"""`dlogd` in a kernel that has no AIO contexts left: io_setup fails with EAGAIN.

    python -m tests.daemon.no_aio --config FILE

So it does when other programs have used up fs.aio-max-nr, which belongs to the whole host and is
no test's to change. A seccomp filter says it for this process alone (man 2 seccomp).
"""

import ctypes
import errno
import os
import platform
import struct
import sys

from dlogd.storage.io.linux_aio import _CALL_NUMBERS

_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_RET_ERRNO = 0x0005_0000
_RET_ALLOW = 0x7FFF_0000
# struct sock_filter: code u16, jump if true u8, jump if false u8, k u32 (linux/filter.h)
_FILTER = struct.Struct("=HBBI")
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_io_setup() -> None:
    """Let io_setup fail with EAGAIN from now on, also after exec. Raises OSError."""
    io_setup = _CALL_NUMBERS[platform.machine()][0]
    instructions = b"".join(
        _FILTER.pack(*each)
        for each in (
            (_LOAD_WORD, 0, 0, 0),  # seccomp_data.nr
            (_JUMP_IF_EQUAL, 0, 1, io_setup),
            (_RETURN, 0, 0, _RET_ERRNO | errno.EAGAIN),
            (_RETURN, 0, 0, _RET_ALLOW),
        )
    )
    program = _Program(len(instructions) // _FILTER.size, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse_io_setup()
    os.execv(sys.executable, [sys.executable, "-m", "dlogd", *sys.argv[1:]])
