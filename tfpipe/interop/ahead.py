"""The Loader of another framework: a thread makes its arrays of each batch, some batches ahead of use."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.batch import with_extras
from tfpipe.data.delivery.taker import Prepare
from tfpipe.data.failures.batches import Batches
from tfpipe.data.loader import Loader
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.resources import cpu_share, own_cpus

log = logging.getLogger(__name__)
Gather = Callable[[Any], list[Any]]
# Arguments of Loader that are about its own tuples of TensorFlow's tensors.
OF_TENSORFLOW = ("ready", "named", "marks")


class ReadyBatch(NamedTuple):
    """A batch as another framework's arrays, which may still be on their way to a device."""

    data: Any  # the structure of Batch.data, of arrays
    positions: np.ndarray  # int64 [batch, 2], for the Loader's state; [0, 2] if the batch only fills up a sharded pass
    arrived: Any = None  # an event after which the arrays may be used; None: at once


class Processes(NamedTuple):
    """The processes that a framework has connected."""

    rank: int
    size: int
    gather: Gather


class AheadLoader(Loader):
    """A Loader whose thread prepares batches ahead of use; the state is that of the batch handed out last."""

    def __init__(
        self, config_or_data: Any, split: str, world: World | None, processes: Processes | None, **options: Any
    ) -> None:
        """Loads the catalog; `options` are those of tfpipe.Loader, without OF_TENSORFLOW, and keys of `data`.

        `world` None is that of the framework's `processes`, if it has any. TensorFlow gets none of the GPUs, whose
        memory it would take, unless it has started before. Raises ConfigError for OF_TENSORFLOW, and as Loader does.
        """
        if refused := [name for name in OF_TENSORFLOW if options.get(name)]:
            raise ConfigError(f"{refused[0]}: only tfpipe.Loader takes it; leave it out")
        leave_gpus()
        world = world or (World() if processes is None else world_of(*processes))
        # The ranks of a `world` of another size are not the framework's processes.
        are_ranks = processes is not None and world.backend == "none" and processes.size == world.size > 1
        gather = processes.gather if processes is not None and are_ranks else None
        super().__init__(config_or_data, split, world, gather=options.pop("gather", None) or gather, **options)
        if are_ranks:
            self._compare_ranks()

    def _prepare_ahead(self, prepare: Callable[[Batches, int | None], Prepare], ahead: int) -> None:
        """Lets the thread prepare `Batch`es, `ahead` of them before they are asked for.

        `prepare` returns a function that makes `ReadyBatch` of them, and must not refer to this Loader, so that one
        that is dropped ends its thread. It is given the number of batches if that is the same for all ranks, else None.
        """
        self._opener.prepare, self._opener.ahead = prepare, ahead

    def _for_user(self, batch: ReadyBatch) -> tuple[Any, Any]:
        """Returns data and positions of a batch, as its user gets them."""
        return batch.data, batch.positions

    @property
    def dataset(self) -> Any:
        """Is no attribute here: what torch's DataLoaders call so, and Lightning looks for, is another thing."""
        raise AttributeError(
            f"{type(self).__module__.replace('interop.', '')}.Loader hands out no tensors of TensorFlow: use "
            "tfpipe.load or tfpipe.Loader, whose dataset() Keras takes with each of its backends"
        )

    def _finish(self, batch: Any) -> Any:
        data, positions = self._for_user(batch)
        return with_extras(data, positions) if self._positions else data


def leave_gpus() -> None:
    """Lets TensorFlow take none of the GPUs, which are another framework's; warns if it has taken their memory."""
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        gpus = tf.config.get_visible_devices("GPU")
        if gpus and not all(map(tf.config.experimental.get_memory_growth, gpus)):
            log.warning(
                "TensorFlow has started before, with %s, whose memory it takes for itself: call "
                "tf.config.set_visible_devices([], 'GPU') before the first dataset is built",
                counted(len(gpus), "GPU"),
            )


def world_of(rank: int, size: int, gather: Gather) -> World:
    """Returns the world of a framework's ranks, who share the CPUs of their host; every rank must call it."""
    sets = gather(own_cpus())
    hosts = [each.host for each in sets]
    return World(rank, size, "none", hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank]), cpu_share(sets, rank))
