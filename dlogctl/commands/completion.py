"""`dlogctl completion`: the script that lets a shell complete dlogctl's commands."""

import click

from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.output.escaping import say_lines
from dlogctl.settings import common_options, settings_of
from dlogctl.shell.shells import SHELLS, script

INSTALL = {
    "bash": "echo 'source <(dlogctl completion bash)' >> ~/.bashrc",
    "zsh": "echo 'source <(dlogctl completion zsh)' >> ~/.zshrc",
    "fish": "dlogctl completion fish > ~/.config/fish/completions/dlogctl.fish",
}


@click.command(
    cls=ExampleCommand,
    examples=tuple((line, f"Once, for {shell}.") for shell, line in INSTALL.items()),
)
@click.argument("shell", type=click.Choice(SHELLS))
@common_options
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the script that lets SHELL complete commands, options, topics, configs.

    Names come from the cluster that the line names, or the context; where it does not answer within
    a second, there are none.
    """
    say_lines(script(shell), nl=False)
    settings_of(context).suggest(INSTALL[shell])
    return exit_codes.OK
