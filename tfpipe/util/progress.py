"""Progress of long loops: a bar with rate and time left on a terminal, a line every 30 s in a log."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
LOG_EVERY_S = 30.0
# Shorter loops show no bar, which would only flicker.
BAR_AFTER_S = 1.0

logger = logging.getLogger(__name__)


def progress(items: Iterable[T], total: int | None, label: str, unit: str = "file", show: bool = True) -> Iterator[T]:
    """Yields `items` and shows their progress.

    An item counts as done when the next one is requested. `label` names the work, e.g. "writing images", `unit` an
    item; `show` is False on every rank but the first, and shows nothing. `total` is None if it is not known.
    """
    if not show:
        yield from items
    elif sys.stderr.isatty():
        shown = {"desc": label, "total": total, "unit": unit, "delay": BAR_AFTER_S}
        yield from tqdm(items, dynamic_ncols=True, leave=False, **shown)
    else:
        yield from _log(items, total, label, unit)


def _log(items: Iterable[T], total: int | None, label: str, unit: str) -> Iterator[T]:
    start = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now_s = time.monotonic()
        if now_s - last >= LOG_EVERY_S:
            last = now_s
            rate = done / (now_s - start)
            if total is None:
                logger.info("%s: %d, %.1f %s/s", label, done, rate, unit)
            else:
                left_s = max(0, total - done) / rate
                logger.info("%s: %d of %d, %.1f %s/s, %.0f s left", label, done, total, rate, unit, left_s)
