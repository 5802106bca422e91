"""Tests that take long and show little more: they run with DLOG_SPARK_LONG=1."""

import os

import pytest

IS_LONG = "DLOG_SPARK_LONG" in os.environ
long_form = pytest.mark.skipif(not IS_LONG, reason="takes a minute")
