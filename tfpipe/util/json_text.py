"""Values as JSON text, which every reader of JSON accepts, by key, and messages on how two sets of them differ."""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any


def to_json(value: Any, **options: Any) -> str:
    """Returns a value as JSON; NaN and infinite numbers, which JSON does not have, become null.

    `options` are those of json.dumps. Raises TypeError if the value has no form in JSON.
    """
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


def leaves(sections: Mapping[str, Any], free: Collection[str] = ()) -> dict[str, Any]:
    """Returns the values in nested dictionaries by key, e.g. "optimizer.args.momentum", without the keys `free`."""

    def walk(value: Any, key: str) -> Iterator[tuple[str, Any]]:
        if key in free:
            return
        if isinstance(value, dict) and value:
            for name, part in value.items():
                yield from walk(part, f"{key}.{name}")
        else:
            yield key, value

    return dict(leaf for name, section in sections.items() for leaf in walk(section, name))


def differences(
    old: dict[str, Any], new: dict[str, Any], before: str, after: str, names: list[str] | None = None
) -> list[str]:
    """Returns a message with both values for each of `names` that differs; None for the names that both have."""
    names = [name for name in old if name in new] if names is None else names
    differing = [name for name in names if old.get(name) != new.get(name)]
    return [f"{name}: {_short(old.get(name))} {before}, {_short(new.get(name))} {after}" for name in differing]


def _short(value: Any) -> str:
    text = to_json(value)
    if len(text) <= 60:
        return text
    return f'{text[:10]}..."' if isinstance(value, str) else f"{text[:40]} ... ({len(value)})"
