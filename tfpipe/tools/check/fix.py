"""Writes a clean list: without images that would stop training, each path once."""

import os
from pathlib import Path

from tfpipe.data.catalog.filelist import read_lines, write_filelist
from tfpipe.errors import ConfigError
from tfpipe.tools.check.kinds import STOPS
from tfpipe.tools.check.result import Checked


def write_clean_list(checked: Checked, out: Path) -> int:
    """Writes the usable lines of a list in its order; returns the number of lines left out.

    Lines stay unchanged if `out` is in the list's folder; elsewhere they become absolute. Raises ConfigError if no line
    is left, or `out` cannot be written.
    """
    filelist, paths = Path(checked.place), checked.catalog.paths
    if filelist.is_file() and out.parent.absolute() == filelist.parent.absolute():
        lines = [line for chunk in read_lines(filelist) for line in chunk]
    else:
        lines = [path if paths.remote else os.path.normpath(path) for path in paths]
    dropped = checked.having([*STOPS, "listed twice"])
    if dropped.all():
        raise ConfigError(f"no line of {checked.place} is left, so {out} is not written")
    write_filelist(out, (line for line, drop in zip(lines, dropped.tolist(), strict=True) if not drop))
    return int(dropped.sum())
