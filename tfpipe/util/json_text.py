"""JSON text that every reader of JSON accepts: NaN and infinite numbers, which JSON has not, become null."""

import json
import math
from typing import Any


def to_json(value: Any, **options: Any) -> str:
    """Returns a value as JSON; `options` are those of json.dumps. Raises TypeError if it has no form in JSON."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    """Returns a copy of a value with None in the place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
