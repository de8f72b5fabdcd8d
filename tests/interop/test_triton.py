"""triton next to TensorFlow, shown on a stand-in that crashes as the real one does: torch for CPUs comes without."""

import sys
from pathlib import Path

import pytest

from tests.support.commands import WARM, ensure_server, finish, start

STAND_IN = """
import os, sys

if "tensorflow" in sys.modules:
    os.abort()
"""


REAL = pytest.mark.full("starts TensorFlow itself: make test has a stub of it")


def run(code: str, folder: Path, name: str = "triton.py", cold: bool = False) -> tuple[int, str, str]:
    """Runs code in a process that has imported TensorFlow, unless it is cold."""
    (folder / name).write_text(STAND_IN)
    python = [sys.executable] if cold else WARM
    ensure_server()
    done = finish(start(*python, "-c", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{code}"))
    return done.code, done.out.strip(), done.err


def test_the_stand_in_crashes(tmp_path: Path) -> None:
    code, _, err = run("import tensorflow, triton", tmp_path)
    assert code < 0, err


@pytest.mark.parametrize(
    ("first", "stub"),
    [
        ("tfpipe.torch", "import os, sys\nprint('triton' in sys.modules, True, flush=True)\nos._exit(0)\n"),
        pytest.param("tfpipe.torch", "", marks=REAL),
        pytest.param("torch, tfpipe.torch", "", marks=REAL),
    ],
)
def test_it_is_loaded_before_tensorflow(first: str, stub: str, tmp_path: Path) -> None:
    if stub:
        (tmp_path / "tensorflow.py").write_text(stub)
    asks = "print('triton' in sys.modules, 'tensorflow' in sys.modules)"
    code, out, err = run(f"import {first}, tensorflow, triton\n{asks}", tmp_path, cold=True)
    assert (code, out) == (0, "True True"), err
    assert "torch.compile" not in err


def test_where_tensorflow_was_first_torch_goes_without(tmp_path: Path) -> None:
    code, out, err = run(
        "import tensorflow, torch, tfpipe.torch, torch.utils._triton\n"
        "print(torch.utils._triton.has_triton_package())\n"
        "weights = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)\n"
        "weights(torch.ones(3, 2)).sum().backward()\n"
        "optimizer.step()",
        tmp_path,
    )
    assert (code, out) == (0, "False"), err
    assert err.count("Import tfpipe.torch before tensorflow, and before the first tfpipe.build_dataset") == 1


def test_nothing_is_said_where_there_is_none(tmp_path: Path) -> None:
    code, _, err = run(
        "import importlib.util, tensorflow\n"
        "from tfpipe.util import process\n"
        "process.find_spec = lambda name: None\n"
        "process.load_triton()\n"
        "assert sys.modules.get('triton', 0) == 0",
        tmp_path,
        name="other.py",
    )
    assert code == 0 and "triton" not in err, err
