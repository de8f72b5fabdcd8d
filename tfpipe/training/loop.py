"""The training run: build, compile, fit, test, save."""

import logging
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.catalog import load_catalog
from tfpipe.data.crops import COUNT_AT_MOST, count_crops
from tfpipe.data.failures import named
from tfpipe.data.order import steps_per_epoch
from tfpipe.data.pipeline import build_dataset
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.training.callbacks import Display, Evaluation, OverRanks, Record, Throughput
from tfpipe.training.evaluate import Evaluator
from tfpipe.training.models import build_model
from tfpipe.training.optimizers import build_loss, build_optimizer
from tfpipe.training.parallel import ParallelModel, broadcast, weights_digest

logger = logging.getLogger(__name__)


def train(config: Config, world: World, run_dir: Path) -> dict[str, Any]:
    """Trains as `config` says and leaves in `run_dir`: config.json, metrics.jsonl, TensorBoard events, model.keras.

    Args:
        config: of the run.
        world: this process's rank, of how many; every rank must call.
        run_dir: must be the same on every rank.

    Returns:
        The metrics of the last epoch.

    Raises:
        ConfigError: something in the config, or what it names, cannot be used.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    logger.info("%d rank(s), each with %s CPUs; %d GPUs on this host", world.size, world.threads or "all", gpus)
    train_catalog = load_catalog(config.data, "train", world)
    test_catalog = load_catalog(config.data, "test", world) if config.data.test_filelist else None
    classes = config.data.num_classes or len(train_catalog.classes)
    count = count_crops(train_catalog, config.data, world)
    if count.crops == 0:
        raise ConfigError(
            f"{config.data.train_filelist} gives no crop: none of its images has an XML with an object of the classes "
            f"{', '.join(train_catalog.classes)}"
        )
    steps = config.training.steps_per_epoch or steps_per_epoch(count.crops, config.data.batch_size, world.size)
    logger.info(
        "an epoch: %d steps of %s%d crops; the list's %d images give %d (%s)",
        steps,
        f"{world.size} ranks x " if world.size > 1 else "",
        config.data.batch_size,
        len(train_catalog),
        count.crops,
        "exact" if count.exact else f"estimated from {COUNT_AT_MOST} XMLs",
    )

    model = compile_model(config, world, classes, steps)
    throughput = Throughput(config.data.batch_size * world.size, steps)
    callbacks = [throughput, OverRanks(world)]
    if test_catalog is not None:
        evaluator = Evaluator(config, world, test_catalog, classes)
        callbacks.append(Evaluation(evaluator, config.training.test_every, config.training.epochs))
    if world.rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.json").write_text(config.model_dump_json(indent=2) + "\n")
        display = Display(throughput, config.training.epochs, steps, config.training.status)
        callbacks += [Record(run_dir), display]

    try:
        history = model.fit(
            build_dataset(config, "train", world, with_positions=True, catalog=train_catalog),
            epochs=config.training.epochs,
            steps_per_epoch=steps,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
    except tf.errors.OpError as error:
        if "Horovod has been shut down" in error.message:
            # The rank at fault is about to say why, and then the launcher ends this one here.
            time.sleep(10)
            raise TfpipeError(f"rank {world.rank}: another rank has stopped") from error
        raise named(error, train_catalog, config.data, world, model.positions) from error
    digests = world.gather(weights_digest(model))
    if len(set(digests)) > 1:
        raise TfpipeError(f"the ranks' weights differ after training: {', '.join(digests)}")
    if world.size > 1:
        logger.info("weights: bit-identical on all %d ranks (SHA-256 %s...)", world.size, digests[0])
    if world.rank == 0:
        # As a plain Keras model, which loads without tfpipe.
        keras.Model(model.input, model.output, name=model.name).save(run_dir / "model.keras")
    return {name: values[-1] for name, values in history.history.items()}


def compile_model(config: Config, world: World, classes: int, steps: int) -> ParallelModel:
    """The network of `config`, ready to fit, with the same weights and optimizer state on every rank."""
    # Rank 0's weights count; the other ranks' seeds differ so that their dropout masks do.
    keras.utils.set_random_seed(config.training.seed + world.rank)
    keras.config.set_dtype_policy(config.training.precision)
    network = build_model(config, classes)
    model = ParallelModel(network.input, network.output, name=network.name)
    model.world = world
    model.fp16_compression = config.training.compression == "fp16"
    model.compile(
        optimizer=build_optimizer(config, world.size, steps),
        loss=build_loss(config, classes),
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="top1"),
            keras.metrics.SparseTopKCategoricalAccuracy(min(5, classes), name="top5"),
        ],
        # Horovod's ops cannot be compiled by XLA.
        jit_compile=False,
    )
    # The optimizer's slots must be there to be broadcast.
    model.optimizer.build(model.trainable_variables)
    broadcast(model.weights, world, "weights")
    broadcast(model.optimizer.variables, world, "optimizer")
    logger.info("%s: %.1f million weights", model.name, model.count_params() / 1e6)
    return model


def configure_devices(world: World, interop: int | None = None, intraop: int | None = None) -> None:
    """TensorFlow's threads and GPU for this rank; before TensorFlow is first used.

    Args:
        world: its share of the node's CPUs is the default where there are several ranks.
        interop: threads between ops; None for the default.
        intraop: threads within an op; None for the default.
    """
    default = world.threads if world.size > 1 else None
    for threads, setting in (
        (interop or default, tf.config.threading.set_inter_op_parallelism_threads),
        (intraop or default, tf.config.threading.set_intra_op_parallelism_threads),
    ):
        if threads is not None:
            setting(threads)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus and world.size > 1:
        tf.config.set_visible_devices(gpus[world.local_rank % len(gpus)], "GPU")


def choose_run_dir(logdir: Path | None, config_path: Path, world: World) -> Path:
    """`logdir`, or a new runs/NAME-TIME for the config of that name; the same on every rank.

    Raises:
        ConfigError: `logdir` holds another run, or cannot be written.
    """

    def choose() -> Path:
        chosen = logdir or Path("runs") / f"{config_path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        if (chosen / "metrics.jsonl").exists():
            raise ConfigError(f"{chosen} holds an earlier run; give another directory with --logdir")
        try:
            chosen.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {chosen}: {error.strerror}") from error
        return chosen

    return world.from_rank0(choose)
