"""Folders and files of a sandbox, which nobody but their owner may prepare or change.

A folder that another user made first, or may write to, can hold links to files of whoever starts
the sandbox, and a secret that the other user knows. So everything below a sandbox's folder must be
the caller's own, closed to writers of other accounts, and no symbolic link. Called by
`dlogctl.commands.sandbox`, `dlogctl.sandbox.layout` and `dlogctl.sandbox.daemon`.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OTHERS_WRITE = 0o022
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


class FolderError(Exception):
    """A folder or file of a sandbox cannot be trusted; says the cause and the cure."""


def _problem_of(path: Path, found: os.stat_result) -> str | None:
    """Say what is wrong with what stands at `path`, and the cure; None when nothing is."""
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link: remove it, or name another directory with --dir"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user: name another directory with --dir"
    is_shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if is_shared and found.st_mode & _OTHERS_WRITE:
        # Shared on purpose, as /tmp is: its mode must stay.
        return f"everybody may write to {path}: name a directory of your own with --dir"
    if not stat.S_ISSOCK(found.st_mode) and found.st_mode & _OTHERS_WRITE:
        return f"other users may write to {path}; if its content is yours: chmod -R go-w {path}"
    if stat.S_ISREG(found.st_mode) and found.st_nlink != 1:
        return f"{path} has another name elsewhere (a hard link): remove it"
    return None


def _refuse(path: Path, found: os.stat_result) -> None:
    if problem := _problem_of(path, found):
        raise FolderError(problem)


def _below(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all that stands below a folder; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            found = entry.stat(follow_symlinks=False)
            path = Path(entry.path)
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                yield from _below(path)


def check_folder(folder: Path, names: tuple[str, ...]) -> None:
    """Raise FolderError when others prepared or may change a sandbox's folder.

    `names`: the entries that are the sandbox's; `node-*` stands for those that begin so. Whatever
    else lies in the folder does not matter. FileNotFoundError: there is no such folder.
    """
    _refuse(folder, folder.lstat())
    with os.scandir(folder) as entries:
        own = [each.name for each in entries if _is_among(each.name, names)]
    for name in sorted(own):
        path = folder / name
        found = path.lstat()
        _refuse(path, found)
        if stat.S_ISDIR(found.st_mode):
            for inner, inner_found in _below(path):
                _refuse(inner, inner_found)


def _is_among(name: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in names)


def make_folder(folder: Path) -> None:
    """Make a folder for the caller alone, or take the caller's own; raise FolderError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)
    found = folder.lstat()
    _refuse(folder, found)
    if not stat.S_ISDIR(found.st_mode):
        raise FolderError(f"{folder} is not a directory: name another one with --dir")


def replace_file(path: Path, text: str) -> None:
    """Write a file of the caller alone in the place of another one, all at once."""
    fresh = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()  # of a start that was interrupted
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
    with open(os.open(fresh, flags, FILE_MODE), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(fresh, path)


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a file of the caller alone; raise FolderError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | _NO_LINK
    return _checked(path, flags)


def read_secret(path: Path) -> str | None:
    """Return the text of a file that only the caller may read, None without one; FolderError."""
    try:
        descriptor = _checked(path, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK)
    except FileNotFoundError:
        return None
    with open(descriptor, encoding="ascii") as file:
        if os.fstat(descriptor).st_mode & 0o077:
            raise FolderError(f"other users may read {path}: chmod 600 {path}")
        return file.read()


def _checked(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags, FILE_MODE)
    except OSError as error:
        if path.is_symlink():
            _refuse(path, path.lstat())
        raise error
    try:
        found = os.fstat(descriptor)
        _refuse(path, found)
        if not stat.S_ISREG(found.st_mode):
            raise FolderError(f"{path} is not a regular file: remove it")
    except FolderError:
        os.close(descriptor)
        raise
    return descriptor
