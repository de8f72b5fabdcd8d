"""Launchers: the rank, the size and the identity of the launch that their environments give a process."""

import json
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from tfpipe.errors import ConfigError


class Launch(NamedTuple):
    """Rank and size that a launcher's environment gives this process."""

    launcher: str
    rank: int
    size: int | None  # None: the launcher does not say
    instead: str = ""  # for a launcher whose ranks MPI does not connect: what a loop of the user's own can do


SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
# Launchers and their variables for the rank, for the size and, shared by all ranks of a launch, those that differ
# between launches. The first whose rank is set wins. A Slurm batch script has SLURM_PROCID too, so there a rank is
# recognised by SLURM_STEP_ID, which only srun sets. Other launchers set PMIX_RANK too, so that of prterun, which tells
# no size, counts only next to PRTE_LAUNCHED.
LAUNCHERS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")),
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("prterun", "PMIX_RANK", "", ("PMIX_NAMESPACE",)),
    ("mpiexec (PALS)", "PALS_RANKID", "PMI_SIZE", ("PALS_APID",)),
    ("mpiexec (PMI)", "PMI_RANK", "PMI_SIZE", ("PMI_JOBID", *SLURM_STEP)),
    ("aprun", "ALPS_APP_PE", "PMI_SIZE", ("ALPS_APP_ID",)),
    ("mpirun (MVAPICH2)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ()),
    ("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", ("PMIX_NAMESPACE",)),
    ("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", ("FLUX_JOB_ID",)),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", SLURM_STEP),
)
OPEN_MPI = ("mpirun (Open MPI)", "prterun")
WITHOUT_MPI = ("horovodrun", "flux", "srun")  # an MPI without the launcher's PMI would abort the process
# Steps that Slurm makes of a batch script, of an interactive allocation's shell and of what runs beside the steps.
SLURM_OWN_STEPS = ("4294967290", "4294967291", "4294967292")
# Advice for a user's own loop under the launchers of frameworks, whose ranks MPI does not connect.
BY_TORCH = "call torch.distributed.init_process_group(), and take the batches from tfpipe.torch.Loader"
BY_JAX = "call jax.distributed.initialize(), and take the batches from tfpipe.jax.Loader"
BY_HAND = "give tfpipe.Loader a World(rank, size) and a gather"
# The last variables of LAUNCHERS, and those of frameworks' launchers, by the beginning of the launcher's name.
IDENTITIES: dict[str, tuple[str, ...]] = {
    **{launcher: names for launcher, _, _, names in LAUNCHERS},
    "torchrun": ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    "a launcher of PyTorch": ("MASTER_ADDR", "MASTER_PORT"),
    "a launcher of JAX": ("JAX_COORDINATOR_ADDRESS",),
}
# An address of the host itself, as the value of a variable or within JSON.
LOOPBACK = re.compile(r'[="](localhost\b|127\.|\[?::1\b)')
IDENTITY = "TFPIPE_LAUNCH"
"""Variable by which a user identifies a launch whose launcher does not."""


def find_launch(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Returns the launch that started this process as one of its ranks, or None.

    Raises ConfigError if a launcher's rank or size is no number, e.g. empty: such processes would each work alone.
    """
    if "TORCHELASTIC_RUN_ID" in environ:  # torchrun's own, which srun may have started once on each node
        return _framework_launch(environ)
    for launcher, rank, size, _ in LAUNCHERS:
        if launcher == "srun" and environ.get("SLURM_STEP_ID", SLURM_OWN_STEPS[0]) in SLURM_OWN_STEPS:
            continue
        if launcher == "prterun" and "PRTE_LAUNCHED" not in environ:
            continue
        if rank in environ:
            return Launch(launcher, _number(environ, rank), _number(environ, size) if size in environ else None)
    return _framework_launch(environ)


def whole_number(environ: Mapping[str, str], name: str) -> int | None:
    """Returns the number in a variable, None if that is not set or empty; raises ConfigError for another text."""
    return _number(environ, name) if environ.get(name) else None


def _number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise ConfigError(
            f'{name} is "{environ[name]}", and a launcher sets it to a whole number: unset it to work in one process, '
            "or start the ranks with a launcher"
        )
    return int(environ[name])


def _framework_launch(environ: Mapping[str, str]) -> Launch | None:
    """Returns the launch by PyTorch's, JAX's or TensorFlow's launchers, or None; their variables are less distinct."""
    if environ.get("MASTER_ADDR"):
        number, count = whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE")
        if number is not None and count is not None:
            name = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "a launcher of PyTorch (RANK, WORLD_SIZE)"
            return Launch(name, number, count, BY_TORCH)
    with suppress(KeyError):
        rank, size = _number(environ, "JAX_PROCESS_ID"), _number(environ, "JAX_NUM_PROCESSES")
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


def stray_size(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the setting "WORLD_SIZE=N" of more than one process if nothing tells how to find the others, else ""."""
    size = whole_number(environ, "WORLD_SIZE") or 1
    return f"WORLD_SIZE={size}" if size > 1 and find_launch(environ) is None else ""


def launch_identity(launch: Launch, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns a text that the ranks of a launch share, and that no other launch has; None if nothing tells it.

    An address of the loopback is that of another launch on each host, so the host's name comes with it.
    """
    if environ.get(IDENTITY):
        return environ[IDENTITY]
    text = _identity(launch, environ)
    return f"{text} on {socket.gethostname()}" if text and LOOPBACK.search(text) else text


def is_loopback(address: str) -> bool:
    """Returns whether an address is that of its own host only."""
    return LOOPBACK.search(f"={address}") is not None


def _identity(launch: Launch, environ: Mapping[str, str]) -> str | None:
    if launch.launcher.startswith("a launcher of TensorFlow"):
        return json.dumps(json.loads(environ["TF_CONFIG"])["cluster"], sort_keys=True)
    names = next((names for name, names in IDENTITIES.items() if launch.launcher.startswith(name)), ())
    if not names or names[0] not in environ:
        names = SLURM_STEP if launch.launcher == "mpiexec (PMI)" and "SLURM_STEP_ID" in environ else ()
    return " ".join(f"{name}={environ[name]}" for name in names if name in environ) or None
