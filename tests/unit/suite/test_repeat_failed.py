"""Which failed tests CI runs once more: few, and only where chance can be why."""

import pytest

from scripts.repeat_failed import FILES_MAX, FOLDERS, refusal


def test_tests_of_real_processes_are_repeated() -> None:
    for folder in FOLDERS:
        assert refusal([f"tests/{folder}/test_a.py::test_b[c/d]"]) is None
    many = [f"tests/cluster/test_a.py::test_b[{number}]" for number in range(20)]
    assert refusal(many) is None


@pytest.mark.parametrize(
    ("failed", "why"),
    [
        ([], "something else"),
        (["tests/property/test_a.py::test_b"], "not a test of real processes"),
        (["tests/simulation/test_a.py::test_b"], "not a test of real processes"),
        (["tests/cluster/test_a.py::test_b", "tests/golden/test_a.py::test_b"], "golden"),
        (["tests/cluster/test_a.py"], "not a test"),  # it could not even be imported
        (["scripts/a.py::test_b"], "not a test"),
        ([f"tests/cluster/test_{n}.py::test_b" for n in range(FILES_MAX + 1)], "more than"),
    ],
)
def test_everything_else_fails_at_once(failed: list[str], why: str) -> None:
    said = refusal(failed)
    assert said is not None and why in said
