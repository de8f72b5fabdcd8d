"""The training run: builds, compiles, fits, tests and saves the model, or resumes an earlier run."""

import logging
import math
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.crop_counts import COUNT_AT_MOST, count_crops
from tfpipe.data.loader import Loader
from tfpipe.data.order.permutation import steps_per_epoch
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.data.pipeline import stage_names
from tfpipe.data.runtime.marks import marked
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.runtime.tracing import Tracer, Window, trace_folder
from tfpipe.data.sources.registry import open_source
from tfpipe.data.split import sample_names
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.training.callbacks import Evaluation, OverRanks
from tfpipe.training.checkpointing.checkpoints import State
from tfpipe.training.checkpointing.resume import Checkpoints, PositionsLog
from tfpipe.training.checkpointing.signals import Stop, stop_on_signals
from tfpipe.training.checkpointing.start import check_room, find_start
from tfpipe.training.compile import check_weights, compile_model
from tfpipe.training.evaluate import Evaluator
from tfpipe.training.monitor.accounting import Accounting
from tfpipe.training.monitor.metrics import METRICS
from tfpipe.training.monitor.profiling import Profile
from tfpipe.training.monitor.record import Display, Record, Throughput
from tfpipe.training.monitor.shares import SampleShares
from tfpipe.training.monitor.stall_limit import stall_limit
from tfpipe.training.monitor.stalls import StallWatch
from tfpipe.training.monitor.usage import SampleCounter
from tfpipe.training.not_finite import NotFiniteGuard
from tfpipe.training.own_callbacks import OwnCallbacks
from tfpipe.training.run_model import RunModel
from tfpipe.training.single import prepare_backend
from tfpipe.training.skipping import Skipping
from tfpipe.util.atomic_write import writing
from tfpipe.util.retry import retried

logger = logging.getLogger(__name__)

ADVICE = "once it can be written, continue the run with --resume auto"


class Data(NamedTuple):
    """The data of a run."""

    train: Loader
    test: Loader | None
    classes: int  # number of outputs of the model
    steps: int  # steps of an epoch


def train(
    config: Config,
    world: World,
    run_dir: Path,
    resume: bool = False,
    anyway: bool = False,
    traced: Window | None = None,
) -> dict[str, Any]:
    """Trains the model of `config`; writes config.json, metrics.jsonl, TensorBoard events, checkpoints and model.keras
    to `run_dir`.

    Args:
        config: the run's config.
        world: this rank; every rank must call.
        run_dir: the run's directory, the same on every rank.
        resume: continue from the last checkpoint in `run_dir`, if there is one.
        anyway: continue even if the contract with the checkpoint's run is broken.
        traced: the steps that this rank traces; None: none.

    Returns:
        The metrics of the last epoch; empty if no step was left to train.

    Raises:
        ConfigError: the config, or something that it names, cannot be used, or `run_dir` cannot be written.
        Stopped: a signal asked the run to stop, and its state is saved.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    logger.info("%d rank(s), each with %s CPUs; %d GPUs on this host", world.size, world.threads or "all", gpus)
    prepare_backend(config, world)
    data = load_data(config, world, traced is not None)
    start = find_start(config, world, run_dir, data.train.data, data.steps, resume, anyway)
    data.train.restart(start.state.stream, start.state.total_steps)
    saved = run_dir / "model.keras"
    trained = start.state.epoch >= config.training.epochs and start.state.untested is None
    if trained and world.from_rank0(saved.exists):
        logger.info("%s has all of its %d epochs already", run_dir, config.training.epochs)
        return {}
    with stop_on_signals() as stop, writing(run_dir, ADVICE):
        model = compile_model(config, world, data.classes, data.steps, start)
        check_room(run_dir, sum(item.numpy().nbytes for item in [*model.weights, *model.optimizer.variables]), world)
        assert model.meter is not None, "compile_model gives it one"
        callbacks = make_callbacks(config, world, run_dir, data, start.state, stop)
        if traced is not None:
            names = partial(sample_names, data.train.data)
            callbacks.insert(0, Profile(Tracer(trace_folder(run_dir, world), traced, world.rank, names)))
        metrics = run_dir / METRICS if world.rank == 0 else None
        model.loader = data.train
        limit = stall_limit(config.data, data.train)
        with StallWatch(model.meter, world.rank, metrics, limit=limit):
            logs = fit(model, config, data.steps, start.state, callbacks)
    # Keras' fit ends with this, but a run that owes only its last test pass or model.keras does not call it.
    model.optimizer.finalize_variable_values(model.trainable_weights)
    check_weights(model, world)
    if world.rank == 0:
        # A plain Keras model loads without tfpipe. Keras writes only to names that end with .keras.
        with writing(saved, ADVICE):
            unfinished = run_dir / ".unfinished.keras"
            retried(keras.Model(model.input, model.output, name=model.name).save)(unfinished)
            unfinished.replace(saved)
    return logs


def load_data(config: Config, world: World, marks: bool = False) -> Data:
    """Loads the catalogs, and computes the steps of an epoch; `marks`: records the times of single training samples.

    StallWatch limits the waits for a batch: unlike an exception, it also ends a process that hangs elsewhere.

    Raises:
        ConfigError: a list cannot be used, or yields no crop.
    """
    # Skipping and the test pass count what all ranks leave out, and list it.
    how: dict[str, Any] = {"timeout_s": math.inf, "named": True, "max_bad_fraction": math.inf}
    gpu = "GPU:0" if keras.backend.backend() == "tensorflow" and tf.config.get_visible_devices("GPU") else None
    train = Loader(config, "train", world, gpu, ready=True, wrap=marked if marks else None, **how)
    test = Loader(config, "test", world, **how) if open_source(config.data).has_test() else None
    catalog = train.catalog
    classes = config.data.num_classes or len(catalog.classes)
    count = count_crops(train.data)
    if count.crops == 0:
        raise ConfigError(
            f"{catalog.display_name} gives no crop: none of its images has an XML with an object of the classes "
            f"{', '.join(catalog.classes)}"
        )
    steps = config.training.steps_per_epoch or steps_per_epoch(count.crops, config.data.batch_size, world.size)
    drawn = catalog.lists or isinstance(train.data.order, WeightedOrder)
    how_many = "expected from the weights" if drawn else f"estimated from {COUNT_AT_MOST} XMLs"
    logger.info(
        "an epoch: %d steps of %s%d crops; the list's %d images give %d (%s)",
        *(steps, f"{world.size} ranks x " if world.size > 1 else "", config.data.batch_size, len(catalog)),
        *(count.crops, "exact" if count.exact else how_many),
    )
    return Data(train, test, classes, steps)


def make_callbacks(
    config: Config, world: World, run_dir: Path, data: Data, start: State, stop: Stop
) -> list[keras.callbacks.Callback]:
    """Builds the callbacks in their order: each adds to the logs that the next one sees; Checkpoints comes last."""
    training = config.training
    throughput = Throughput(config.data.batch_size * world.size, data.steps - start.step)
    checkpoints = Checkpoints(run_dir, training.checkpoint, world, start, data.steps, training.epochs, stop)
    checkpoints.guarded = training.stop_on_nan
    record = Record(run_dir) if world.rank == 0 else None
    catalog = data.train.catalog
    visits, names = SampleCounter(data.train.data), stage_names(data.train.data)
    guard = [NotFiniteGuard(run_dir, world)] if training.stop_on_nan else []
    callbacks = [
        *guard,
        throughput,
        Accounting(world, training.interval, throughput, visits, record, names),
        OverRanks(world),
    ]
    if config.data.on_error == "skip":
        callbacks.append(Skipping(data.train, run_dir, training.interval, start.dropped))
    if training.log_positions:
        callbacks.append(PositionsLog(run_dir, world, checkpoints))
    if data.test is not None:
        evaluator = Evaluator(config, data.test, data.classes, run_dir)
        callbacks.append(Evaluation(evaluator, training.test_every, checkpoints))
    if config.callbacks:
        callbacks.append(OwnCallbacks(config, world, checkpoints, data.test is not None))
    if isinstance(order := data.train.data.order, WeightedOrder):
        callbacks.append(SampleShares(catalog, order, world))
    if world.rank == 0:
        (run_dir / "config.json").write_text(config.model_dump_json(indent=2) + "\n")
        display = Display(throughput, training.epochs, data.steps, training.status, start.step)
        callbacks += [record, display]
    return [*callbacks, checkpoints]


def fit(
    model: RunModel, config: Config, steps: int, start: State, callbacks: list[keras.callbacks.Callback]
) -> dict[str, Any]:
    """Runs Keras' fit from `start` on, in epochs of `steps` steps, after the test pass that the run still owes.

    Raises:
        TfpipeError: a file cannot be used, which the message names, or another rank has stopped.
    """
    logs = dict(start.untested or {})
    trained = start.epoch >= config.training.epochs
    if start.untested is not None:
        for callback in callbacks:
            callback.set_model(model)
            if isinstance(callback, Evaluation | Record | Display) or (trained and callback is callbacks[-1]):
                callback.on_epoch_end(start.epoch - 1, logs)
    if trained:
        return logs
    assert model.meter is not None and model.loader is not None, "compile_model and train give it them"
    (pixels,) = model.inputs
    rank = model.world.rank
    try:
        history = model.fit(
            # The training function takes the batches; this shows Keras their kind, and keeps it going.
            tf.data.Dataset.from_tensors((tf.zeros((1, *pixels.shape[1:]), pixels.dtype), [0])).repeat(),
            initial_epoch=start.epoch,
            epochs=config.training.epochs,
            steps_per_epoch=steps,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
    except tf.errors.OpError as error:
        if "Horovod has been shut down" in error.message:
            # The failed rank prints the reason; the launcher then kills this rank during the sleep.
            time.sleep(10)
            raise TfpipeError(f"rank {rank}: another rank has stopped") from error
        raise TfpipeError(f"rank {rank}: stopped: {reason(error)}") from error
    finally:
        # Ends the pipeline, which waits for the reads that it has begun: a hang there is a stall as before a batch.
        with model.meter.waiting():
            model.loader.close()
    return {name: values[-1] for name, values in history.history.items()}


def configure_devices(world: World, interop: int | None = None, intraop: int | None = None) -> None:
    """Sets TensorFlow's threads and GPU for this rank; must come before the first use of TensorFlow.

    Args:
        world: this rank; with several ranks, its share of the node's CPUs is the default.
        interop: threads between ops; None for the default. The input pipeline has a pool of its own, `data.threads`.
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
    if gpus:
        tf.config.set_visible_devices(gpus[world.local_rank % len(gpus)], "GPU")
    if len(gpus) > 1 and world.size == 1:
        logger.warning("1 of %d GPUs used: mpirun -n %d --bind-to none python train.py ... uses all", *2 * [len(gpus)])
