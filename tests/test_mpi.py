"""Several ranks, really started by mpirun: the same weights everywhere, every test sample once, no separate runs."""

import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.commands import ROOT, WARM, Finished, finish, run_ranks, run_train, start
from tests.support.faults import clock_ahead
from tests.support.runs import check_tests, read_metrics
from tests.support.sample import TINY, SampleData

COLLECTIVES = """
import sys
import threading
from functools import partial
from pathlib import Path
import numpy as np
from tfpipe import ConfigError, TfpipeError, World
by_tensorflow = partial(World.tensorflow, Path(sys.argv[1]))
for backend, connect in {"mpi": World.mpi, "horovod": World.detect, "tensorflow": by_tensorflow}.items():
    world = connect()
    assert world.size == 3 and world.backend == backend, world
    assert world.gather({"rank": world.rank}) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert world.sum(np.array([1.0, world.rank])).tolist() == [3, 3]
    assert world.from_rank0(lambda: f"from {world.rank}") == "from 0"
    try:
        world.from_rank0(lambda: {}["missing"])
    except KeyError as error:
        assert error.args == ("missing",)
    else:
        raise AssertionError("rank 0's error did not reach this rank")
    unsendable = ValueError("holds a lock")
    unsendable.lock = threading.Lock()
    assert world.on_all(lambda: world.rank**2) == [0, 1, 4]
    assert world.share(list("abcdefgh"), lambda mine: [(world.rank, item) for item in mine]) == [
        (number % 3, item) for number, item in enumerate("abcdefgh")
    ]
    for error, type_, message in (
        (ConfigError("no such file"), ConfigError, "rank 1: no such file"),
        (ConfigError("rank 7: gone"), ConfigError, "rank 7: gone"),
        (OSError(5, "Input/output error", "/a"), TfpipeError, "rank 1: [Errno 5] Input/output error: '/a'"),
        (KeyError("missing"), KeyError, "'missing'"),
        (unsendable, RuntimeError, "ValueError: holds a lock"),
    ):
        def work(items=()):
            if world.rank > 0:
                raise error if world.rank == 1 else ConfigError("a later rank's")
            return items
        for run in (lambda: world.on_all(work), lambda: world.share("abcdefgh", work)):
            try:
                run()
            except Exception as caught:
                assert type(caught) is type_ and str(caught) == message, repr(caught)
                cause = str(caught.__cause__)
                assert cause.startswith("rank 1: Traceback") and "in work" in cause, cause
            else:
                raise AssertionError("rank 1's error did not reach this rank")
    world.agree({"seed": 1, "sizes": [[0, 128], [6, 224]]})
    try:
        world.agree({"seed": 1, "epochs": [3, 4, 4][world.rank]})
    except ConfigError as error:
        assert "differ:\\n  epochs: 3 on rank 0, 4 on ranks 1, 2\\nstart" in str(error), error
    else:
        raise AssertionError("a difference was not noticed on this rank")
    try:
        world.share(range(8 + world.rank // 2), list)
    except ConfigError as error:
        assert "share out: 8 on ranks 0, 1, 9 on rank 2" in str(error), error
    else:
        raise AssertionError("another number of items was not noticed on this rank")
    assert world.gather(world.rank) == [0, 1, 2], "no collective is left half done"
    assert world.threads >= 1 and world.local_size == 3 and world.local_rank == world.rank
    print("fine", backend, world.rank)
"""

TENSORS = """
import sys
from pathlib import Path
import numpy as np
import tensorflow as tf
from tfpipe import TfpipeError, World
from tfpipe.collectives import connected, tensorflow as own
own.BUCKET_BYTES = 4000  # some tensors of a reduction in one message, some in another
connected.BROADCAST_BYTES = 400
for world in (World.tensorflow(Path(sys.argv[1])), World.mpi(), World.horovod()):
    tensors, rank = world.tensors, world.rank
    tensors.start()
    def draw(rank):
        random = np.random.default_rng(rank)
        return [random.standard_normal(shape, np.float32) for shape in [(3,), (), (50, 40), (7, 1), (30, 5)]]
    exact = [np.mean(parts, axis=0, dtype=np.float64) for parts in zip(*map(draw, range(world.size)), strict=True)]
    graph = tf.function(lambda *parts: tensors.average(parts, "graph"))
    def check(means, atol):
        arrays = [mean.numpy() for mean in means]
        assert all(array.dtype == np.float32 for array in arrays)
        off = max(np.abs(array - mean).max() for array, mean in zip(arrays, exact, strict=True))
        assert off < atol, off
        assert len(set(world.gather(b"".join(array.tobytes() for array in arrays)))) == 1, "other bits on another rank"
        return off
    for _ in range(3):
        check(tensors.average([tf.constant(part) for part in draw(rank)], "eager"), 1e-6)
        check(graph(*draw(rank)), 1e-6)
    if world.backend == "mpi":
        kinds = [tf.float64, tf.bfloat16, tf.float32, tf.float16]  # a message of each
        mixed = tf.function(lambda *parts: tensors.average([tf.cast(*pair) for pair in zip(parts, kinds)], "mixed"))
        for turn in range(20):
            means = mixed(*[tf.fill([5], 2.0 ** (10 + rank) + turn) for _ in kinds])
            assert [mean.dtype for mean in means] == kinds
            expected = sum(2.0 ** (10 + rank) + turn for rank in range(3)) / 3
            assert all(abs(float(mean[4]) / expected - 1) < 1e-2 for mean in means), means
            assert abs(float(means[0][0]) - expected) < 1e-9
        (large,) = tensors.average([tf.fill([3], tf.constant(1e30, tf.bfloat16))], "large")
        assert 0.99e30 < float(large[0]) < 1.01e30, "float16 would overflow"
    half = tensors.average([tf.constant(part) for part in draw(rank)], "half", True)
    assert check(half, 4e-3) > 1e-5, "not sent as float16"
    given = [
        np.array([-0.0, np.nan, np.inf, 1e-45], np.float32), np.arange(999, dtype=np.int64) << 40, np.array(7.5),
        np.array([True, False, True]), np.array([1, 255, 0], np.uint8), np.array([], np.float32),
    ]
    if world.backend == "horovod":
        given.pop()
    sent = [value if rank == 0 else np.ones_like(value) for value in given]
    for got, value in zip(tensors.broadcast_arrays(sent, "given"), given, strict=True):
        assert got.tobytes() == value.tobytes() and got.shape == value.shape, (got, value)
    if world.backend == "tensorflow":
        try:
            tensors.broadcast_arrays([np.zeros(3 + rank)], "odd ones")
        except TfpipeError as error:
            assert str(error) == f"rank {rank}: the shapes of the odd ones differ between ranks"
        else:
            raise AssertionError("unequal shapes would wait for each other")
    print("fine", world.backend, rank)
"""

# The import of Horovod fails as where it is not installed.
WITHOUT_HOROVOD = """
import runpy, sys
sys.modules |= {name: None for name in ["horovod", *sys.modules] if name.split(".")[0] == "horovod"}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def train_on(size: int, *args: str | Path, **environ: str) -> Finished:
    return run_ranks(size, sys.executable, ROOT / "train.py", *args, **environ)


def weights(run_dir: Path) -> list[np.ndarray]:
    return keras.models.load_model(run_dir / "model.keras").get_weights()


def furthest(run_dir: Path, other: Path) -> float:
    """The largest difference between two runs' weights."""
    return max(np.abs(a - b).max() for a, b in zip(weights(run_dir), weights(other), strict=True))


@pytest.mark.parametrize("script", [COLLECTIVES, TENSORS], ids=["values", "tensors"])
def test_collectives_reach_all_ranks(tmp_path: Path, script: str) -> None:
    done = run_ranks(3, *WARM, "-c", script, tmp_path)
    assert done.code == 0, done.err
    said = sorted(line for line in done.out.splitlines() if line.startswith("fine"))
    assert said == [f"fine {backend} {rank}" for backend in ("horovod", "mpi", "tensorflow") for rank in range(3)]


@pytest.mark.parametrize(
    ("size", "sections"),
    [
        (
            3,
            {
                "training": {"epochs": 2, "compression": "fp16", "precision": "mixed_float16"},
                "lr_schedule": {"scale_by_ranks": True, "warmup_epochs": 0.5},
            },
        ),
        (3, {"training": {"epochs": 2, "compression": "fp16", "collectives": "tensorflow"}}),
        pytest.param(3, {"training": {"epochs": 2}}, marks=pytest.mark.full("fp16 and scaled rates take the same way")),
        pytest.param(2, {"training": {"epochs": 2}}, marks=pytest.mark.full("three ranks do the same")),
    ],
    ids=["3 fp16", "3 fp16 tensorflow", "3", "2"],
)
def test_ranks_end_with_equal_weights_and_count_every_test_sample_once(
    sample: SampleData, tmp_path: Path, size: int, sections: dict
) -> None:
    """Batch normalisation, several crops an image, a list that no number of ranks divides."""
    path = sample.config(tmp_path / "c.json", **sections)
    done = train_on(size, "-c", path, "-l", tmp_path / "run")
    assert done.code == 0, done.err
    assert f"bit-identical on all {size} ranks" in done.err
    assert done.out.count("epoch 2/2") == 1
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == [
        "checkpoints",
        "classes.json",
        "config.json",
        "events.jsonl",
        "metrics.jsonl",
        "model.keras",
        "test",
        "train",
    ]
    check_tests(tmp_path / "run", path)


def test_two_ranks_train_as_one_process_of_twice_the_batch(sample: SampleData, tmp_path: Path) -> None:
    """The same global batches, so the same weights, with a model free of batch statistics, with Horovod and without.

    The one process is a rank under mpirun, too: it needs no Horovod. XLA compiles the step of the ranks without it. A
    short epoch: over a long one at a high rate, float32 rounding tips a ReLU sooner or later (profiles/training.md).
    """
    sections = {
        "data": {"crop": "random_resized", "test_filelist": None},
        "model": {**TINY, "args": {"norm": "group"}},
        "optimizer": {"name": "SGD", "args": {"learning_rate": 0.05, "momentum": 0.9}},
    }
    path = sample.config(tmp_path / "c.json", **sections)
    alone = run_ranks(
        1, *WARM, "-c", WITHOUT_HOROVOD, ROOT / "train.py", "-c", path, "-l", tmp_path / "run1", "-n", "6"
    )
    assert alone.code == 0, alone.err
    train_py = [ROOT / "train.py", "-c", path, "--set", "data.batch_size=8", "-l"]
    missing = [*WARM, "-c", WITHOUT_HOROVOD]
    for name, python, collectives, more in (
        ("run2", [sys.executable], "horovod", []),
        ("run3", missing, "mpi", ["--set", "training.xla=true"]),
        ("run4", missing, "tensorflow", ["--set", "training.xla=true", "--set", "training.collectives=tensorflow"]),
    ):
        both = run_ranks(2, *python, *train_py, tmp_path / name, *more)
        assert both.code == 0, both.err
        assert f"2 ranks connected by {collectives}, each with" in both.err
        assert "bit-identical on all 2 ranks" in both.err
        ((one,), (two,)) = (read_metrics(tmp_path / run) for run in ("run1", name))
        assert one["step"] == two["step"] == 6
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
        assert furthest(tmp_path / "run1", tmp_path / name) < 1e-5
    # It is the training, not the start, that agrees.
    assert run_train("-c", path, "-l", tmp_path / "other", "--set", "data.seed=1").code == 0
    assert furthest(tmp_path / "run1", tmp_path / "other") > 1e-3


def test_horovod_that_is_asked_for_and_missing_is_an_error(sample: SampleData, tmp_path: Path) -> None:
    path = sample.config(tmp_path / "c.json", training={"collectives": "horovod"})
    done = run_ranks(2, *WARM, "-c", WITHOUT_HOROVOD, ROOT / "train.py", "-c", path, "-l", tmp_path / "run")
    assert done.code == 2
    assert done.err.count("tfpipe: error: Horovod is needed to train on several ranks") == 1
    assert "jobs/install_horovod.sh" in done.err and 'training.collectives "tensorflow"' in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun",
        *(
            pytest.param(
                name, marks=pytest.mark.full("collectives/test_launch.py has the variables; the rest is equal")
            )
            for name in ("srun", "flux")
        ),
    ],
)
def test_ranks_train_under_launchers_that_mpi_does_not_know(sample: SampleData, tmp_path: Path, launcher: str) -> None:
    """Real processes with the variables that the launcher sets; the first one starts last, and a day earlier."""
    path = sample.config(tmp_path / "c.json", data={"test_filelist": None})
    environs = {
        "torchrun": {"RANK": "{}", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
                     "TORCHELASTIC_RUN_ID": "none"},
        "srun": {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "{}", "SLURM_STEP_NUM_TASKS": "2"},
        "flux": {"FLUX_TASK_RANK": "{}", "FLUX_JOB_SIZE": "2", "FLUX_JOB_ID": "f2"},
    }  # fmt: skip
    words = ["-c", path, "-l", tmp_path / "run", "-n", "2", "--set", "training.collectives=tensorflow"]
    variables = {rank: {k: v.format(rank) for k, v in environs[launcher].items()} for rank in (1, 0)}
    variables[1] |= clock_ahead(86400)
    ranks = [start(sys.executable, ROOT / "train.py", *words, **environ) for environ in variables.values()]
    second, first = map(finish, ranks)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert "bit-identical on all 2 ranks" in first.err
    assert second.out == ""


@pytest.mark.parametrize(
    ("different", "said"),
    [
        ("--set data.seed=1", r"  data\.seed: 0 on rank 0, 1 on rank 1\n"),
        pytest.param(
            "--set data.train_filelist={list}",
            "  the train data's file names: ",
            marks=pytest.mark.full("the comparison is one; data/test_contract.py has what differs in the data"),
        ),
        pytest.param(
            "-l {list}.run",
            r'  --logdir: \S+/run" on rank 0, \S+/list\.txt\.run" on rank 1\n',
            marks=pytest.mark.full("as the seed's"),
        ),
    ],
    ids=["settings", "data", "folder"],
)
@pytest.mark.parametrize(
    "collectives",
    ["tensorflow", *(pytest.param(name, marks=pytest.mark.full("they compare alike")) for name in ("horovod", "mpi"))],
)
def test_a_difference_between_ranks_is_named_before_the_first_step(
    sample: SampleData, tmp_path: Path, different: str, said: str, collectives: str
) -> None:
    """Rank 1 alone has another seed, the same list in another order, or another run's directory."""
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(reversed(sample.train.read_text().splitlines())))
    path = sample.config(tmp_path / "c.json", data={"test_filelist": None}, training={"collectives": collectives})
    script = f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && set -- "$@" {different.format(list=listed)}; exec "$@"'
    run = tmp_path / "run"
    done = run_ranks(2, "bash", "-c", script, "bash", sys.executable, ROOT / "train.py", "-c", path, "-l", run)
    assert done.code == 2, done.err
    assert re.search(said, done.err), done.err
    assert not (run / "metrics.jsonl").exists() and not [*tmp_path.rglob("*.npz")]


def test_a_mistake_in_the_config_is_said_once(sample: SampleData, tmp_path: Path) -> None:
    path = sample.config(tmp_path / "c.json", data={"num_classes": 3})
    done = train_on(2, "-c", path, "-l", tmp_path / "run")
    assert done.code == 2
    assert done.err.count("tfpipe: error: data.num_classes is 3, but there are 8 classes") == 1


def test_a_mistake_that_only_one_rank_meets_is_said_by_it(sample: SampleData, tmp_path: Path) -> None:
    """Rank 1's config names a list that is not there, as on a node without it."""
    path = sample.config(tmp_path / "c.json")
    script = '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && list=/no/list; exec "$@" --set "data.train_filelist=${list:-$LIST}"'
    command = ("bash", "-c", script, "bash", sys.executable, ROOT / "train.py", "-c", path, "-l", tmp_path / "run")
    done = run_ranks(2, *command, LIST=str(sample.train))
    assert done.code == 2, done.err
    (said,) = [line for line in done.err.splitlines() if line.startswith("tfpipe: error:")]
    assert said.startswith("tfpipe: error: rank 1: cannot read the filelist /no/list")
