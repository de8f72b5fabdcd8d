"""Diagnoses a rank that receives no batch: lists the files it reads next, and finds those that do not respond."""

import threading
import time
from collections.abc import Sequence

from tfpipe.data.order.stream import Stream
from tfpipe.data.runtime.parallelism import READS
from tfpipe.data.split import Split

# Files that a message names, seconds within which a file has to answer, and files that are asked at the same time.
NAMED = 3
PATIENCE_S = 10.0
TOGETHER = 256


def pending_files(split: Split, stream: Stream) -> list[str]:
    """Returns the files that this rank's next batch may wait for, in order: each image and, if it is parsed, its XML.

    A batch needs at most an image for each crop, and the decoder's last call some more: fewer than READS. `stream` is
    the rest of the stream after the last batch.
    """
    visits = split.visits(stream, split.config.batch_size + READS)
    in_pass = visits.position >= 0 if split.training else visits.position < split.order.count
    images = [split.catalog.image_and_box(sample)[0] for sample in visits.item[in_pass].tolist()]
    return [path for image in images for path in split.files(image)]


def unreadable_within(paths: Sequence[str], patience_s: float = PATIENCE_S) -> list[str]:
    """Returns the files that cannot be read within `patience_s` seconds, as "PATH: REASON"; [] if all can be.

    Reads TOGETHER of them concurrently, and looks no further than at the first of these groups with a failure.
    """
    groups = (paths[begin : begin + TOGETHER] for begin in range(0, len(paths), TOGETHER))
    return next(filter(None, (_unreadable(group, patience_s) for group in groups)), [])


def _unreadable(paths: Sequence[str], patience_s: float) -> list[str]:
    """Reads all concurrently. Threads that hang in a read keep running, as daemons."""
    failures: dict[str, str] = dict.fromkeys(paths, f"no answer in {patience_s:g} s")

    def read(path: str) -> None:
        try:
            with open(path, "rb") as file:
                file.read()
            failures[path] = ""
        except OSError as error:
            failures[path] = error.strerror or str(error)

    threads = [threading.Thread(target=read, args=(path,), daemon=True) for path in failures]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [f"{path}: {failure}" for path, failure in failures.items() if failure]


def describe(paths: list[str], silent: list[str]) -> str:
    """Returns text that names the files that cannot be read, or, if there are none, the next files of the stream."""
    if silent:
        others = f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
        return f"{len(silent)} of the next {len(paths)} files cannot be read: {'; '.join(silent[:NAMED])}{others}"
    return f"the next files can be read by now, e.g. {', '.join(paths[:NAMED])}"
