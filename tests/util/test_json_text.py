"""JSON text without the constants that only Python writes and reads."""

import json
import math

import pytest

from tfpipe.util.json_text import differences, to_json


def test_numbers_that_are_not_finite_become_null_at_any_depth() -> None:
    value = {"a": math.nan, "b": [1.5, (math.inf, {"c": -math.inf})], "d": "NaN", "e": None}
    text = to_json(value)
    assert json.loads(text) == {"a": None, "b": [1.5, [None, {"c": None}]], "d": "NaN", "e": None}
    assert to_json({"a": 1}, indent=1) == json.dumps({"a": 1}, indent=1)
    with pytest.raises(TypeError):
        to_json({"a": object()})


def test_what_only_one_of_both_has_differs_only_if_asked_for() -> None:
    old, new = {"a": 1, "b": [1, 2], "c": 3}, {"a": 1, "b": [1], "d": 4}
    assert differences(old, new, "then", "now") == ["b: [1, 2] then, [1] now"]
    assert differences(old, new, "then", "now", ["c", "d"]) == ["c: 3 then, null now", "d: null then, 4 now"]
    (message,) = differences({"a": "x" * 61}, {"a": [1] * 30}, "there", "now")
    assert message == f'a: "{"x" * 9}..." there, {str([1] * 30)[:40]} ... (30) now'
