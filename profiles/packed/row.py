"""One row in a process of its own: row.py MODULE ROW GIVEN THREADS, where ROW ends in "-raw" for raw crops.

Writes what one pass gives, if it is what was given; then, for each line SECONDS that it reads, what that many seconds
of an endless stream give.
"""

import importlib
import json
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from given import Given, Work

sys.path.append(str(Path(__file__).parents[1] / "compare"))
from turns import answers, serve

PASSES = 100_000  # as good as endless
KEPT = 4  # batches


def main(module: str, name: str, folder: str, threads: str) -> None:
    """Serves until its input ends."""
    output = answers()
    rows = importlib.import_module(module)
    kind, _, raw = name.partition("-")
    work = Work(Given(Path(folder)), raw == "raw", 1, int(threads))
    print(json.dumps(rows.check(rows.ROWS[kind](work), work.given)), file=output, flush=True)
    serve(kept(items for items, _ in rows.ROWS[kind](work._replace(passes=PASSES))), output)


def kept(stream: Iterator[Any]) -> Iterator[Any]:
    """The same, for a caller who keeps the last batches, as a training loop with steps under way does."""
    last: deque[Any] = deque(maxlen=KEPT)
    for batch in stream:
        last.append(batch)
        yield batch


if __name__ == "__main__":
    main(*sys.argv[1:])
