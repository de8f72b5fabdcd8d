"""Lets TensorFlow decide, as the pipeline would, about images that look damaged."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from tfpipe.data.images.damage import JPEG
from tfpipe.tools.check.reading import Outcome
from tfpipe.util.progress import progress

# Parts of the messages on a truncated JPEG: damage.CUT_OFF, and Pillow's.
CUT_OFF = ("premature end", "truncated")


class Doubt(NamedTuple):
    """An image that looks damaged."""

    read: Callable[[], Outcome]  # reads the image again
    damage: str  # what is wrong with it


def recheck_with_tensorflow(doubts: Sequence[Doubt], channels: int, show: bool) -> list[tuple[str, str]]:
    """Returns, for each doubt, its code of kinds.KINDS, "" for none, and the reason. Loads TensorFlow."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        settled = pool.map(partial(_decoded, channels=channels), doubts)
        return list(progress(settled, len(doubts), "trying the doubtful ones with TensorFlow", "image", show))


def _decoded(doubt: Doubt, channels: int) -> tuple[str, str]:
    from tfpipe.tools.view.broken import fault_in

    contents = doubt.read()
    if isinstance(contents, Exception):
        return "unreadable", str(contents)
    fault = fault_in(contents, channels)
    if fault is not None:
        return "truncated" if any(part in fault.lower() for part in CUT_OFF) else "undecodable", fault
    # Other formats, e.g. a PNG, are doubtful only because they are no JPEGs.
    return ("damaged", doubt.damage) if contents.startswith(JPEG) else ("", "")
