"""Threads, event loops, sockets and locks belong to the process that made them: a forked child makes its own."""

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def per_process(make: Callable[P, T]) -> Callable[P, T]:
    """Returns a function that calls `make` once for the same arguments, and in a forked child once more.

    The child keeps what its parent made, and does not end it: it lacks the threads that an end waits for, and shares
    the connections.
    """
    made: Callable[..., T] = functools.cache(lambda _, *args, **kwargs: make(*args, **kwargs))

    @functools.wraps(make)
    def own_one(*args: P.args, **kwargs: P.kwargs) -> T:
        return made(os.getpid(), *args, **kwargs)

    return own_one


def unless_forked(end: Callable[P, T]) -> Callable[P, T | None]:
    """Returns a function that calls `end` in this process, and does nothing in a forked child."""
    process = os.getpid()
    return lambda *args, **kwargs: end(*args, **kwargs) if os.getpid() == process else None
