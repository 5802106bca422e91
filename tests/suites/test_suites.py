"""Reports of foreign suites, the page made of them, and reasons: all fit together."""

from tests.suites import compatibility, outcomes
from tests.suites.outcomes import FAILED, PASSED, SKIPPED, SuiteResult
from tests.suites.reasons import REASONS
from tests.suites.running import SUITES

JUNIT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><skipped/></testcase>
<testcase name="d"><error/></testcase><testcase name="b"/></testsuite></testsuites>"""
GO = [
    "the compiler says something",
    '{"Action":"run","Test":"A"}',
    '{"Action":"run","Test":"A/part"}',
    '{"Action":"fail","Test":"A/part"}',
    '{"Action":"pass","Test":"A"}',
    '{"Action":"skip","Test":"B"}',
    '{"Action":"run","Test":"C"}',
    '{"Action":"fail"}',
]


def result(server: str, found: dict[str, str]) -> SuiteResult:
    return SuiteResult(
        suite=SUITES[0].name, server=server, version="1", date="2026-01-01", outcomes=found
    )


def test_junit_reports_are_read_and_the_worst_outcome_of_a_name_counts() -> None:
    found = outcomes.of_junit(JUNIT)
    assert found == {"a": PASSED, "b": FAILED, "c": SKIPPED, "d": FAILED}
    assert outcomes.of_junit(outcomes.to_junit("suite", found)) == found


def test_a_test_of_go_that_never_ended_has_failed() -> None:
    assert outcomes.of_go(GO) == {"A": PASSED, "B": SKIPPED, "C": FAILED}


def test_a_difference_without_a_reason_is_named() -> None:
    ours = result("dlog 1", {"one": PASSED, "two": FAILED, "three": FAILED, "four": SKIPPED})
    theirs = result("kafka 1", {"one": PASSED, "two": PASSED, "three": FAILED, "five": PASSED})
    assert compatibility.differences(ours, theirs) == ["five", "two"]
    missing = compatibility.unexplained([ours, theirs])
    assert missing == [f"{SUITES[0].name}: {each}" for each in ("five", "three", "two")]


def test_every_difference_that_was_seen_has_a_reason_and_every_reason_is_needed() -> None:
    results = outcomes.load()
    assert not compatibility.unexplained(results)
    needed = set()
    for suite in SUITES:
        ours, theirs = compatibility.pair(results, suite.name)
        assert ours is not None and theirs is not None and ours.outcomes and theirs.outcomes
        for name, found in ours.outcomes.items():
            if found == FAILED or name in compatibility.differences(ours, theirs):
                needed.add(compatibility.reason_for(suite.name, name))
    assert needed == set(REASONS)


def test_the_page_is_the_one_that_the_results_make() -> None:
    page = compatibility.page(outcomes.load())
    assert compatibility.PATH.read_text(encoding="utf-8") == page
