"""Storage in trouble: opens of files that fail for a while or forever, hang, or find the disk full.

`faults.c` is preloaded into commands; the warm server has it too, so that the commands which it forks can be given
rules by their environment.
"""

import errno
import os
import subprocess
from pathlib import Path

from tests.support.warm import ADDRESS

SOURCE = Path(__file__).with_suffix(".c")
# Besides the errors of the system: the open does not return, or every write to the opened file fails with ENOSPC.
KINDS = {"HANG": -1, "FULL": -2}


def build_library(folder: str | Path) -> str:
    """Compiles the library into `folder` unless it is there; returns its path."""
    library = Path(folder) / "faults.so"
    if not library.exists():
        unfinished = library.with_name(f"faults-{os.getpid()}.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", unfinished, SOURCE, "-ldl"], check=True)
        unfinished.rename(library)
    return str(library)


def faulty(*rules: str) -> dict[str, str]:
    """Returns the environment of a command whose opens of files fail by `rules`.

    A rule is KIND:MS:PATTERN, e.g. "EIO:500:*/Data/*.JPEG", or KIND:MS:PATTERN:w. From the first such open in a process
    on, for MS milliseconds (0: forever), each open for reading (:w: for writing or creating) of a path that matches
    the fnmatch PATTERN, in which * matches / too, has a fault: KIND is an errno's name, HANG or FULL.
    """
    numbered = []
    for rule in rules:
        kind, _, rest = rule.partition(":")
        numbered.append(f"{KINDS[kind] if kind in KINDS else getattr(errno, kind)}:{rest}")
    return {"LD_PRELOAD": build_library(Path(os.environ[ADDRESS]).parent), "TFPIPE_FAULTS": ";".join(numbered)}


def clock_ahead(seconds: int) -> dict[str, str]:
    """Returns the environment of a command whose clock is ahead."""
    return {"LD_PRELOAD": build_library(Path(os.environ[ADDRESS]).parent), "TFPIPE_CLOCK_AHEAD_S": str(seconds)}
