"""One row in a process of its own: row.py MODULE ROW GIVEN THREADS, where ROW ends in "-raw" for raw crops.

Writes what one pass gives, if it is what was given; then, for each line SECONDS that it reads, what that many seconds
of an endless stream give.
"""

import importlib
import json
import sys
from pathlib import Path

from given import Given, Work

sys.path.append(str(Path(__file__).parents[1] / "compare"))
from turns import answers, serve

PASSES = 100_000  # as good as endless


def main(module: str, name: str, folder: str, threads: str) -> None:
    """Serves until its input ends."""
    output = answers()
    rows = importlib.import_module(module)
    kind, _, raw = name.partition("-")
    work = Work(Given(Path(folder)), raw == "raw", 1, int(threads))
    print(json.dumps(rows.check(rows.ROWS[kind](work), work.given)), file=output, flush=True)
    serve((items for items, _ in rows.ROWS[kind](work._replace(passes=PASSES))), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
