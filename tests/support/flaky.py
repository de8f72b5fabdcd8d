"""Functions that fail once, as storage in trouble does."""

import errno
import os
from typing import Any

import pytest

from tfpipe.util import retry


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[float]:
    """Makes the next call of `owner.name` fail with EIO; returns the pauses of retries, which then take no time."""
    pauses: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", pauses.append)
    whole, failures = getattr(owner, name), [errno.EIO]

    def flaky(*args: Any, **kwargs: Any) -> Any:
        if failures:
            number = failures.pop()
            raise OSError(number, os.strerror(number), str(args[0]))
        return whole(*args, **kwargs)

    monkeypatch.setattr(owner, name, flaky)
    return pauses
