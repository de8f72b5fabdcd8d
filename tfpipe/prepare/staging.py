"""Shares and results of staging, and work that all ranks do together."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare.copier import Copied

T = TypeVar("T")
MAX_ERRORS = 20


class Share(NamedTuple):
    """A share of a list: the images whose number modulo `size` is `rank`."""

    rank: int = 0
    size: int = 1


class Staged(NamedTuple):
    """Result of staging, over all ranks."""

    copied: Copied
    overrides: list[str]  # arguments KEY=VALUE for --set, with which a config trains from the copy


def on_all(world: World, work: Callable[[], T], out: Path) -> list[T]:
    """Runs `work()` on every rank; returns all results, by rank, or raises an error of one rank on all of them."""
    outcome: T | TfpipeError
    try:
        outcome = work()
    except OSError as error:
        outcome = ConfigError(f"rank {world.rank}: cannot write to {out}: {error}")
    except TfpipeError as error:
        outcome = error
    results = []
    for result in world.gather(outcome):
        if isinstance(result, TfpipeError):
            raise result
        results.append(result)
    return results


def check_errors(copied: Copied) -> None:
    """Raises TfpipeError if files could not be copied; the message names up to MAX_ERRORS of them."""
    if copied.errors:
        count = f"at least {MAX_ERRORS}" if len(copied.errors) >= MAX_ERRORS else len(copied.errors)
        lines = [f"{count} file(s) cannot be copied (what is copied stays):", *copied.errors[:MAX_ERRORS]]
        raise TfpipeError("\n  ".join(lines))
