"""One peer in a process of its own: worker.py MODULE PEER WORK.json.

Writes what one exact pass over the files gives; then, for each line SECONDS that it reads, what that many seconds
of an endless stream give.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from turns import answers, serve
from work import File, Work

PASSES = 1000  # as good as endless


def main(module: str, name: str, path: str) -> None:
    """Serves until its input ends."""
    output = answers()
    given = json.loads(Path(path).read_text())
    work = Work(**{**given, "files": [File(*file) for file in given["files"]]})
    peer: Callable[[Work], Iterator[Any]] = importlib.import_module(module).PEERS[name]
    first = {"images": len(work.files), **one_pass(peer(work._replace(passes=1)))}
    print(json.dumps(first), file=output, flush=True)
    serve(map(images_of, peer(work._replace(passes=PASSES))), output)


def images_of(batch: Any) -> Any:
    """The images of a batch that may have boxes too."""
    return batch[0] if isinstance(batch, tuple | list) else batch


def one_pass(batches: Iterator[Any]) -> dict[str, float]:
    """How many crops there are, and their mean level; of batches with boxes, also how many, and their mean edge."""
    crops, total = 0, 0.0
    boxes: list[np.ndarray] = []
    for each in batches:
        if isinstance(each, tuple | list):
            boxes += [np.asarray(part).reshape(-1, 4) for part in each[1]]
        batch = np.asarray(images_of(each))
        crops += len(batch)
        # Floats may be from 0 to 1.
        total += float(batch.mean(dtype=np.float64)) * len(batch) * (255 if batch.max() <= 1 else 1)
    edges = {"boxes": sum(map(len, boxes)), "edge": float(np.concatenate(boxes).mean())} if boxes else {}
    return {"crops": crops, "mean": total / crops, **edges}


if __name__ == "__main__":
    main(*sys.argv[1:])
