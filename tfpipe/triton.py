"""triton and TensorFlow in one process: the order in which they can be loaded."""

import logging
import sys
from importlib.util import find_spec

log = logging.getLogger(__name__)

LATE = (
    "torch goes without triton, so torch.compile has nothing for GPUs: loaded after TensorFlow, triton crashes the "
    "process. Import tfpipe.torch before tensorflow, and before the first tfpipe.build_dataset, to have it"
)


def load_triton() -> None:
    """Loads triton, where torch has brought it, before TensorFlow; hides it from torch where TensorFlow came first.

    TensorFlow's wheels show their LLVM to whatever is loaded later, and triton's takes it for its own and crashes
    (https://github.com/tensorflow/tensorflow/issues/124205). torch loads triton only with its first optimizer: by then
    TensorFlow is there.
    """
    if "triton" in sys.modules or find_spec("triton") is None:
        return
    if "tensorflow" in sys.modules:
        log.warning(LATE)
        # An ImportError to whoever imports it, which torch expects; Python's own way, which typeshed does not know.
        sys.modules["triton"] = None  # type: ignore[assignment]
    else:
        import triton  # noqa: F401
