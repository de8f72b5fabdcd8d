"""Shares and results of staging."""

from typing import NamedTuple

from tfpipe.errors import TfpipeError
from tfpipe.prepare.copier import Copied

MAX_ERRORS = 20


class Share(NamedTuple):
    """A share of a list: the images whose number modulo `size` is `rank`."""

    rank: int = 0
    size: int = 1


class Staged(NamedTuple):
    """Result of staging, over all ranks."""

    copied: Copied
    overrides: list[str]  # arguments KEY=VALUE for --set, with which a config trains from the copy


def check_errors(copied: Copied) -> None:
    """Raises TfpipeError if files could not be copied; the message names up to MAX_ERRORS of them."""
    if copied.errors:
        count = f"at least {MAX_ERRORS}" if len(copied.errors) >= MAX_ERRORS else len(copied.errors)
        lines = [f"{count} file(s) cannot be copied (what is copied stays):", *copied.errors[:MAX_ERRORS]]
        raise TfpipeError("\n  ".join(lines))
