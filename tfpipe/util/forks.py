"""Threads, event loops, sockets and locks belong to the process that made them: a forked child makes its own."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def per_process(make: Callable[..., T]) -> Callable[..., T]:
    """Returns a function that calls `make` once for the same arguments, and in a forked child once more.

    The child keeps what its parent made, and does not end it: it lacks the threads, and shares the connections.
    """
    made: Callable[..., T] = functools.cache(lambda _, *args: make(*args))
    return lambda *args: made(os.getpid(), *args)


def unless_forked(end: Callable[..., Any]) -> Callable[..., None]:
    """Returns a function that calls `end` in this process, and does nothing in a forked child."""
    process = os.getpid()
    return lambda *args: end(*args) if os.getpid() == process else None
