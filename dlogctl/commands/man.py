"""`dlogctl man`: the manual page, on a terminal by man(1), else as roff."""

import shutil
import subprocess

import click

from dlog.version import VERSION
from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import has_abilities
from dlogctl.output.escaping import say_lines
from dlogctl.settings import common_options, settings_of
from dlogctl.shell.man_page import man_page


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl man", "Read it."),
        ("dlogctl man | sudo tee /usr/local/share/man/man1/dlogctl.1", "Install it."),
    ),
)
@common_options
@click.pass_context
def man(context: click.Context) -> int:
    """Show the manual page; in a pipe, its roff source."""
    page = man_page(context.find_root().command, VERSION)
    reader = shutil.which("man")
    if reader is None or not has_abilities(settings_of(context).environ):
        say_lines(page, nl=False)
        return exit_codes.OK
    subprocess.run([reader, "-l", "-"], input=page.encode(), check=False)
    return exit_codes.OK
