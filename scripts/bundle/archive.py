"""The file itself: a tar archive that depends on nothing but what lies in it."""

import gzip
import io
import tarfile
from pathlib import Path


def _member(path: Path, name: str, epoch_s: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mtime = epoch_s
    member.uname = member.gname = "root"
    if path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    else:
        member.size = path.stat().st_size
        member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    return member


def pack(folder: Path, file: Path, epoch_s: int) -> None:
    """Write `folder` into a .tar.gz, under its own name, as the user root and of one time."""
    packed = io.BytesIO()
    # Wheels are compressed already; a higher level takes seconds and saves nothing.
    with (
        gzip.GzipFile(
            fileobj=packed, mode="wb", compresslevel=6, mtime=epoch_s, filename=""
        ) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in [folder, *sorted(folder.rglob("*"))]:
            member = _member(path, path.relative_to(folder.parent).as_posix(), epoch_s)
            if member.isfile():
                with path.open("rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)
    half = file.with_name(f".{file.name}.half")
    half.write_bytes(packed.getvalue())
    half.rename(file)
