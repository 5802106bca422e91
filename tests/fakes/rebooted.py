"""Files of a simulated disk as the next process finds them, for tests of that disk."""

from dlogd.storage.io.files import Directory, File
from tests.fakes.disk import Machine


def reopen(machine: Machine) -> Directory:
    """Return the data directory as the next process sees it."""
    return machine.boot().open_directory("/data/a")


def durable_file(directory: Directory, name: str, data: bytes) -> File:
    """Return a file whose content and entry are on the disk."""
    file = directory.open(name, create=True)
    file.pwrite(data, 0)
    file.sync()
    directory.sync()
    return file
