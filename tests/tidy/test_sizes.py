"""Files and functions stay small enough to be read in one go."""

from tests.tidy import sources

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60


def test_files_are_short() -> None:
    long = []
    for source in sources.python():
        line_count = source.text.count("\n")
        if line_count > FILE_LINES_MAX:
            long.append(f"{source.name}: {line_count} lines, at most {FILE_LINES_MAX}")
    assert not long, "\n".join(long)


def test_functions_are_short() -> None:
    long = []
    for source in sources.python():
        for function in source.functions:
            line_count = (function.end_lineno or function.lineno) - function.lineno + 1
            if line_count > FUNCTION_LINES_MAX:
                long.append(f"{source.at(function)}: {function.name} has {line_count} lines")
    assert not long, "\n".join(long)


def test_recipes_of_the_makefile_are_short() -> None:
    recipe_lines = 0
    for line in (sources.ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        recipe_lines = recipe_lines + 1 if line.startswith("\t") else 0
        assert recipe_lines <= 3, f"a recipe of more than three lines: {line}"
