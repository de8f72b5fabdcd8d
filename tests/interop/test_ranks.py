"""Several ranks with Keras on JAX and on PyTorch: their own collectives, under launchers that MPI does not know."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import COLD, ROOT, end, finish, run, run_ranks, start
from tests.support.runs import LATE, SLOWLY, check_epoch, read_metrics, steps, wait_for
from tests.support.sample import TINY, SampleData
from tfpipe.errors import Stopped

BACKENDS = ["jax", "torch"]
LAUNCH = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Path:
    """Two epochs of 96 images; two weights get no gradient, others are averaged as float16."""
    training = {"epochs": 2, "log_positions": True, "compression": "fp16"}
    data = {"batch_size": 4, "crop_image_size": [16, 16]}
    model = {**TINY, "args": {"dropout": 0.5, "idle": True}}
    return sample.config(tmp_path / "c.json", data=data, training=training, model=model)


@pytest.fixture
def ranks(config: Path, tmp_path: Path, request: pytest.FixtureRequest) -> list["subprocess.Popen[str]"]:
    """Two slow ranks of the backend `request.param`, which have trained three steps."""
    words = (sys.executable, ROOT / "train.py", "-c", config, "-l", tmp_path / "run", *SLOWLY)
    environ = {**LAUNCH, **COLD, **LATE, "KERAS_BACKEND": request.param}
    processes = [start(*words, RANK=str(rank), **environ) for rank in range(2)]

    def close() -> None:
        for process in processes:
            if process.poll() is None:
                end(process)

    request.addfinalizer(close)
    wait_for(lambda: steps(tmp_path / "run") >= 3, processes[0])
    return processes


@pytest.mark.parametrize(
    ("ranks", "other"),
    [
        ("jax", "torch"),
        pytest.param("torch", "tensorflow", marks=pytest.mark.full("the other run resumes on torch")),
        pytest.param("tensorflow", "jax", marks=pytest.mark.full("checkpoints of all backends hold the same arrays")),
    ],
    indirect=["ranks"],
)
def test_two_ranks_stop_and_three_of_another_backend_go_on(
    config: Path, tmp_path: Path, ranks: list["subprocess.Popen[str]"], other: str
) -> None:
    """Each crop once, each test image once, and equal weights; under mpirun in the end, for TensorFlow by Horovod."""
    ranks[1].send_signal(signal.SIGTERM)
    first, second = map(finish, ranks)
    assert (first.code, second.code) == (Stopped.exit_code, Stopped.exit_code), first.err + second.err
    assert "tfpipe: a signal to another rank: stopped after epoch 1, step " in first.err
    environ = {**COLD, "KERAS_BACKEND": other}
    words = (sys.executable, ROOT / "train.py", "-c", config, "-l", tmp_path / "run", "--resume")
    resumed = run_ranks(3, *words, **environ)
    assert resumed.code == 0, resumed.err
    assert "bit-identical on all 3 ranks" in resumed.err
    assert "[Gloo]" not in resumed.out
    check_epoch(tmp_path / "run", config)
    assert [line["test_images"] for line in read_metrics(tmp_path / "run")] == [37, 37]


@pytest.mark.parametrize(
    ("backend", "collectives", "more", "said"),
    [
        ("jax", "horovod", (), 'training.collectives "horovod" does not connect the ranks of KERAS_BACKEND=jax: set'),
        ("torch", "auto", ("--horovod",), "--horovod does not connect the ranks of KERAS_BACKEND=torch: set"),
        ("tensorflow", "torch", (), 'training.collectives "torch" does not connect the ranks of KERAS_BACKEND=tensorf'),
    ],
)
def test_collectives_of_another_backend_are_refused(
    config: Path, tmp_path: Path, backend: str, collectives: str, more: tuple[str, ...], said: str
) -> None:
    words = ("-c", config, "-l", tmp_path / "run", "--set", f"training.collectives={collectives}", *more)
    done = run(sys.executable, ROOT / "train.py", *words, RANK="0", KERAS_BACKEND=backend, **LAUNCH)
    assert done.code == 2 and said in done.err and 'to "auto"' in done.err, done.err
    assert not (tmp_path / "run").exists()
