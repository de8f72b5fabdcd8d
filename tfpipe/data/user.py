"""Functions of the user's own, named in the config."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from tfpipe.errors import ConfigError


def load_function(name: str, key: str) -> Callable[..., Any]:
    """The function "package.module:function", also from the current directory.

    Args:
        name: of the function.
        key: of the config, where the name is from.

    Raises:
        ConfigError: there is no such function; says what there is.
    """
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise ConfigError(f'{key} must be "package.module:function", received "{name}"')
    if "" not in sys.path:
        sys.path.append("")  # the current directory, last, so that it hides no package
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{key}: cannot import {module_name}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{key}: {module.__file__} has no function {function_name}")
    return function
