"""Diagnoses a rank that receives no batch: lists the files it reads next, and finds those that do not respond."""

import threading
import time
from collections.abc import Sequence

from tfpipe.config import DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.runtime.parallelism import READS
from tfpipe.distributed import World


def pending_files(
    catalog: Catalog, config: DataConfig, world: World, stream: Stream, last: Sequence[int] | None
) -> list[str]:
    """Returns the files of this rank's next READS samples in order: each image and, if it is parsed, its XML.

    `stream` is the one that the dataset was built from; `last` is the position and number of the last crop received,
    None if no batch was.
    """
    if last is not None:
        stream = stream.moved(world.rank, Cursor.after(last))
    order = catalog.order(config)
    visits = stream.visits(order, world, READS)
    wanted = visits.position < order.count if catalog.split == "test" else visits.position >= 0
    paths = []
    for sample in visits.item[wanted].tolist():
        image, _ = catalog.image_and_box(sample)
        paths += catalog.source.files(catalog, image)
    return paths


def unreadable_within(paths: Sequence[str], patience_s: float = 10.0) -> list[str]:
    """Returns the files that cannot be read within `patience_s` seconds, as "PATH: REASON". Reads all concurrently.

    Threads that hang in a read keep running, as daemons.
    """
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
