"""One peer in a process of its own: worker.py MODULE PEER WORK.json.

Writes what one exact pass over the files gives; then, for each line SECONDS that it reads, what that many seconds
of an endless stream give.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from work import File, Work

PASSES = 1000  # as good as endless


def main(module: str, name: str, path: str) -> None:
    """Serves until its input ends."""
    # Only answers go to where they are read: libraries print too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    given = json.loads(Path(path).read_text())
    work = Work(**{**given, "files": [File(*file) for file in given["files"]]})
    peer: Callable[[Work], Iterator[Any]] = importlib.import_module(module).PEERS[name]
    first = {"images": len(work.files), **one_pass(peer(work._replace(passes=1)))}
    print(json.dumps(first), file=answers, flush=True)
    stream = peer(work._replace(passes=PASSES))
    for line in sys.stdin:
        print(json.dumps(timed(stream, float(line))), file=answers, flush=True)


def one_pass(batches: Iterator[Any]) -> dict[str, float]:
    """How many crops there are, and their mean level."""
    crops, total = 0, 0.0
    for each in batches:
        batch = np.asarray(each)
        crops += len(batch)
        total += float(batch.mean(dtype=np.float64)) * len(batch) * (1 if batch.dtype == np.uint8 else 255)
    return {"crops": crops, "mean": total / crops}


def timed(stream: Iterator[Any], seconds: float) -> dict[str, float]:
    """Crops in `seconds`, from the arrival of one batch to that of another."""
    next(stream)
    cpu, started, crops = group_cpu_seconds(), time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        crops += len(next(stream))
    return {"crops": crops, "seconds": elapsed, "cpu_seconds": group_cpu_seconds() - cpu}


def group_cpu_seconds() -> float:
    """Of this process and its workers, which are in its process group."""
    group, ticks = os.getpgrp(), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(*sys.argv[1:])
