"""The training run: builds, compiles, fits, tests and saves the model, or resumes an earlier run."""

import json
import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfpipe.collectives.protocol import LostRankError, is_lost
from tfpipe.config import Config, DataConfig
from tfpipe.data.crop_counts import COUNT_AT_MOST
from tfpipe.data.loader import Loader
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.data.runtime.op_errors import reason
from tfpipe.data.runtime.tracing import Tracer, Window, trace_folder
from tfpipe.data.sources.registry import open_source
from tfpipe.data.split import sample_names
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.training.backends import (
    OverRanks,
    broadcast,
    check_weights,
    kept_determinism,
    make_model,
    prepare_backend,
)
from tfpipe.training.checkpointing.resume import (
    Checkpoints,
    PositionsLog,
    inner_optimizer,
    restore,
    restore_generators,
    scale_iterations,
)
from tfpipe.training.checkpointing.run_dir import check_room
from tfpipe.training.checkpointing.signals import stop_on_signals
from tfpipe.training.checkpointing.start import Start, find_start
from tfpipe.training.compile import build_loss, build_metrics, build_optimizer, check_over_ranks, check_rate_setters
from tfpipe.training.devices import log_devices, mover
from tfpipe.training.evaluate import Evaluation, Evaluator
from tfpipe.training.models import build_model, freeze, load_weights, renew_statistics
from tfpipe.training.monitor.accounting import Accounting, SampleShares, TimedCallbacks
from tfpipe.training.monitor.live import live_metrics
from tfpipe.training.monitor.metrics import METRICS, end_run, record, record_start
from tfpipe.training.monitor.record import Display, Profile, Record, Throughput
from tfpipe.training.monitor.stalls import StallWatch
from tfpipe.training.not_finite import NotFiniteGuard
from tfpipe.training.own_callbacks import OwnCallbacks
from tfpipe.training.run_model import RunModel
from tfpipe.training.saved import CONFIG, MODEL, RESUME_ADVICE, save_model, saved_step, write_classes
from tfpipe.training.skipping import Skipping
from tfpipe.util.atomic_write import writing

logger = logging.getLogger(__name__)


@kept_determinism()
def train(
    config: Config,
    world: World,
    run_dir: Path,
    resume: bool = False,
    anyway: bool = False,
    traced: Window | None = None,
) -> dict[str, Any]:
    """Trains the model of `config`; writes metrics.jsonl, TensorBoard events, checkpoints and model.keras to `run_dir`.

    Every rank must call, with the same `run_dir`. With `resume`, continues from the last checkpoint in it, if there is
    one; with `anyway`, even if the contract with the checkpoint's run is broken. `traced` are the steps that this rank
    traces. Returns the metrics of the last epoch; empty if no step was left to train.

    Raises ConfigError if the config, or something that it names, cannot be used, or `run_dir` cannot be written;
    Stopped if a signal asked the run to stop, and its state is saved.
    """
    log_devices(world)
    prepare_backend(config, world)
    loader, test = load_run(config, world, traced is not None)
    schedule = loader.schedule
    steps = schedule.phase(0).steps
    start = find_start(loader, run_dir, steps, resume=resume, anyway=anyway)
    loader.restart(start.state.stream, start.state.total_steps, (start.state.epoch, start.state.step))
    loader.meter.steps = start.state.total_steps
    saved, untrained = run_dir / MODEL, start.state.epoch < config.training.epochs
    # A run that was ended while it saved the model has an older one, or none.
    is_saved = world.from_rank0(lambda: saved_step(saved)) == start.state.total_steps
    if not untrained and start.state.untested is None and is_saved:
        logger.info("%s has ended, after %s", run_dir, counted(config.training.epochs, "epoch"))
        return {}
    with stop_on_signals() as stop, writing(run_dir, RESUME_ADVICE):
        keras.utils.set_random_seed(config.training.seed + world.rank)  # of a user's `data.transform`, too
        if untrained:
            loader.start()  # reads and decodes while the model is built and restored
        total = schedule.first_step(config.training.epochs)
        model = compile_model(config, world, loader.data.outputs, steps, start, total)
        check_room(run_dir, sum(item.numpy().nbytes for item in [*model.weights, *model.optimizer.variables]), world)
        checkpoints = Checkpoints(run_dir, config.training, world, start.state, stop)
        callbacks = make_callbacks(loader, test, checkpoints)
        record_start(run_dir, world, start.state.total_steps, start.state.epoch)
        if traced is not None:
            names = partial(sample_names, loader.data)
            callbacks.insert(0, Profile(Tracer(trace_folder(run_dir, world), traced, world.rank, names)))
        model.train_on(loader)
        metrics = run_dir / METRICS if world.rank == 0 else None
        with live_metrics(loader, callbacks), StallWatch(loader, metrics, end=partial(end_run, run_dir, world)):
            logs = fit(model, max(phase.steps for phase in schedule.phases), callbacks, checkpoints)
    check_weights(model, world)
    # The others wait: TensorFlow's collectives would report a rank as lost that ends half a minute before this one.
    world.from_rank0(lambda: save_model(model.plain(), saved, checkpoints.state.total_steps))
    record(run_dir, world, "end", step=checkpoints.state.total_steps, epoch=checkpoints.state.epoch)
    return logs


def load_run(config: Config, world: World, marks: bool = False) -> tuple[Loader, Loader | None]:
    """Returns the training data and the test data, if there are some; `marks`: times single training samples.

    StallWatch limits the waits for a batch: unlike an exception, it also ends a process that hangs elsewhere. Raises
    ConfigError if data or targets cannot be trained on, or a callback cannot set the learning rate.
    """
    check_targets(config.data)
    check_rate_setters(config, world.size)
    # Skipping and the test pass count what all ranks leave out, and list it.
    options: dict[str, Any] = {"timeout_s": math.inf, "named": True, "max_bad_fraction": math.inf}
    steps = config.training.steps_per_epoch
    train = Loader(config, "train", world, mover(), ready=True, marks=marks, steps_per_epoch=steps, **options)
    # Rank 0 looks: class folders are listed for it, which a thousand ranks are not to do.
    has_test = world.from_rank0(lambda: open_source(config.data).has_test())
    test = Loader(config, "test", world, **options) if has_test else None
    catalog, count = train.catalog, train.count
    if count.crops == 0:
        raise ConfigError(
            f"{catalog.display_name} gives no crop: none of its images has an XML with an object of the classes "
            f"{', '.join(catalog.classes)}"
        )
    drawn = catalog.lists or isinstance(train.data.order, WeightedOrder)
    estimated = "expected from the weights" if drawn else f"estimated from {COUNT_AT_MOST} XMLs"
    how_many = "exact" if count.exact else estimated
    of_list = f"the list gives {count.crops} of {counted(len(catalog), 'image')} ({how_many})"
    ranks = f"{counted(world.size, 'rank')} x " if world.size > 1 else ""
    for phase in train.schedule.phases:
        (height, width), several = config.data.at(phase.epoch).crop_image_size, config.data.has_phases
        logger.info(
            "%s: %s of %s%s%s",
            f"from epoch {phase.epoch + 1} on" if several else "an epoch",
            *(counted(phase.steps, "step"), ranks, counted(phase.batch_size, "crop")),
            (f" of {height}x{width}" if several else f"; {of_list}")
            + (", which training.epochs does not reach" if phase.epoch >= config.training.epochs else ""),
        )
    if config.data.has_phases:
        logger.info("%s", of_list)
    return train, test


def check_targets(data: DataConfig) -> None:
    """Raises ConfigError unless each image has one view, and each crop one class, as `tfpipe train` needs."""
    extra = data.source.columns.extra if data.source is not None else {}
    keys = [f'data.targets "{data.targets.kind}"'] if data.targets.kind != "label" else []
    keys += [f"data.source.columns.extra {json.dumps(extra)}"] if extra else []
    keys += ["data.views"] if data.views else []
    if keys:
        raise ConfigError(
            f"tfpipe train trains classifiers, of one class a crop, and the config has {' and '.join(keys)}: take the "
            "batches into a loop of your own, by tfpipe.Loader (docs/targets.md), or leave that out"
        )


def compile_model(
    config: Config, world: World, classes: int, steps: int, start: Start, total_steps: int | None = None
) -> RunModel:
    """Compiles the network of `config`, to fit from `start` on, with the same weights and optimizer on every rank.

    The first epoch has `steps` steps, the run `total_steps`, None for as many in each of its epochs.
    """
    # Rank 0's weights are broadcast; the seeds differ between ranks so that their dropout masks do.
    keras.utils.set_random_seed(config.training.seed + world.rank)
    keras.config.set_dtype_policy(config.training.precision)
    network = build_model(config, classes)
    # The weights of a run that continues are those of its checkpoint.
    if start.state.total_steps == 0:
        world.from_rank0(lambda: load_weights(network, config))  # the others get rank 0's below, and download nothing
    freeze(network, config.model.freeze)
    model = make_model(network, config, world)
    loss = build_loss(config, classes)
    check_over_ranks(loss, world.size)
    model.compile(
        optimizer=build_optimizer(config, world.size, steps, total_steps),
        loss=loss,
        metrics=build_metrics(config, classes),
        jit_compile=model.jit,
    )
    model.check_names()
    # LossScaleOptimizer builds its inner optimizer without tracking, which would leave Nadam's running product, and
    # perhaps the state of the user's own optimizer, out of the checkpoint. Adafactor would get variables that it does
    # not need.
    if ":" in config.optimizer.name or isinstance(inner_optimizer(model), keras.optimizers.Nadam):
        inner_optimizer(model).build(model.trainable_variables)
    # The optimizer's slots must exist before the broadcast.
    model.optimizer.build(model.trainable_variables)
    if start.checkpoint is not None:
        restore(model, start.checkpoint)
    broadcast(model.weights, world, "weights")
    renew_statistics(network)
    broadcast(model.optimizer.variables, world, "optimizer")
    restore_generators(model, start.state, world)
    scale_iterations(model, start.scale)
    logger.info("%s: %.1f million weights", model.name, model.count_params() / 1e6)
    return model


def make_callbacks(loader: Loader, test: Loader | None, checkpoints: Checkpoints) -> list[keras.callbacks.Callback]:
    """Builds the callbacks in their order: each adds to the logs that the next one sees; `checkpoints` comes last."""
    config, world, run_dir, start = loader.config, loader.world, checkpoints.run_dir, checkpoints.state
    training = config.training
    throughput = Throughput(loader.schedule, world.size, start.epoch_steps - start.step)
    record = Record(run_dir) if world.rank == 0 else None
    accounting = Accounting(loader, training.interval, throughput, record)
    callbacks = [NotFiniteGuard(run_dir, world), throughput, accounting, OverRanks(world)]
    if config.data.on_error == "skip":
        callbacks.append(Skipping(loader, run_dir, training.interval, start.dropped))
    if training.log_positions:
        callbacks.append(PositionsLog(run_dir, world.rank))
    if test is not None:
        evaluator = Evaluator(test, loader.data.outputs, run_dir, end=partial(end_run, run_dir, world))
        callbacks.append(Evaluation(evaluator, training.test_every, checkpoints))
    if config.callbacks:
        callbacks.append(OwnCallbacks(config, world, checkpoints, tested=test is not None))
    if isinstance(loader.data.order, WeightedOrder):
        callbacks.append(SampleShares(loader))
    if record is not None:
        (run_dir / CONFIG).write_text(config.model_dump_json(indent=2) + "\n")
        write_classes(run_dir, loader)
        callbacks += [record, Display(throughput, training.epochs, loader.schedule, training.status, start.step)]
    return [*callbacks, checkpoints]


def fit(
    model: RunModel, steps: int, callbacks: list[keras.callbacks.Callback], checkpoints: Checkpoints
) -> dict[str, Any]:
    """Runs Keras' fit in epochs of at most `steps` steps from the state of `checkpoints` on, the last of `callbacks`.

    `checkpoints` ends an epoch that has fewer. The end of an epoch that the run still owes comes first. Raises
    TfpipeError if a file cannot be used, which the message names, or another rank has stopped.
    """
    start = checkpoints.state
    assert model.meter is not None and model.loader is not None, "train_on gives it them"
    (pixels,) = model.inputs
    rank = model.world.rank
    try:
        if start.untested is not None or start.epoch >= checkpoints.epochs:
            logs = end_epoch(model, steps, callbacks, checkpoints)
            if checkpoints.ended or start.epoch >= checkpoints.epochs:
                return logs
        history = model.fit(
            # The training function takes the batches; this shows Keras their kind, and keeps it going.
            tf.data.Dataset.from_tensors((tf.zeros([side or 1 for side in pixels.shape], pixels.dtype), [0])).repeat(),
            initial_epoch=start.epoch,
            epochs=checkpoints.epochs,
            steps_per_epoch=steps,
            shuffle=False,
            verbose=0,
            callbacks=TimedCallbacks(
                callbacks, add_history=True, model=model, verbose=0, epochs=checkpoints.epochs, steps=steps
            ),
        )
    except tf.errors.OpError as error:
        if is_lost(error):
            # The failed rank says why, or the rank that watches it names it (watch_peers).
            raise LostRankError(f"rank {rank}: another rank has stopped") from error
        raise TfpipeError(f"rank {rank}: stopped: {reason(error)}") from error
    finally:
        # Ends the pipeline, which waits for the reads that it has begun: a hang there is a stall as before a batch.
        with model.meter.waiting():
            model.loader.close()
    return {name: values[-1] for name, values in history.history.items()}


def end_epoch(
    model: RunModel, steps: int, callbacks: list[keras.callbacks.Callback], checkpoints: Checkpoints
) -> dict[str, Any]:
    """Ends the epoch whose test pass a signal has interrupted, for the callbacks that have not seen its end.

    If it is the run's last one, the config's callbacks see the end of training. Returns the epoch's metrics, if any.
    """
    start, logs = checkpoints.state, dict(checkpoints.state.untested or {})
    user_callbacks = [callback for callback in callbacks if isinstance(callback, OwnCallbacks)]
    for callback in callbacks:
        callback.set_params({"verbose": 0, "epochs": checkpoints.epochs, "steps": steps})
        callback.set_model(model)
    for callback in user_callbacks:
        callback.on_train_begin()
    if start.untested is not None:
        for callback in user_callbacks:
            callback.on_epoch_begin(start.epoch - 1)
        for callback in callbacks:
            if isinstance(callback, Evaluation | OwnCallbacks | Record | Display | Checkpoints):
                callback.on_epoch_end(start.epoch - 1, logs)
    if checkpoints.ended or start.epoch >= checkpoints.epochs:
        model.optimizer.finalize_variable_values(model.trainable_weights)
        for callback in user_callbacks:
            callback.on_train_end(logs)
    return logs
