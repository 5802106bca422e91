"""Completion in bash, zsh and fish: the scripts, and what they ask dlogctl for.

click's protocol: the script sets `_DLOGCTL_COMPLETE` and gives the words. Its script for bash is
not used: bash splits words at `:` and `=`, so that `--bootstrap h:9092` and `key=value` would be
taken apart. Ours hands over the whole line, and answers what stands behind the last such sign.
"""

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

PROGRAM = "dlogctl"
VARIABLE = "_DLOGCTL_COMPLETE"

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    COMPREPLY=()
    response=$(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \\
        COMP_WORDBREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1" 2>/dev/null)
    for completion in $response; do
        type=${completion%%%%,*}
        value=${completion#*,}
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            *)
                COMPREPLY+=("$value")
                [[ $value == *= ]] && compopt -o nospace
                ;;
        esac
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class WholeLineBash(BashComplete):
    """Completion for bash from the whole line."""

    source_template = _BASH

    def source(self) -> str:
        """Return the script; click would start a bash first to ask for its version."""
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is being typed, and that one."""
        typed = os.environ.get("COMP_LINE", "")
        point = os.environ.get("COMP_POINT", "")
        # COMP_POINT counts bytes.
        typed = typed.encode()[: int(point)].decode(errors="ignore") if point.isdecimal() else typed
        words = split_arg_string(typed)
        incomplete = words.pop() if typed and not typed[-1].isspace() and words else ""
        return words[1:], incomplete

    def format_completion(self, item: "CompletionItem[str]") -> str:
        """Return the type, and what bash is to put in the place of the last part of the word."""
        _, incomplete = self.get_completion_args()
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        cut = max((incomplete.rfind(sign) + 1 for sign in ":=" if sign in breaks), default=0)
        return f"{item.type},{str(item.value)[cut:]}"


class QuietZsh(ZshComplete):
    """Completion for zsh, with no blank behind `key=`."""

    source_template = ZshComplete.source_template.replace(
        "compadd -U -V unsorted -a completions",
        "compadd -U -V unsorted -- ${completions:#*=}\n"
        "        compadd -U -S '' -V unsorted -- ${(M)completions:#*=}",
    )


_CLASSES: dict[str, type[ShellComplete]] = {
    "bash": WholeLineBash,
    "zsh": QuietZsh,
    "fish": FishComplete,
}
SHELLS = tuple(_CLASSES)


def script(shell: str) -> str:
    """Return the script for a shell."""
    return _CLASSES[shell](click.Command(PROGRAM), {}, PROGRAM, VARIABLE).source()


def register() -> None:
    """Let click answer with our classes."""
    for name, complete in _CLASSES.items():
        add_completion_class(complete, name)
