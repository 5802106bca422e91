"""`python -m bench`: measure the rows of the table beside the peers.

Everything by default; `--row` for single rows, whose results are merged into the others'.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import before, machine, plot, report
from bench.arena import DESCRIPTIONS
from bench.peers.server import CACHE, ROOT
from bench.run import RUNS, all_rows, run_row

RESULTS = ROOT / "bench" / "results" / "results.json"
QUICK_RESULTS = CACHE / "bench" / "quick" / "results.json"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = [row.name for row in all_rows()]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--row", action="append", choices=names, help="only this row (repeatable)")
    parser.add_argument("--only", action="append", choices=list(DESCRIPTIONS), default=[])
    parser.add_argument("--runs", type=int, help=f"measured runs of each contender ({RUNS})")
    parser.add_argument("--quick", action="store_true", help="small loads, 2 runs, results aside")
    parser.add_argument("--dir", type=Path, default=CACHE / "bench" / "data", help="where to write")
    parser.add_argument("--output", type=Path, help="the JSON file of results")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument("--before", type=Path, help="an installed checkout: it and this, in turns")
    parser.add_argument("--report", action="store_true", help="only remake table and plot")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 when a target was missed."""
    options = _parse(arguments)
    # Users run compiled files; packages that pip has installed are compiled in any case.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rows = [row for row in all_rows() if not options.row or row.name in options.row]
    if options.list:
        print("\n".join(f"{row.name:26}{row.title}" for row in rows))
        return 0
    output = options.output or (QUICK_RESULTS if options.quick else RESULTS)
    if options.before:
        rows = before.take_part(rows, options.before)
        output = options.output or output.with_name("before.json")
    results = {"rows": {}} if options.before else report.load(output)
    # Where the other checkout lies is nobody else's business.
    shown = ["TREE" if text == str(options.before) else text for text in arguments]
    command = shlex.join(["python", "-m", "bench", *shown])
    missed = False
    for row in [] if options.report else rows:
        runs = options.runs or (2 if options.quick else row.runs or RUNS)
        folder = options.dir / row.name
        found = run_row(row, folder, runs=runs, quick=options.quick, only=options.only, say=_say)
        report.merge(results, found, machine.facts(options.dir), command)
        report.save(results, output)
        for target in found["targets"]:
            missed |= target["met"] is False
            _say(f"{row.name}: {target}")
    report.save(results, output)
    if options.before:
        text = before.markdown(results, options.before, command)
        output.with_suffix(".md").write_text(text)
        print(text, end="")
        return 0
    plot.draw(results, output)
    print(report.markdown(results))
    print(f"written: {output.with_suffix('')}.json .md, pictures beside them")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
