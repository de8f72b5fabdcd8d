"""Functions that fail once, as storage in trouble does."""

import errno
import os
from typing import Any

import pytest

from tfpipe.util import retry


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int = errno.EIO) -> list[float]:
    """Makes the next call of `owner.name` fail with an error; returns the pauses of retries, which take no time."""
    pauses: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", pauses.append)
    whole, failures = getattr(owner, name), [number]

    def flaky(*args: Any, **kwargs: Any) -> Any:
        if failures:
            failures.clear()
            raise OSError(number, os.strerror(number), str(args[0]))
        return whole(*args, **kwargs)

    monkeypatch.setattr(owner, name, flaky)
    return pauses
