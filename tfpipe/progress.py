"""Progress of long work: a bar with rate and time left on a terminal, a line every 30 s in a log."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
LOG_EVERY_S = 30.0
# Shorter work shows no bar, which would only flash up.
BAR_AFTER_S = 1.0

logger = logging.getLogger(__name__)


def progress(items: Iterable[T], total: int, label: str, unit: str = "file", show: bool = True) -> Iterator[T]:
    """Passes `items` through and shows how far they are.

    Args:
        items: what is being worked through; each counts as done when the next one is asked for.
        total: how many there will be.
        label: what is being done, e.g. "writing images".
        unit: the singular of what is counted.
        show: False for silence, as on every rank but the first.
    """
    if not show:
        yield from items
    elif sys.stderr.isatty():
        shown = {"desc": label, "total": total, "unit": unit, "delay": BAR_AFTER_S}
        yield from tqdm(items, dynamic_ncols=True, leave=False, **shown)
    else:
        yield from _logged(items, total, label, unit)


def _logged(items: Iterable[T], total: int, label: str, unit: str) -> Iterator[T]:
    start = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= LOG_EVERY_S:
            last = now
            rate = done / (now - start)
            left_s = max(0, total - done) / rate
            logger.info("%s: %d of %d, %.1f %s/s, %.0f s left", label, done, total, rate, unit, left_s)
