"""`dlogctl release`: the releases of dlog on this host, and whether their files are whole."""

from pathlib import Path
from typing import Any

import click

from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand, LazyGroup
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say
from dlogctl.release import directory
from dlogctl.release.bundle import MANIFEST, RefusedError
from dlogctl.release.making import locked
from dlogctl.settings import common_options, settings_of

COLUMNS = (
    Column("RELEASE", "version"),
    Column("LINK", "link"),
    Column("PROCESSES", "processes"),
    Column("COMMIT", "commit", wide=True),
    Column("DIRECTORY", "path", wide=True),
)
WRONG_COLUMNS = (Column("RELEASE", "version"), Column("PROBLEM", "problem"))

root_option = click.option(
    "--root", type=click.Path(path_type=Path), default=directory.ROOT, show_default=True,
    help="The directory with releases/ and the link current.")  # fmt: skip


@click.group(
    cls=LazyGroup,
    examples=(
        ("dlogctl release list", "What is installed here, and which release runs."),
        ("dlogctl release verify", "Are the files of all releases as they were made?"),
        ("sudo dlogctl release clean", "Make room; what runs or ran before stays."),
    ),
)
def release() -> None:
    """Show, check and delete the releases of this host. No cluster is asked."""


@release.command(
    "list",
    cls=ExampleCommand,
    examples=(("dlogctl release list -o wide", "With commits and directories."),),
)
@root_option
@common_options
@click.pass_context
def list_releases(context: click.Context, root: Path) -> int:
    """List the releases of this host, the one made last at the end.

    PROCESSES are the daemons that run out of it; after a switch the old one, until its restart.
    """
    settings = settings_of(context)
    output = Output(settings)
    found = directory.releases(root)
    rows: list[dict[str, Any]] = [
        {
            "version": each.version,
            "link": "current" if each.is_current else "previous" if each.is_previous else None,
            "processes": list(each.process_ids),
            "commit": each.commit,
            "path": str(directory.path_of(each.version, root)),
        }
        for each in found
    ]
    output.rows(rows, COLUMNS)
    for name in directory.strays(root):
        path = directory.path_of(name, root)
        say(f"{path} is not a release: it has no {MANIFEST}; move it away", err=True)
    if not found and output.for_people:
        say(f"there is no release in {root}: unpack a bundle and run its ./install make", err=True)
    settings.suggest("dlogctl release verify")
    return exit_codes.OK


@release.command(
    cls=ExampleCommand,
    examples=(("dlogctl release verify 0.1.0", "Only this one."),),
)
@click.argument("versions", metavar="[VERSION]...", nargs=-1)
@root_option
@common_options
@click.pass_context
def verify(context: click.Context, versions: tuple[str, ...], root: Path) -> int:
    """Compare the files of releases with their SHA256SUMS; all releases without VERSION.

    Exit code 10 when a file is missing, was added or has other bytes.
    """
    settings = settings_of(context)
    output = Output(settings)
    rows: list[dict[str, Any]] = []
    asked = versions or tuple(directory.versions(root))
    if not asked:
        raise click.ClickException(f"there is no release in {root}")
    for version in asked:
        try:
            problems = directory.verify(version, root)
        except RefusedError as error:
            problems = [str(error)]
        rows += [{"version": version, "problem": problem} for problem in problems]
    if output.for_people and not rows:
        say(f"whole: {', '.join(asked)}")
    else:
        output.rows(rows, WRONG_COLUMNS)
    return exit_codes.UNHEALTHY if rows else exit_codes.OK


@release.command(
    "clean",
    cls=ExampleCommand,
    examples=(
        ("sudo dlogctl release clean --keep 2", "The two newest stay."),
        ("dlogctl release clean --dry-run", "What would go?"),
    ),
)
@root_option
@click.option("--keep", type=click.IntRange(min=0), default=3, show_default=True,
              help="So many of the newest stay.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@common_options
@click.pass_context
def clean(context: click.Context, root: Path, keep: int, dry_run: bool) -> int:
    """Delete old releases.

    Never the current one, the one before it, or one out of which a daemon runs.
    """
    output = Output(settings_of(context))
    try:
        with locked(root):
            gone = directory.old(keep, root)
            if not dry_run:
                directory.delete(gone, root)
    except (RefusedError, PermissionError) as error:
        cure = ": run it as root, with sudo" if isinstance(error, PermissionError) else ""
        raise click.ClickException(f"{error}{cure}") from error
    verb = "would be deleted" if dry_run else "deleted"
    if output.for_people:
        say(f"{verb}: {', '.join(gone) or 'none'}")
    elif output.has_documents:
        output.document({"deleted": gone})
    else:
        output.rows([{"version": each} for each in gone], COLUMNS[:1])
    return exit_codes.OK
