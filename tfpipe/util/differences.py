"""Describes how two sets of named values differ."""

import json
from typing import Any


def differences(
    old: dict[str, Any], new: dict[str, Any], before: str, after: str, names: list[str] | None = None
) -> list[str]:
    """Returns a message with both values for each of `names` that differs; None: the names that both have."""
    names = [name for name in old if name in new] if names is None else names
    differing = [name for name in names if old.get(name) != new.get(name)]
    return [f"{name}: {_short(old.get(name))} {before}, {_short(new.get(name))} {after}" for name in differing]


def _short(value: Any) -> str:
    text = json.dumps(value)
    if len(text) <= 60:
        return text
    return f'{text[:10]}..."' if isinstance(value, str) else f"{text[:40]} ... ({len(value)})"
