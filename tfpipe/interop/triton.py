"""Loads triton and TensorFlow into one process in the only order that works: triton first."""

import logging
import sys
from importlib.util import find_spec

log = logging.getLogger(__name__)

LATE = (
    "torch runs without triton, so torch.compile cannot target GPUs: loaded after TensorFlow, triton crashes the "
    "process. Import tfpipe.torch before tensorflow, and before the first tfpipe.build_dataset, to have it"
)


def load_triton() -> None:
    """Loads triton, if installed, before TensorFlow; hides it from torch if TensorFlow is already loaded.

    TensorFlow's wheels export their LLVM symbols to libraries that are loaded later; triton's LLVM binds to them and
    crashes (https://github.com/tensorflow/tensorflow/issues/124205). torch loads triton only with its first optimizer,
    when TensorFlow is already loaded.
    """
    if "triton" in sys.modules or find_spec("triton") is None:
        return
    if "tensorflow" in sys.modules:
        log.warning(LATE)
        # Importing triton then raises ImportError, which torch expects; Python allows None here, typeshed does not.
        sys.modules["triton"] = None  # type: ignore[assignment]
    else:
        import triton  # noqa: F401
