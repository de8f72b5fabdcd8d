"""World: this process's rank, the number of ranks, and the collectives between them."""

import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from tfpipe.collectives.agreement import check_equal
from tfpipe.collectives.jax import JaxCollectives
from tfpipe.collectives.launch import WITHOUT_MPI, Launch, find_launch, stray_size
from tfpipe.collectives.mpi import HorovodCollectives, MpiCollectives
from tfpipe.collectives.protocol import Backend, Collectives, TensorCollectives
from tfpipe.collectives.tensorflow import TensorFlowCollectives
from tfpipe.collectives.torch import TorchCollectives
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.util.resources import cpu_share, own_cpus

S = TypeVar("S", bound=Sequence[Any] | np.ndarray)
T = TypeVar("T")
R = TypeVar("R")
Choice = Literal["auto", "horovod", "mpi", "tensorflow", "jax", "torch"]
logger = logging.getLogger(__name__)

FRAMEWORKS: dict[str, Callable[[Launch, Path], Collectives]] = {
    "tensorflow": TensorFlowCollectives,
    "jax": JaxCollectives,
    "torch": TorchCollectives,
}
"""Collectives of frameworks, which connect the ranks of any launcher."""
RUNS = Path("runs")
"""Directory of runs, where the ranks of a launch meet."""


def _check_launcher() -> None:
    """Raises ConfigError if a launcher whose ranks MPI does not connect started several: each would be alone."""
    launch = find_launch()
    if launch is not None and launch.instead and launch.size != 1:
        raise ConfigError(
            f"{launch.launcher} started this process as rank {launch.rank} of {launch.size}, which MPI and Horovod do "
            f"not connect, so that each would work alone: start the ranks with mpirun -n {launch.size} --bind-to none "
            f"instead; tfpipe train can stay with this launcher (training.collectives), and so can a loop of your own: "
            f"{launch.instead}"
        )


def end_other_ranks(code: int) -> None:
    """Ends all ranks that MPI connects, this one too, with an exit code; does nothing if there are no others.

    For a rank that has failed: the others may wait for it in a collective, forever, and it for them in MPI_Finalize.
    Horovod's collectives end with an error instead.
    """
    mpi, horovod = sys.modules.get("mpi4py.MPI"), sys.modules.get("horovod.tensorflow")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or (horovod and horovod.is_initialized()):
        return
    if mpi.COMM_WORLD.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(code)


@dataclass(frozen=True)
class World:
    """One rank of `size`, and the collectives that connect them.

    A `World(rank, size)` constructed directly has no connection to the other ranks; that is enough for sharding, which
    every rank computes on its own. `World.horovod()`, `World.tensorflow()`, `World.mpi()` and `World.detect()` connect
    the ranks.
    """

    rank: int = 0
    size: int = 1
    backend: Backend = "none"
    local_rank: int = 0
    """Rank among those on this host, if known; selects the GPU."""
    local_size: int = 1
    """Number of ranks on this host, if known."""
    threads: int | None = None
    """CPUs this rank may use; None for all CPUs that this process may run on."""
    collectives: Collectives | None = field(default=None, repr=False, compare=False)
    """Connection to the other ranks; None without a backend."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank must be in [0, size), received rank {self.rank} of size {self.size}")

    @classmethod
    def horovod(cls) -> "World":
        """Returns the world of the ranks that Horovod was started with.

        Raises:
            ConfigError: Horovod is not installed, sees other ranks than the launcher started, or cannot see them.
        """
        _check_launcher()
        try:
            return cls._connect(HorovodCollectives())
        except ImportError as error:
            raise ConfigError(
                f"Horovod is needed to train on several ranks, and cannot be imported ({error}); "
                "install it with jobs/install_horovod.sh, or let TensorFlow connect the ranks: "
                'training.collectives "tensorflow", in a program of your own World.tensorflow()'
            ) from error

    @classmethod
    def tensorflow(cls, folder: Path = RUNS) -> "World":
        """Returns the world of the ranks that the launcher started, connected by TensorFlow's own collectives.

        Any launcher that tells a rank and a size will do: mpirun, srun, flux, torchrun. Without one, returns the world
        of a single process. The ranks meet in `folder`, a directory that all of them see.

        Raises:
            ConfigError: not all ranks come within three minutes, or nothing tells one launch from another, or how to
                find the other processes of WORLD_SIZE.
        """
        return cls.detect(collectives="tensorflow", folder=folder)

    @classmethod
    def mpi(cls) -> "World":
        """Returns the world of MPI's COMM_WORLD, through mpi4py (extra `mpi`); for tools that need no TensorFlow.

        Raises:
            ConfigError: mpi4py or its MPI is not installed, sees other ranks than the launcher started, or cannot see
                them.
        """
        _check_launcher()
        return cls._connect(MpiCollectives())

    @classmethod
    def detect(cls, horovod: bool | None = None, collectives: Choice = "horovod", folder: Path = RUNS) -> "World":
        """Returns the world that this process was launched into.

        Args:
            horovod: True to connect the ranks with Horovod even if the environment names no launcher; False for a world
                of this process alone.
            collectives: what connects the ranks. "auto": if the launcher is one of MPI's, Horovod if it can be
                imported, or else MPI itself if mpi4py can be imported and no rank has a GPU; TensorFlow otherwise.
                "jax" and "torch" for Keras on these backends.
            folder: a directory that all ranks see, where the ranks meet without Horovod.

        Raises:
            ConfigError: several ranks were launched but cannot be connected; N separate trainings never run.
        """
        launch = find_launch()
        if launch is not None and launch.size == 1:
            launch = None
        if horovod is False:
            if launch is not None:
                logger.warning("rank %d of %s: alone, since Horovod is switched off", launch.rank, launch.launcher)
            return cls()._validate()
        if horovod or (launch is not None and collectives == "horovod"):
            return cls.horovod()
        if launch is not None and collectives == "mpi":
            return cls.mpi()
        if collectives != "horovod" and (stray := stray_size()):
            raise ConfigError(
                f"{stray} says that this process is one of several, and nothing tells how to find the others: set "
                "RANK, MASTER_ADDR and MASTER_PORT too, as torchrun does, or unset WORLD_SIZE to train in one process"
            )
        if launch is None:
            return cls()._validate()
        if collectives == "auto" and not launch.instead:
            try:
                return cls._connect(HorovodCollectives())
            except ModuleNotFoundError:
                logger.debug("Horovod is not installed: MPI or TensorFlow connects the ranks")
            except ImportError as error:
                logger.warning("Horovod cannot be imported (%s): MPI or TensorFlow connects the ranks", error)
            if world := cls._by_mpi_of_cpus(launch):
                return world
        return cls._connect(FRAMEWORKS["tensorflow" if collectives == "auto" else collectives](launch, folder))

    @classmethod
    def _by_mpi_of_cpus(cls, launch: Launch) -> "World | None":
        """Returns the world of MPI's ranks, or None if mpi4py does not connect all of them, or if any has a GPU."""
        if launch.launcher in WITHOUT_MPI:
            return None
        try:
            collectives = MpiCollectives()
        except ConfigError as error:
            logger.debug("%s: TensorFlow connects the ranks", error)
            return None
        if launch.size is not None and collectives.size != launch.size:
            has = collectives.size, launch.size, launch.launcher
            logger.warning("mpi4py sees %d of %d ranks: its MPI is not that of %s; TensorFlow connects them", *has)
            return None
        import tensorflow as tf

        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        return None if any(collectives.gather(has_gpu)) else cls._connect(collectives)

    @classmethod
    def _connect(cls, collectives: Collectives) -> "World":
        ranks = (collectives.rank, collectives.size), (collectives.local_rank, collectives.local_size)
        return cls(*ranks[0], collectives.name, *ranks[1], collectives=collectives)._validate()

    def _validate(self) -> "World":
        launch = None if self.backend == "none" else find_launch()
        if launch is not None and (launch.size not in (None, self.size) or launch.rank >= self.size):
            by_srun = launch.launcher == "srun"
            raise ConfigError(
                f"{launch.launcher} started this process as rank {launch.rank} of {launch.size or 'several'}, but "
                f"{self.backend} sees {counted(self.size, 'rank')}: it was built "
                "with another MPI than the one that started it; rebuild it with this one's mpicxx on PATH "
                "(jobs/install_horovod.sh), or train without it, by --set training.collectives=tensorflow"
                + (", or select its launch method: srun --mpi=pmix for Open MPI, pmi2 for MPICH" if by_srun else "")
            )
        usable, cpus = own_cpus(), os.cpu_count() or 1
        if len(usable.cpus) == 1 and cpus >= 2 * self.local_size:
            message = "rank %d may use one CPU of %d: start with --bind-to none (Open MPI) or --cpu-bind depth (PALS)"
            logger.warning(message, self.rank, cpus)
        if self.backend != "horovod":
            return self.dividing_cpus()
        # Its collectives start TensorFlow, whose threads are set before: until then, each takes an equal part.
        return replace(self, threads=min(cpu_share([usable], 0), max(1, cpus // self.local_size)))

    def dividing_cpus(self) -> "World":
        """Returns this world with the threads by which its ranks divide the CPUs of their hosts; every rank must call.

        With Horovod it starts TensorFlow.
        """
        sets = self.gather(own_cpus())  # this rank's alone, if nothing connects it
        return replace(self, threads=cpu_share(sets, min(self.rank, len(sets) - 1)))

    @staticmethod
    def require(world: Any) -> "World":
        """Returns a world that a user gave; raises ConfigError if it is none, e.g. a tuple of rank and size."""
        if not (hasattr(world, "rank") and hasattr(world, "size")):
            raise ConfigError(
                f"world: received {world!r}; accepted: a tfpipe.World, e.g. tfpipe.World(0, 2) for rank 0 of 2, or "
                "what tfpipe.World.detect() returns"
            )
        return world

    def gather(self, value: T) -> list[T]:
        """Returns every rank's `value`, by rank, on every rank; without a backend, only this rank's."""
        return [value] if self.collectives is None else self.collectives.gather(value)

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Checks that all ranks have equal `facts`, values for JSON by key, and one version; every rank must call.

        Without a backend there is nothing to compare. Raises ConfigError, which names each key that differs, its values
        and their ranks.
        """
        if self.is_connected:
            check_equal(facts, self.gather)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of a float64 array over ranks, on every rank; RuntimeError if nothing connects them."""
        if self.size == 1:
            return values
        return self.tensors.sum(np.asarray(values, np.float64))

    @property
    def tensors(self) -> TensorCollectives:
        """Returns the collectives of tensors. Raises RuntimeError if nothing connects the ranks."""
        if self.collectives is None:
            raise RuntimeError(f"World(rank={self.rank}, size={self.size}) was made by hand: it reaches no other rank")
        return self.collectives  # type: ignore[return-value]

    def mine(self, items: S) -> S:
        """Returns this rank's share of `items`, every `size`-th; all of them without a backend."""
        return items if self.backend == "none" else items[self.rank :: self.size]  # type: ignore[return-value]

    def on_all(self, work: Callable[[], T]) -> list[T]:
        """Runs `work()` on every rank; returns all results, by rank, on every rank. Every rank must call.

        If ranks fail, the error of the first of them, with its rank, is raised on every rank, after all have ended: a
        TfpipeError's message begins with the rank, an OSError becomes such a TfpipeError, and any other error is raised
        from one that holds the rank's traceback. An interrupt, e.g. KeyboardInterrupt, ends its rank at once, and the
        program then ends the others. Without a backend only this rank's result is returned.
        """
        if not self.is_connected:
            return [work()]
        outcomes = self.gather(_attempt(work))
        for rank, outcome in enumerate(outcomes):
            if outcome.error is not None:
                raise _with_rank(outcome.error, rank) from RuntimeError(f"rank {rank}: {outcome.traceback}")
        return [outcome.result for outcome in outcomes]

    def share(self, items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> list[R]:
        """Runs `work` on every rank's share of `items`; returns the results in the items' order, on every rank.

        `work` returns a result per item that it receives, in order. Rank r gets the items r, r + size, r + 2 * size and
        so on; without a backend, this rank gets all. Errors are raised as by `on_all`. Every rank must call, with the
        same items; ConfigError if they have other numbers of items.
        """
        lengths, shares = zip(*self.on_all(lambda: (len(items), work(self.mine(items)))), strict=True)
        if len(set(lengths)) > 1:
            self.agree({"the number of files or images to share out": len(items)})
        return [shares[number % len(shares)][number // len(shares)] for number in range(len(items))]

    def from_rank0(self, work: Callable[[], T]) -> T:
        """Runs `work()` on rank 0 and returns its result on every rank; an error there is raised on every rank.

        Without a backend, every rank runs `work()` itself.
        """
        if not self.is_connected:
            return work()
        attempt = _attempt(work) if self.rank == 0 else None
        # A user's own World may have nothing but a gather.
        outcome: Any = self.gather(attempt)[0] if self.collectives is None else self.collectives.broadcast(attempt)
        if outcome.error is not None:
            raise outcome.error from RuntimeError(f"rank 0: {outcome.traceback}")
        return outcome.result

    @property
    def is_connected(self) -> bool:
        """Whether there are other ranks, and a backend that reaches them."""
        return self.backend != "none" and self.size > 1


class _Outcome(NamedTuple):
    """A result, or an error and its traceback, as one rank sends it to the others."""

    result: Any
    error: Exception | None = None
    traceback: str = ""


def _attempt(work: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(work())
    except Exception as problem:  # the other ranks wait in a collective, and must stop too
        error, text = problem, traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # sending it would fail on this rank alone
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Outcome(None, error, text)


def _with_rank(error: Exception, rank: int) -> Exception:
    """Returns an error that names the rank on which it was raised, if its kind lets its message change."""
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return TfpipeError(f"rank {rank}: {error}")
    if isinstance(error, TfpipeError) and not str(error).startswith("rank "):
        error.args = (f"rank {rank}: {error}",)
    return error
