"""World: this process's rank, the number of ranks, and the collectives between them."""

import json
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from tfpipe.errors import ConfigError, TfpipeError

S = TypeVar("S", bound=Sequence[Any] | np.ndarray)
T = TypeVar("T")
R = TypeVar("R")
Backend = Literal["none", "mpi", "horovod"]
logger = logging.getLogger(__name__)


class Launch(NamedTuple):
    """Rank and size that a launcher's environment gives this process."""

    launcher: str
    rank: int
    size: int | None  # None: the launcher does not say
    instead: str = ""  # for a launcher whose ranks MPI does not connect: what a loop of the user's own can do


# Launchers and their variables for rank and size; the first whose rank is set wins. A Slurm batch script has
# SLURM_PROCID too, so there a rank is recognised by SLURM_STEP_ID, which only srun sets.
LAUNCHERS = (
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec (PALS)", "PALS_RANKID", "PMI_SIZE"),
    ("mpiexec (PMI)", "PMI_RANK", "PMI_SIZE"),
    ("aprun", "ALPS_APP_PE", "PMI_SIZE"),
    ("mpirun (MVAPICH2)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Advice for a user's own loop under the launchers of frameworks, whose ranks MPI does not connect.
BY_TORCH = "call torch.distributed.init_process_group(), and take the batches from tfpipe.torch.Loader"
BY_JAX = "call jax.distributed.initialize(), and take the batches from tfpipe.jax.Loader"
BY_HAND = "give tfpipe.Loader a World(rank, size) and a gather"


def find_launch(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Returns the launch that started this process as one of its ranks, or None."""
    if "TORCHELASTIC_RUN_ID" in environ:  # torchrun's own, which srun may have started once on each node
        return _framework_launch(environ)
    for launcher, rank, size in LAUNCHERS:
        if launcher == "srun" and "SLURM_STEP_ID" not in environ:
            continue
        if rank in environ:
            return Launch(launcher, int(environ[rank]), int(environ[size]) if size in environ else None)
    return _framework_launch(environ)


def _framework_launch(environ: Mapping[str, str]) -> Launch | None:
    """Returns the launch by PyTorch's, JAX's or TensorFlow's launchers, or None: their variables are less distinct."""
    with suppress(KeyError, ValueError):
        if "MASTER_ADDR" in environ:
            name = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "a launcher of PyTorch (RANK, WORLD_SIZE)"
            return Launch(name, int(environ["RANK"]), int(environ["WORLD_SIZE"]), BY_TORCH)
    with suppress(KeyError, ValueError):
        rank, size = int(environ["JAX_PROCESS_ID"]), int(environ["JAX_NUM_PROCESSES"])
        return Launch("a launcher of JAX (JAX_PROCESS_ID)", rank, size, BY_JAX)
    # {"cluster": {"chief": [ADDRESS], "worker": [ADDRESS, ...], "ps": ...}, "task": {"type": "worker", "index": 0}}
    with suppress(KeyError, ValueError, TypeError):
        cluster_spec = json.loads(environ["TF_CONFIG"])
        trainers = {kind: len(cluster_spec["cluster"].get(kind, ())) for kind in ("chief", "master", "worker")}
        kind, index = cluster_spec["task"]["type"], int(cluster_spec["task"]["index"])
        before = list(trainers)[: list(trainers).index(kind)]
        rank = sum(trainers[other] for other in before) + index
        return Launch("a launcher of TensorFlow (TF_CONFIG)", rank, sum(trainers.values()), BY_HAND)
    return None


def _check_launcher() -> None:
    """Raises ConfigError if a launcher whose ranks MPI does not connect started several: each would be alone."""
    launch = find_launch()
    if launch is not None and launch.instead and launch.size != 1:
        raise ConfigError(
            f"{launch.launcher} started this process as rank {launch.rank} of {launch.size}, which MPI and Horovod do "
            f"not connect, so that each would work alone: start the ranks with mpirun -n {launch.size} --bind-to none "
            f"instead; a loop of your own can stay with this launcher: {launch.instead}"
        )


def cpu_share(allowed: int, cpus: int, local_size: int) -> int:
    """Returns the number of CPUs for one of the ranks on a host.

    A launcher that binds ranks has already divided the CPUs; one that does not lets every rank use all of them,
    which is `local_size` times too many.

    Args:
        allowed: CPUs this process may run on.
        cpus: CPUs of the host.
        local_size: ranks on the host.
    """
    return min(allowed, max(1, cpus // local_size))


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
    every rank computes on its own. `World.horovod()`, `World.mpi()` and `World.detect()` connect the ranks.
    """

    rank: int = 0
    size: int = 1
    backend: Backend = "none"
    local_rank: int = 0
    """Rank among those on this host, if known; selects the GPU."""
    local_size: int = 1
    """Number of ranks on this host, if known."""
    threads: int | None = None
    """CPUs this rank may use; None: all CPUs that this process may run on."""

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
        # A rank that waits in a collective keeps a core busy polling, which costs the decoders a quarter of their
        # throughput, unless told to yield. MPI_Init reads the variable, so it must be set before.
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
        try:
            import horovod.tensorflow as hvd
        except ImportError as error:
            raise ConfigError(
                f"Horovod is needed to train on several ranks, and cannot be imported ({error}); "
                "install it with jobs/install_horovod.sh"
            ) from error
        hvd.init()
        return cls(hvd.rank(), hvd.size(), "horovod", hvd.local_rank(), hvd.local_size())._checked()

    @classmethod
    def mpi(cls) -> "World":
        """Returns the world of MPI's COMM_WORLD, through mpi4py (extra `mpi`); for tools that need no TensorFlow.

        Raises:
            ConfigError: mpi4py or its MPI is not installed, sees other ranks than the launcher started, or cannot see
                them.
        """
        _check_launcher()
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ConfigError(f"mpi4py cannot be imported ({error}); install tfpipe[mpi] and an MPI") from error
        world = MPI.COMM_WORLD
        local = world.Split_type(MPI.COMM_TYPE_SHARED)
        return cls(world.rank, world.size, "mpi", local.rank, local.size)._checked()

    @classmethod
    def detect(cls, horovod: bool | None = None) -> "World":
        """Returns the world that this process was launched into.

        Args:
            horovod: True or False to override the launcher's environment.

        Raises:
            ConfigError: several ranks were launched but Horovod cannot connect them; N separate trainings never run.
        """
        launch = find_launch()
        if horovod is None:
            horovod = launch is not None and launch.size != 1
        if horovod:
            return cls.horovod()
        if launch is not None and launch.size != 1:
            logger.warning("rank %d of %s: alone, since Horovod is switched off", launch.rank, launch.launcher)
        return cls()._checked()

    def _checked(self) -> "World":
        launch = find_launch()
        if (
            self.backend != "none"
            and launch is not None
            and (launch.size not in (None, self.size) or launch.rank >= self.size)
        ):
            by_srun = launch.launcher == "srun"
            raise ConfigError(
                f"{launch.launcher} started this process as rank {launch.rank} of {launch.size or 'several'}, but "
                f"{self.backend} sees {self.size} rank(s): it was built "
                "with another MPI than the one that started it; rebuild it with this one's mpicxx on PATH "
                "(jobs/install_horovod.sh)"
                + (", or select its launch method: srun --mpi=pmix for Open MPI, pmi2 for MPICH" if by_srun else "")
            )
        allowed, cpus = len(os.sched_getaffinity(0)), os.cpu_count() or 1
        if allowed == 1 and cpus >= 2 * self.local_size:
            logger.warning(
                "rank %d may use one CPU of %d: start with --bind-to none (Open MPI) or --cpu-bind depth (PALS)",
                self.rank,
                cpus,
            )
        return replace(self, threads=cpu_share(allowed, cpus, self.local_size))

    def gather(self, value: T) -> list[T]:
        """Returns every rank's `value`, by rank, on every rank; without a backend, only this rank's."""
        if self.backend == "horovod":
            import horovod.tensorflow as hvd

            return hvd.allgather_object(value, name="tfpipe.gather")
        if self.backend == "mpi":
            from mpi4py import MPI

            return MPI.COMM_WORLD.allgather(value)
        return [value]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of a float64 array over ranks, on every rank.

        Raises:
            RuntimeError: there are other ranks, but no backend that connects them.
        """
        if self.size == 1:
            return values
        if self.backend == "none":
            raise RuntimeError(f"World(rank={self.rank}, size={self.size}) was made by hand: it reaches no other rank")
        values = np.asarray(values, np.float64)
        if self.backend == "horovod":
            import horovod.tensorflow as hvd
            import tensorflow as tf

            return hvd.allreduce(tf.constant(values), op=hvd.Sum, name="tfpipe.sum").numpy()
        from mpi4py import MPI

        return MPI.COMM_WORLD.allreduce(values)

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
        if self._alone:
            return [work()]
        outcomes = self.gather(_attempt(work))
        for rank, outcome in enumerate(outcomes):
            if outcome.error is not None:
                raise _named(outcome.error, rank) from RuntimeError(f"rank {rank}: {outcome.traceback}")
        return [outcome.result for outcome in outcomes]

    def share(self, items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> list[R]:
        """Runs `work` on every rank's share of `items`; returns the results in the items' order, on every rank.

        `work` returns a result per item that it receives, in order. Rank r gets the items r, r + size, r + 2 * size and
        so on; without a backend, this rank gets all. Errors are raised as by `on_all`. Every rank must call, with the
        same items.
        """
        shares = self.on_all(lambda: work(self.mine(items)))
        return [shares[number % len(shares)][number // len(shares)] for number in range(len(items))]

    def from_rank0(self, work: Callable[[], T]) -> T:
        """Runs `work()` on rank 0 and returns its result on every rank; an error there is raised on every rank.

        Without a backend, every rank runs `work()` itself.
        """
        if self._alone:
            return work()
        outcome: _Outcome = self._broadcast(_attempt(work) if self.rank == 0 else None)
        if outcome.error is not None:
            raise outcome.error from RuntimeError(f"rank 0: {outcome.traceback}")
        return outcome.result

    @property
    def _alone(self) -> bool:
        return self.backend == "none" or self.size == 1

    def _broadcast(self, value: Any) -> Any:
        if self.backend == "horovod":
            import horovod.tensorflow as hvd

            return hvd.broadcast_object(value, root_rank=0, name="tfpipe.broadcast")
        from mpi4py import MPI

        return MPI.COMM_WORLD.bcast(value, root=0)


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


def _named(error: Exception, rank: int) -> Exception:
    """Returns an error that names the rank on which it was raised, if its kind lets its message change."""
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return TfpipeError(f"rank {rank}: {error}")
    if isinstance(error, TfpipeError) and not str(error).startswith("rank "):
        error.args = (f"rank {rank}: {error}",)
    return error
