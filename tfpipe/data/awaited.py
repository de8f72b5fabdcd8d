"""What a rank waits for that gets no batch: the next files of its stream, and which of them do not answer."""

import threading
import time
from collections.abc import Sequence

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.data.stream import Frontier, Stream
from tfpipe.data.threads import READS
from tfpipe.distributed import World


def next_paths(
    catalog: Catalog, config: DataConfig, world: World, stream: Stream, last: Sequence[int] | None
) -> list[str]:
    """The images that this rank reads next, in their order, and their XMLs.

    Args:
        catalog: of the split.
        config: of the data.
        world: which rank this is.
        stream: what the batches set out from.
        last: position and crop of the last one that came; None if none did.
    """
    if last is not None:
        frontiers = list(stream.frontiers)
        frontiers[world.rank] = Frontier.after(last)
        stream = stream.at(frontiers)
    order = catalog.order(config)
    visits = stream.visits(order, world, READS)
    wanted = visits.position < order.count if catalog.split == "test" else visits.position >= 0
    paths = []
    for sample in visits.item[wanted].tolist():
        image, _ = catalog.image_and_box(sample)
        annotation = catalog.annotation(image) if catalog.boxes is None else ""
        paths += [path for path in (catalog.paths[image], annotation) if path]
    return paths


def unanswered(paths: Sequence[str], patience_s: float = 10.0) -> list[str]:
    """Those files that cannot be read within that time, each with what came of it. Asks for all at once.

    Threads that hang in a read are left behind.
    """
    found: dict[str, str] = dict.fromkeys(paths, f"no answer in {patience_s:g} s")

    def read(path: str) -> None:
        try:
            with open(path, "rb") as file:
                file.read()
            found[path] = ""
        except OSError as error:
            found[path] = error.strerror or str(error)

    threads = [threading.Thread(target=read, args=(path,), daemon=True) for path in found]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [f"{path}: {said}" for path, said in found.items() if said]
