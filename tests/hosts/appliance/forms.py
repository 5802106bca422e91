"""The two forms of the tests of plays: a short one in `make test`, and `make appliance`."""

import os

import pytest

FORM = "DLOG_APPLIANCE"
TEST_S = 1500
SHORT_TEST_S = 900

short_form = [pytest.mark.timeout(SHORT_TEST_S, func_only=True)]
long_form = [
    pytest.mark.skipif(os.environ.get(FORM) != "long", reason="an hour: make appliance"),
    pytest.mark.timeout(TEST_S, func_only=True),
]
