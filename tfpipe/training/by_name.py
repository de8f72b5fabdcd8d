"""Finds Keras' classes by name, makes their objects and calls the user's own code, with errors that name the config's
key, and the line of the user's code that raised."""

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import tfpipe
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.process import load_function

OWN = 'or one of your own, "package.module:name"'
# Packages whose lines are not where the user's code raised.
LIBRARIES = ("keras", "tensorflow", "jax", "torch", "numpy")


def subclasses(module: Any, base: type) -> dict[str, Any]:
    """Returns the subclasses of `base` in a module, by name, without `base` itself."""
    return {
        name: kind
        for name, kind in sorted(vars(module).items())
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base
    }


def find(kinds: dict[str, Any], name: str, key: str) -> Any:
    """Returns the class `name`; `key` is the config key that holds the name. Raises ConfigError if there is none."""
    if name not in kinds:
        names = {kind.lower(): kind for kind in kinds}
        hint = "".join(f"did you mean {names[near]}? " for near in get_close_matches(name.lower(), names, 1))
        raise ConfigError(f'{key} "{name}" is not known; {hint}accepted: {", ".join(kinds)}, {OWN}')
    return kinds[name]


def load_kind(name: str, key: str, kinds: dict[str, Any]) -> Any:
    """Returns the user's own class or function, "package.module:name", or the class `name` of `kinds`.

    `key` is the config key that holds the name. Raises ConfigError if there is none.
    """
    return load_function(name, key) if ":" in name else find(kinds, name, key)


def build(name: str, args: dict[str, Any], key: str, module: Any, base: type) -> Any:
    """Builds the object that section `key` of the config names: of a Keras module's class, or the user's own.

    Raises ConfigError if there is no such class, it is no subclass of `base`, or `args` do not fit.
    """
    kind = load_kind(name, f"{key}.name", subclasses(module, base))
    built = call(kind, f"{key}.args", kind.__name__, args)
    if not isinstance(built, base):
        raise ConfigError(f"{key}.name: {name} is no subclass of {module.__name__}.{base.__name__}")
    return built


def call(function: Callable[..., Any], key: str, name: str, args: dict[str, Any], *positional: Any) -> Any:
    """Calls a class or function, `name` in messages, with positional arguments and with `args`, which `key` holds.

    Raises ConfigError if they do not fit its signature, or it raises an error.
    """
    check_signature(function, key, name, args, *positional)
    with named_errors(key, name):
        return function(*positional, **args)


def check_signature(function: Callable[..., Any], key: str, name: str, args: dict[str, Any], *positional: Any) -> None:
    """Raises ConfigError if `args`, which `key` holds, and positional arguments do not fit a function's signature."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C
        return
    try:
        signature.bind(*positional, **args)
    except TypeError as error:
        raise ConfigError(f"{key} {args} do not fit {name}: {error}; it takes {signature}") from error


@contextmanager
def named_errors(key: str, name: str) -> Iterator[None]:
    """Raises a ConfigError in the place of an error that code raises inside `with`: `key` of the config names it.

    `name` is what the message calls the code. The message has the last line of the user's own code, if there is one.
    """
    try:
        yield
    except TfpipeError:
        raise
    except Exception as error:
        location = raised_in(error)
        at = "" if location is None else f" at {location}"
        raise ConfigError(f"{key}: {name} raised {type(error).__name__}{at}: {error}") from error


def name_errors(target: Any, methods: Iterable[str], key: str, name: str) -> None:
    """Lets errors of an object's methods name the `key` of the config that has named the object, and its `name`."""
    for method in methods:
        setattr(target, method, named_errors(key, name)(getattr(target, method)))


def raised_in(error: BaseException) -> str | None:
    """Returns the last line of the user's code that an error came through, e.g. "own.py:12, in loss", or None."""
    modules = (sys.modules.get(name) for name in LIBRARIES)
    folders = [*tfpipe.__path__, *(path for module in modules if module is not None for path in module.__path__)]
    roots = tuple(os.path.join(folder, "") for folder in folders)
    standard = os.path.join(sysconfig.get_path("stdlib"), "")
    location = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        library = file.startswith((*roots, "<")) or (file.startswith(standard) and "site-packages" not in file)
        if not library:
            location = f"{file}:{line}, in {frame.f_code.co_name}"
    return location
