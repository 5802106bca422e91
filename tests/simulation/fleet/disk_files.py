"""What a host's disks hold: files by their paths, and where batches lie in a segment."""

from collections.abc import Iterator

from dlog.batch.header import HEADER_BYTES, LENGTH_OVERHEAD_BYTES
from tests.fakes.inode import SECTOR, Inode
from tests.simulation.fleet.host import FleetHost
from tests.simulation.fleet.shadows import Head


def files_of(host: FleetHost) -> Iterator[tuple[str, Inode]]:
    """Yield all files on a host's disks with their paths."""
    for disk in host.machine.disks.values():
        yield from disk.root.files(disk.mount.rstrip("/"))


def file_at(host: FleetHost, path: str) -> Inode | None:
    """Return the file at a path, None where there is none."""
    return next((inode for name, inode in files_of(host) if name == path), None)


def indexes_of(segment_path: str) -> tuple[str, str]:
    """Return the paths of a segment's two indexes."""
    return segment_path.replace(".log", ".idx"), segment_path.replace(".log", ".tdx")


def place(inode: Inode, head: Head) -> tuple[int, int] | None:
    """Return where a batch lies in its segment, None where it is not found."""
    content, position = inode.content, 0
    while position + HEADER_BYTES <= min(len(content), inode.size):
        base_offset = int.from_bytes(content[position : position + 8], "big")
        size = int.from_bytes(content[position + 8 : position + 12], "big")
        end = position + size + LENGTH_OVERHEAD_BYTES
        if base_offset == head.base_offset:
            return (position, end) if end <= min(len(content), inode.size) else None
        if base_offset > head.base_offset or end <= position + HEADER_BYTES:
            return None
        position = end
    return None


def stored(inode: Inode, start: int, end: int) -> dict[int, int]:
    """Return the bytes of a range that the disk itself holds."""
    end = min(end, inode.durable_size)
    return {at: inode.content[at] for at in range(start, end) if at // SECTOR not in inode.stale}
