"""Arrays in files that all processes of a host map into memory, so that the host holds them once.

A part is a folder with an .npy file for each array and a JSON file of plain values. NumPy maps an .npy file as an array
that starts at a multiple of 64 bytes, which TensorFlow takes without a copy. Buffers of an Arrow IPC file start at
multiples of 8: TensorFlow would copy them, and importing pyarrow costs each start an eighth of a second.
"""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.util.retry import retried

ABOUT = "about.json"
# Bytes that stay free on the disk, as a share of a part's own.
SPARE = 0.1


class Part(NamedTuple):
    """Arrays, and plain values about them."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


@retried
def map_part(folder: Path) -> Part | None:
    """Maps the part in `folder`, read-only; None if there is no complete one.

    Raises OSError if it cannot be read.
    """
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        mapped = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in about["arrays"]}
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, EOFError):  # none, or cut off
        return None
    return Part(about["values"], {name: np.asarray(array) for name, array in mapped.items()})


def write_part(folder: Path, part: Part) -> None:
    """Writes a part, which gets its name when it is complete and on the disk; replaces what `folder` holds.

    Only one process may write to `folder` at a time. Raises OSError if it cannot be written, or the disk has no room.
    """
    free_bytes = shutil.disk_usage(folder.parent).free
    if free_bytes < (1 + SPARE) * part.nbytes:
        raise OSError(errno.ENOSPC, f"{part.nbytes / 1e6:.0f} MB are needed, {free_bytes / 1e6:.0f} MB are free")
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        unfinished.mkdir()
        for name, array in part.arrays.items():
            with (unfinished / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                os.fsync(file.fileno())
        with (unfinished / ABOUT).open("w", encoding="utf-8") as text:
            json.dump({"arrays": list(part.arrays), "values": part.about}, text)
            text.flush()
            os.fsync(text.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
