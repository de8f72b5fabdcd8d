"""What batches have left out, found without a Loader."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tfpipe import Stream
from tfpipe.data.failures.missing import DroppedLog, DroppedSample
from tfpipe.data.split import Split


def left_out(split: Split, stream: Stream, *parts: Sequence[np.ndarray], end: bool = False) -> Iterable[DroppedSample]:
    """What the batches of these positions have left out, from `stream` on; it is looked for after each part."""
    log = DroppedLog(split, math.inf)
    log.begin(stream)
    number = 0
    for part in parts:
        for positions in part:
            log.add(number := number + 1, positions)
        log.find_dropped(final=end and part is parts[-1])
    log.confirm(math.inf)
    return log.pop_confirmed()
