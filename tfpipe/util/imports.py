"""Imports that need care: the user's functions that the config names, and triton before TensorFlow."""

import importlib
import logging
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

LATE = (
    "torch runs without triton, so torch.compile cannot target GPUs: loaded after TensorFlow, triton crashes the "
    "process. Import tfpipe.torch before tensorflow, and before the first tfpipe.build_dataset, to have it"
)


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


def load_triton() -> None:
    """Loads triton, if installed, before TensorFlow; hides it from torch if TensorFlow is already loaded.

    TensorFlow's wheels export their LLVM symbols to libraries that are loaded later; triton's LLVM binds to them and
    crashes (https://github.com/tensorflow/tensorflow/issues/124205). torch loads triton only with its first optimizer,
    when TensorFlow is already loaded.
    """
    if "triton" in sys.modules or find_spec("triton") is None:
        return
    if "tensorflow" in sys.modules:
        logger.warning(LATE)
        # Importing triton then raises ImportError, which torch expects; Python allows None here, typeshed does not.
        sys.modules["triton"] = None  # type: ignore[assignment]
    else:
        import triton  # noqa: F401
