"""Effects on the process as a whole, each with its reason; those of a `with` end with it.

No other module has any, but those that tests/util/test_process.py names, and commands, whose process is their own.
"""

import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)
_hiding = threading.Lock()

LATE = (
    "torch runs without triton, so torch.compile cannot target GPUs: loaded after TensorFlow, triton crashes the "
    "process. Import tfpipe.torch before tensorflow, and before the first tfpipe.build_dataset, to have it"
)


def load_function(name: str, key: str) -> Callable[..., Any]:
    """Imports the function "package.module:function", from installed packages or the current directory.

    `key` is the config key that holds the name, for messages. Raises ConfigError if the name has another form, the
    module cannot be imported, or it has no such function.
    """
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise ConfigError(f'{key} must be "package.module:function", received "{name}"')
    if "" not in sys.path:
        # The current directory: last, so that it never shadows a package; for good, as a call may import more.
        sys.path.append("")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{key}: cannot import {module_name}: {error}") from error
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{key}: {module.__file__} has no function {function_name}")
    return function


def load_triton() -> None:
    """Loads triton, if installed, before TensorFlow; hides it from torch if TensorFlow is already loaded, for good.

    TensorFlow's wheels export their LLVM symbols to libraries that are loaded later; triton's LLVM binds to them and
    crashes (https://github.com/tensorflow/tensorflow/issues/124205). torch loads triton only with its first optimizer,
    when TensorFlow is already loaded.
    """
    if "triton" in sys.modules or find_spec("triton") is None:
        return
    if "tensorflow" in sys.modules:
        logger.warning(LATE)
        # Importing triton then raises ImportError, which torch expects; Python allows None here, typeshed does not.
        sys.modules["triton"] = None  # type: ignore[assignment]
    else:
        import triton  # noqa: F401


def load_for_all(name: str, mode: int = 0) -> ctypes.CDLL:
    """Loads a library, for good, whose symbols later ones find; `mode` adds to dlopen's. Raises OSError."""
    return ctypes.CDLL(name, mode | ctypes.RTLD_GLOBAL)


@contextmanager
def own_symbols() -> Iterator[None]:
    """Lets modules that are imported inside `with` use their own libraries: others export other ones' symbols."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


class _Main(ModuleType):
    """The main module of this process, but for the file, from which a new process would import it."""

    def __init__(self, main: ModuleType) -> None:
        super().__init__("__main__")
        self._main = main

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            raise AttributeError(name)
        return getattr(self._main, name)


@contextmanager
def hidden_main() -> Iterator[None]:
    """Keeps processes that start inside `with` from running the user's script, which may have no main guard."""
    with _hiding:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = _Main(main)
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextmanager
def without_collections() -> Iterator[None]:
    """Pauses Python's collector of garbage: of imports all is kept, and it would look through it again and again.

    `import tensorflow` takes 0.86 of its CPU time so, and Keras on top of it 0.4 of its own.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def without_log() -> Iterator[None]:
    """Drops what is logged inside `with` but errors: a second load of the same data says what the first one said."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def redirect(number: int, target: int) -> Iterator[int]:
    """Sends what is written to a file descriptor inside `with`, by C++ too, to another; yields a copy of the first."""
    before = os.dup(number)
    os.dup2(target, number)
    try:
        yield before
    finally:
        os.dup2(before, number)
        os.close(before)


def drop_output(*numbers: int) -> None:
    """Drops what is written to file descriptors from now on: their reader is gone, so that each write would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in numbers:
        os.dup2(nowhere, number)
    os.close(nowhere)


@contextmanager
def kept_handler(number: signal.Signals) -> Iterator[None]:
    """Restores the handler of a signal that a library replaces inside `with`; in the main thread, which alone can."""
    handler = signal.getsignal(number)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def ending_after(limit_s: float) -> Iterator[None]:
    """Ends this process, with its stack and code 1, after so many seconds inside `with`, even if no thread can run."""
    faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def bypass_proxy(addresses: Iterable[str]) -> None:
    """Lets gRPC connect to these addresses, now and after a loss, itself: it sends all else through a proxy."""
    os.environ["no_grpc_proxy"] = ",".join(dict.fromkeys(addresses))


def yield_when_idle() -> None:
    """Lets Open MPI's ranks that wait yield their core, unless the environment says otherwise; MPI_Init reads it.

    A rank that waits in a collective keeps a core busy polling, which costs the decoders a quarter of their throughput.
    """
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
