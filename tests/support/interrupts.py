"""A KeyboardInterrupt at a line of tfpipe's own code, as a signal's handler raises one between any two lines."""

import gc
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import tfpipe

T = TypeVar("T")
FOLDER = str(Path(tfpipe.__file__).parent)


def interrupted(work: Callable[[], T], line: int) -> T:
    """Calls `work`; raises KeyboardInterrupt before the `line`-th line of tfpipe that this thread executes in it.

    The end of a `with` is none, though Python traces it: CPython lets no handler run between that and `__exit__`.
    Meanwhile no garbage is collected: Python drops what is raised in a finalizer, of a Loader of another test.
    """
    lines, last = 0, dict[FrameType, int]()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        line_number, before = frame.f_lineno, last.get(frame, 0)
        last[frame] = line_number
        text = linecache.getline(frame.f_code.co_filename, line_number)
        if event == "line" and not (line_number < before and text.lstrip().startswith("with ")):
            lines += 1
            if lines == line:
                raise KeyboardInterrupt
        return trace

    tracer, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        return work()
    finally:
        sys.settrace(tracer)
        if collects:
            gc.enable()
