"""Imports the user's functions that are named in the config."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from tfpipe.errors import ConfigError


def load_function(name: str, key: str) -> Callable[..., Any]:
    """Imports the function "package.module:function", from installed packages or the current directory.

    `key` is the config key that holds the name, for messages. Raises ConfigError if the name has another form, the
    module cannot be imported, or it has no such function.
    """
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise ConfigError(f'{key} must be "package.module:function", received "{name}"')
    if "" not in sys.path:
        sys.path.append("")  # the current directory; last, so that it never shadows a package
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{key}: cannot import {module_name}: {error}") from error
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{key}: {module.__file__} has no function {function_name}")
    return function
