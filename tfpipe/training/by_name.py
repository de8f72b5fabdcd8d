"""Finds Keras' classes by name and makes their objects, with errors that name the config's key."""

import inspect
from typing import Any

from tfpipe.errors import ConfigError

OWN = 'or one of your own, "package.module:name"'


def subclasses(module: Any, base: type) -> dict[str, Any]:
    """Returns the subclasses of `base` in a module, by name, without `base` itself."""
    return {
        name: kind
        for name, kind in sorted(vars(module).items())
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base
    }


def find(kinds: dict[str, Any], name: str, key: str) -> Any:
    """Returns the class `name`; `key` is the config key that holds the name.

    Raises ConfigError if there is none.
    """
    if name not in kinds:
        raise ConfigError(f'{key} "{name}" is not known; accepted: {", ".join(kinds)}, {OWN}')
    return kinds[name]


def make(kind: Any, args: dict[str, Any], key: str) -> Any:
    """Calls a class with `args`, which `key` of the config holds.

    Raises ConfigError if it refuses them.
    """
    try:
        return kind(**args)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key} {args} do not fit {kind.__name__}: {error}") from error
