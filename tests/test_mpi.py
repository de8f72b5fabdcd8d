"""Several ranks, really started by mpirun: the same weights everywhere, every test sample once, no separate runs."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.commands import COLD, ROOT, WARM, Finished, run_ranks, run_train
from tests.support.runs import read_metrics
from tests.support.sample import TINY, SampleData

COLLECTIVES = """
import sys
import numpy as np
from tfpipe import World
world = World.mpi() if sys.argv[1] == "mpi" else World.detect()
assert world.size == 3 and world.backend == sys.argv[1], world
assert world.gather({"rank": world.rank}) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
assert world.sum(np.array([1.0, world.rank])).tolist() == [3, 3]
assert world.from_rank0(lambda: f"from {world.rank}") == "from 0"
try:
    world.from_rank0(lambda: {}["missing"])
except KeyError as error:
    assert error.args == ("missing",)
else:
    raise AssertionError("rank 0's error did not reach this rank")
assert world.threads >= 1 and world.local_size == 3 and world.local_rank == world.rank
print("fine", world.rank)
"""


def train_on(size: int, *args: str | Path, **environ: str) -> Finished:
    return run_ranks(size, sys.executable, ROOT / "train.py", *args, **environ)


def weights(run_dir: Path) -> list[np.ndarray]:
    return keras.models.load_model(run_dir / "model.keras").get_weights()


@pytest.mark.parametrize("backend", ["mpi", "horovod"])
def test_collectives_reach_all_ranks(backend: str) -> None:
    done = run_ranks(3, *WARM, "-c", COLLECTIVES, backend)
    assert done.code == 0, done.err
    assert sorted(line for line in done.out.splitlines() if line.startswith("fine")) == ["fine 0", "fine 1", "fine 2"]


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_end_with_equal_weights_and_count_every_test_sample_once(
    sample: SampleData, tmp_path: Path, size: int
) -> None:
    """Batch normalisation, several crops an image, a list that no number of ranks divides."""
    path = sample.config(tmp_path / "c.json", training={"epochs": 2})
    done = train_on(size, "-c", path, "-l", tmp_path / "run")
    assert done.code == 0, done.err
    assert f"bit-identical on all {size} ranks" in done.err
    assert done.out.count("epoch 2/2") == 1
    first, second = read_metrics(tmp_path / "run")
    assert first["test_images"] == second["test_images"] == 37
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == [
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "model.keras",
        "test",
        "train",
    ]

    alone = run_train("-c", path, "-l", tmp_path / "alone")
    assert alone.code == 0, alone.err
    assert read_metrics(tmp_path / "alone")[0]["test_crops"] == first["test_crops"]


def test_two_ranks_train_as_one_process_of_twice_the_batch(sample: SampleData, tmp_path: Path) -> None:
    """The same global batches, so the same weights, with a model free of batch statistics.

    A short epoch: over a long one at a high rate, float32 rounding tips a ReLU sooner or later (profiles/README.md).
    """
    sections = {
        "model": {**TINY, "args": {"norm": "group"}},
        "optimizer": {"name": "SGD", "args": {"learning_rate": 0.05, "momentum": 0.9}},
    }
    for size in (1, 2):
        data = {"batch_size": 16 // size, "crop": "random_resized"}
        path = sample.config(tmp_path / f"{size}.json", data=data, **sections)
        done = train_on(size, "-c", path, "-l", tmp_path / f"run{size}")
        assert done.code == 0, done.err
    one, two = read_metrics(tmp_path / "run1")[0], read_metrics(tmp_path / "run2")[0]
    assert one["step"] == two["step"] == 6
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
    difference = max(
        np.abs(a - b).max() for a, b in zip(weights(tmp_path / "run1"), weights(tmp_path / "run2"), strict=True)
    )
    assert difference < 1e-5
    # It is the training, not the start, that agrees.
    path = sample.config(
        tmp_path / "other.json", data={"batch_size": 8, "crop": "random_resized", "seed": 1}, **sections
    )
    assert train_on(2, "-c", path, "-l", tmp_path / "other").code == 0
    moved = max(
        np.abs(a - b).max() for a, b in zip(weights(tmp_path / "run1"), weights(tmp_path / "other"), strict=True)
    )
    assert moved > 1e-3


def test_fp16_compression_and_scaled_rates_keep_ranks_equal(sample: SampleData, tmp_path: Path) -> None:
    sections = {
        "training": {"compression": "fp16", "precision": "mixed_float16"},
        "lr_schedule": {"scale_by_ranks": True, "warmup_epochs": 0.5},
    }
    done = train_on(2, "-c", sample.config(tmp_path / "c.json", **sections), "-l", tmp_path / "run", "-n", "4")
    assert done.code == 0, done.err
    assert "bit-identical on all 2 ranks" in done.err


def test_several_ranks_without_horovod_are_an_error_never_separate_trainings(
    sample: SampleData, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden/horovod"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    path = sample.config(tmp_path / "c.json")
    done = train_on(2, "-c", path, "-l", tmp_path / "run", PYTHONPATH=f"{hidden.parent}:{ROOT}", **COLD)
    assert done.code == 2
    assert done.err.count("tfpipe: error: Horovod is needed to train on several ranks") == 1
    assert "jobs/install_horovod.sh" in done.err
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_the_config_is_said_once(sample: SampleData, tmp_path: Path) -> None:
    path = sample.config(tmp_path / "c.json", data={"num_classes": 3})
    done = train_on(2, "-c", path, "-l", tmp_path / "run")
    assert done.code == 2
    assert done.err.count("tfpipe: error: data.num_classes is 3, but there are 8 classes") == 1


def test_a_failure_on_one_rank_ends_the_job(sample: SampleData, tmp_path: Path) -> None:
    """Rank 1 alone meets a file that is gone."""
    listed = sample.train.read_text().splitlines()
    listed[1] += ".gone"
    (tmp_path / "list.txt").write_text("\n".join(listed))
    data = {"train_filelist": "list.txt", "shuffle_buffer": 0, "batch_size": 4}
    done = train_on(2, "-c", sample.config(tmp_path / "c.json", data=data), "-l", tmp_path / "run")
    assert done.code != 0
    (said,) = [line for line in done.err.splitlines() if line.startswith("tfpipe: error:")]
    assert "rank 1: cannot use" in said and ".gone" in said


def test_a_mistake_that_only_one_rank_meets_is_said_by_it(sample: SampleData, tmp_path: Path) -> None:
    """As with a list on a node-local disk: here rank 1's config names one that is not there."""
    path = sample.config(tmp_path / "c.json")
    command = f'exec "{sys.executable}" "{ROOT}/train.py" -c "{path}" -l "{tmp_path}/run"'
    command += ' --set "data.train_filelist=$([ "$OMPI_COMM_WORLD_RANK" = 1 ] && echo /no/list || echo "$LIST")"'
    done = run_ranks(2, "bash", "-c", command, LIST=str(sample.train))
    assert done.code == 2
    (said,) = [line for line in done.err.splitlines() if line.startswith("tfpipe: error:")]
    assert said.startswith("tfpipe: error: rank 1: cannot read the filelist /no/list")


def test_one_rank_under_mpirun_needs_no_horovod(sample: SampleData, tmp_path: Path) -> None:
    done = train_on(1, "-c", sample.config(tmp_path / "c.json"), "-l", tmp_path / "run", "-n", "2")
    assert done.code == 0, done.err
    (metrics,) = read_metrics(tmp_path / "run")
    assert metrics["step"] == 2
