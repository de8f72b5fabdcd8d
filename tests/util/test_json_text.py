"""JSON text without the constants that only Python writes and reads."""

import json
import math

import pytest

from tfpipe.util.json_text import to_json


def test_numbers_that_are_not_finite_become_null_at_any_depth() -> None:
    value = {"a": math.nan, "b": [1.5, (math.inf, {"c": -math.inf})], "d": "NaN", "e": None}
    text = to_json(value)
    assert json.loads(text) == {"a": None, "b": [1.5, [None, {"c": None}]], "d": "NaN", "e": None}
    assert to_json({"a": 1}, indent=1) == json.dumps({"a": 1}, indent=1)
    with pytest.raises(TypeError):
        to_json({"a": object()})
