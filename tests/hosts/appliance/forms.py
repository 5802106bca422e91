"""The long form of the tests of plays: `make appliance`."""

import os

import pytest

FORM = "DLOG_APPLIANCE"
TEST_S = 1500

long_form = [
    pytest.mark.skipif(os.environ.get(FORM) != "long", reason="an hour: make appliance"),
    pytest.mark.timeout(TEST_S, func_only=True),
]
