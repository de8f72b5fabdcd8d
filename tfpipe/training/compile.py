"""Compiles a run's model, with the same weights on every rank."""

import logging

import keras

from tfpipe.config import Config
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError
from tfpipe.training.checkpointing.resume import inner_optimizer, restore, restore_generators, scale_iterations
from tfpipe.training.checkpointing.start import Start
from tfpipe.training.models import build_model
from tfpipe.training.monitor.meter import Meter
from tfpipe.training.optimizers import build_loss, build_optimizer
from tfpipe.training.own_metrics import build_metrics
from tfpipe.training.parallel import broadcast, weights_digest
from tfpipe.training.pretrained import freeze, load_weights
from tfpipe.training.run_model import RunModel
from tfpipe.training.single import make_model

logger = logging.getLogger(__name__)


def check_weights(model: RunModel, world: World) -> None:
    """Checks that every rank has the same weights. Raises TfpipeError if they differ."""
    digests = world.gather(weights_digest(model))
    if len(set(digests)) > 1:
        raise TfpipeError(f"the ranks' weights differ after training: {', '.join(digests)}")
    if world.size > 1:
        logger.info("weights: bit-identical on all %d ranks (SHA-256 %s...)", world.size, digests[0])


def compile_model(config: Config, world: World, classes: int, steps: int, start: Start) -> RunModel:
    """Compiles the network of `config`, to fit from `start` on, with the same weights and optimizer on every rank."""
    # Rank 0's weights are broadcast; the seeds differ between ranks so that their dropout masks do.
    keras.utils.set_random_seed(config.training.seed + world.rank)
    keras.config.set_dtype_policy(config.training.precision)
    network = build_model(config, classes)
    # The weights of a run that continues are those of its checkpoint.
    if start.state.total_steps == 0:
        load_weights(network, config)
    freeze(network, config.model.freeze)
    model = make_model(network, config, world)
    model.meter = Meter(start.state.total_steps)
    model.compile(
        optimizer=build_optimizer(config, world.size, steps),
        loss=build_loss(config, classes),
        metrics=build_metrics(config, classes),
        jit_compile=model.jit,
    )
    # LossScaleOptimizer builds its inner optimizer without tracking, which would leave Nadam's running product, and
    # perhaps the state of the user's own optimizer, out of the checkpoint. Adafactor would get variables that it does
    # not need, and that earlier checkpoints do not have.
    if ":" in config.optimizer.name or isinstance(inner_optimizer(model), keras.optimizers.Nadam):
        inner_optimizer(model).build(model.trainable_variables)
    # The optimizer's slots must exist before the broadcast.
    model.optimizer.build(model.trainable_variables)
    if start.checkpoint is not None:
        restore(model, start.checkpoint)
    broadcast(model.weights, world, "weights")
    broadcast(model.optimizer.variables, world, "optimizer")
    restore_generators(model, start.state, world)
    scale_iterations(model, start.scale)
    logger.info("%s: %.1f million weights", model.name, model.count_params() / 1e6)
    return model
