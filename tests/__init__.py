"""Tests of tfpipe."""

import pytest

# What an assert of a helper compared is told, as for one of a test.
pytest.register_assert_rewrite("tests.support")
