"""Everything that dlogctl shows goes through `dlogctl.output.escaping`, which escapes it."""

import re

from tests.tidy import sources

SAYING = "dlogctl.output.escaping"
# What writes to standard output or standard error, and where it may stand.
WRITES = re.compile(
    r"print|click\.(echo\w*|secho|prompt|confirm|style|pause|edit)|rich\.print"
    r"|(.*\.)?(stdout|stderr)(\.buffer)?\.(write|writelines)|os\.write"
    r"|(traceback|warnings)\.(print_\w+|warn)|(.*\.)?Console"
)
ALLOWED = {
    # Cells come escaped, and are never markup.
    "dlogctl.output.terminal": r"Console|rich\.console\.Console",
    # Runs out of a bundle, before anything but the standard library is there.
    "dlogctl.release.installer": r"print",
}
# Control sequences of dlogctl's own.
CONTROLS = frozenset({SAYING, "dlogctl.output.watch", "dlogctl.perf.measurement"})


def test_nothing_else_writes_to_the_terminal() -> None:
    found = [
        f"{source.at(node)}: {name} goes around dlogctl.output.escaping"
        for source in sources.python("dlogctl")
        if source.module != SAYING
        for node, name in sources.calls(source)
        if WRITES.fullmatch(name) and not re.fullmatch(ALLOWED.get(source.module, ""), name)
    ]
    assert not found, "\n".join(found)


def test_control_sequences_are_written_in_few_places() -> None:
    found = [
        source.at(node)
        for source in sources.python("dlogctl")
        for node, name in sources.calls(source)
        if name.rpartition(".")[2] == "control"
        and source.module not in CONTROLS
        and not source.module.startswith("dlogctl.sandbox")
    ]
    assert not found, "\n".join(found)


def test_the_law_sees_every_way_out() -> None:
    for name in ("print", "click.echo", "click.echo_via_pager", "click.secho", "click.confirm"):
        assert WRITES.fullmatch(name)
    for name in ("sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write", "os.write"):
        assert WRITES.fullmatch(name)
