"""The world: ranks found from what launchers really set, and what works without reaching other ranks."""

import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.commands import ROOT
from tfpipe.cli.arguments import launched_world
from tfpipe.collectives.launch import BY_HAND, BY_JAX, BY_TORCH, LAUNCHERS, Launch, find_launch
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


def variables(text: str) -> dict[str, str]:
    """Returns variables of an environment, NAME=VALUE each."""
    return dict(word.split("=", 1) for word in text.split())


# What a batch script is given, and so everything started in it.
SBATCH = variables(
    "SLURM_JOB_ID=4711 SLURM_JOBID=4711 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_NTASKS=8 SLURM_NPROCS=8 "
    "SLURM_NTASKS_PER_NODE=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_TASK_PID=31337"
)
SRUN = {
    **SBATCH,
    **variables("SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=8"),
    **variables("SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1"),
}
# As recorded from rank 1 of 2 in Slurm 22.05, by --mpi.
RECORDED_SRUN = variables(
    "SLURM_GTIDS=0,1 SLURM_JOBID=1 SLURM_JOB_ID=1 SLURM_LOCALID=1 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_NPROCS=2 "
    "SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEPID=1 SLURM_STEP_ID=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2 "
    "SLURM_STEP_TASKS_PER_NODE=2 SLURM_TASK_PID=16615"
)
SRUN_PMIX = {**RECORDED_SRUN, "SLURM_MPI_TYPE": "pmix", "PMIX_NAMESPACE": "slurm.pmix.1.1", "PMIX_RANK": "1"}
SRUN_PMI2 = {**RECORDED_SRUN, "PMI_FD": "13", "PMI_JOBID": "1.2", "PMI_RANK": "1", "PMI_SIZE": "2"}
OPEN_MPI = variables(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=4 PMIX_RANK=3 PMIX_NAMESPACE=prterun-node-1@1"
)
# As recorded under prterun of PRRTE 3; Open MPI 5's mpirun is prterun too, and adds its own.
PRTERUN = variables("PMIX_NAMESPACE=prterun-vm-10691@1 PMIX_RANK=1 PMIX_VERSION=5.0.11rc1 PRTE_LAUNCHED=1")
PALS = variables(
    "PALS_RANKID=7 PALS_NODEID=1 PALS_LOCAL_RANKID=3 PALS_APID=4a0b PMI_RANK=7 PMI_SIZE=8 PMI_LOCAL_RANK=3 "
    "PMI_LOCAL_SIZE=4 PBS_JOBID=1.polaris"
)
# As recorded from rank 2 of 3: MPICH 4.0.2, Open MPI 4.1.4.
HYDRA = variables(
    "GFORTRAN_UNBUFFERED_PRECONNECTED=y HYDI_CONTROL_FD=7 MPIR_CVAR_CH3_INTERFACE_HOSTNAME=node-1 MPI_LOCALNRANKS=3 "
    "MPI_LOCALRANKID=2 PMI_FD=14 PMI_RANK=2 PMI_SIZE=3"
)
OPEN_MPI_4 = variables(
    "OMPI_APP_CTX_NUM_PROCS=3 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=3 OMPI_COMM_WORLD_NODE_RANK=2 "
    "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_FIRST_RANKS=0 OMPI_NUM_APP_CTX=1 OMPI_UNIVERSE_SIZE=2 "
    "PMIX_ID=718209025.2 PMIX_NAMESPACE=718209025 PMIX_RANK=2"
)
APRUN = {"ALPS_APP_PE": "6", "ALPS_APP_DEPTH": "1", "ALPS_APP_ID": "99"}
HOROVODRUN = variables(
    "HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=1 HOROVOD_CONTROLLER=gloo"
)
# As recorded from rank 1 of 2 in torch 2.x, without its settings of NCCL and OpenMP.
TORCHRUN = variables(
    "GROUP_RANK=0 GROUP_WORLD_SIZE=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 RANK=1 "
    "ROLE_NAME=default ROLE_RANK=1 ROLE_WORLD_SIZE=2 TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RESTART_COUNT=0 "
    "TORCHELASTIC_RUN_ID=none WORLD_SIZE=2"
)
# Kubeflow, accelerate, deepspeed and torch.distributed.launch.
PYTORCH = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}
JAX = {"JAX_COORDINATOR_ADDRESS": "node-0:1234", "JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}
CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})}
ALONE = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["b:1"]}, "task": {"type": "worker", "index": 0}})}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_ID": "f2", "FLUX_TASK_LOCAL_ID": "1"}
JSRUN = {"JSM_NAMESPACE_RANK": "4", "JSM_NAMESPACE_SIZE": "6", "JSM_NAMESPACE_LOCAL_RANK": "0"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}
PBS = {"PBS_JOBID": "1.polaris", "PBS_NODEFILE": "/var/spool/nodes", "NCPUS": "64", "OMP_NUM_THREADS": "4"}
SETTINGS = {"HOROVOD_FUSION_THRESHOLD": "1", "OMPI_MCA_btl": "self", "SLURM_CONF": "/etc/slurm.conf"}


LAUNCHES = [
    pytest.param({}, None, id="nothing"),
    pytest.param(SETTINGS, None, id="settings-only"),
    pytest.param(PBS, None, id="pbs-script"),
    pytest.param(SBATCH, None, id="sbatch-script"),
    pytest.param(SRUN, Launch("srun", 5, 8), id="srun"),
    pytest.param(SRUN_PMIX, Launch("srun", 1, 2), id="srun-pmix"),
    pytest.param(SRUN_PMI2, Launch("mpiexec (PMI)", 1, 2), id="srun-pmi2"),
    pytest.param(OPEN_MPI, Launch("mpirun (Open MPI)", 3, 4), id="mpirun"),
    pytest.param(SBATCH | OPEN_MPI, Launch("mpirun (Open MPI)", 3, 4), id="mpirun-in-sbatch"),
    # Open MPI starts its daemons on the other nodes with srun, whose variables the ranks inherit.
    pytest.param(
        SRUN | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "1"} | OPEN_MPI,
        Launch("mpirun (Open MPI)", 3, 4),
        id="mpirun-daemon-by-srun",
    ),
    pytest.param(PRTERUN, Launch("prterun", 1, None), id="prterun"),
    pytest.param(PRTERUN | OPEN_MPI, Launch("mpirun (Open MPI)", 3, 4), id="mpirun-is-prterun"),
    pytest.param(PBS | PALS, Launch("mpiexec (PALS)", 7, 8), id="pals"),
    pytest.param(HYDRA, Launch("mpiexec (PMI)", 2, 3), id="hydra"),
    pytest.param(SBATCH | HYDRA, Launch("mpiexec (PMI)", 2, 3), id="hydra-in-sbatch"),
    pytest.param(OPEN_MPI_4, Launch("mpirun (Open MPI)", 2, 3), id="mpirun-4"),
    pytest.param(APRUN, Launch("aprun", 6, None), id="aprun"),
    pytest.param(APRUN | {"PMI_SIZE": "12"}, Launch("aprun", 6, 12), id="aprun-pmi"),
    pytest.param(HOROVODRUN, Launch("horovodrun", 1, 2), id="horovodrun"),
    pytest.param(SBATCH | HOROVODRUN, Launch("horovodrun", 1, 2), id="horovodrun-in-sbatch"),
    pytest.param({"OMPI_COMM_WORLD_RANK": "0"}, Launch("mpirun (Open MPI)", 0, None), id="no-size"),
    pytest.param(FLUX, Launch("flux", 1, 2), id="flux"),
    pytest.param(JSRUN, Launch("jsrun", 4, 6), id="jsrun"),
    pytest.param(MVAPICH, Launch("mpirun (MVAPICH2)", 1, 2), id="mvapich"),
    pytest.param(TORCHRUN, Launch("torchrun", 1, 2, BY_TORCH), id="torchrun"),
    # One torchrun a node, started by srun, whose variables its processes inherit.
    pytest.param(
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"} | TORCHRUN,
        Launch("torchrun", 1, 2, BY_TORCH),
        id="torchrun-by-srun",
    ),
    pytest.param(PYTORCH, Launch("a launcher of PyTorch (RANK, WORLD_SIZE)", 3, 4, BY_TORCH), id="pytorch"),
    # A script of PyTorch's sets them for its own ranks, which mpirun has started.
    pytest.param(PYTORCH | OPEN_MPI, Launch("mpirun (Open MPI)", 3, 4), id="pytorch-by-mpirun"),
    pytest.param({"RANK": "3", "WORLD_SIZE": "4"}, None, id="rank-of-something-else"),
    *(pytest.param(PYTORCH | {name: ""}, None, id=f"{name}-empty") for name in PYTORCH if name != "MASTER_PORT"),
    pytest.param({"RANK": "first"}, None, id="rank-of-something-else-too"),
    pytest.param(JAX, Launch("a launcher of JAX (JAX_PROCESS_ID)", 1, 2, BY_JAX), id="jax"),
    pytest.param(TF_CONFIG, Launch("a launcher of TensorFlow (TF_CONFIG)", 2, 3, BY_HAND), id="tf-config"),
    pytest.param(ALONE, Launch("a launcher of TensorFlow (TF_CONFIG)", 0, 1, BY_HAND), id="tf-config-of-one"),
    pytest.param({"TF_CONFIG": "{}"}, None, id="tf-config-empty"),
]


@pytest.mark.parametrize(("environ", "expected"), LAUNCHES)
def test_the_launcher_is_found(environ, expected):
    assert find_launch(environ) == expected


def test_each_launcher_has_an_environment_as_it_sets_it():
    assert {name for name, *_ in LAUNCHERS} <= {case.values[1].launcher for case in LAUNCHES if case.values[1]}


@pytest.mark.parametrize("value", ["", " ", "one", "-1", "1.0"])
@pytest.mark.parametrize(
    "name", [*dict.fromkeys(name for _, *names, _ in LAUNCHERS for name in names if name), "JAX_PROCESS_ID"]
)
def test_a_rank_or_size_that_is_no_number_is_refused_with_its_name(name: str, value: str) -> None:
    """An empty variable would be one rank alone, of several."""
    (environ,) = [
        {rank: "0", **({size: "2"} if size else {}), "SLURM_STEP_ID": "0", "PRTE_LAUNCHED": "1"}
        for _, rank, size, _ in (*LAUNCHERS, ("", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", ()))
        if name in (rank, size)
    ][:1]
    with pytest.raises(ConfigError, match=rf'^{name} is "{value}", and a launcher sets it to a whole number: unset it'):
        find_launch(environ | {name: value})


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0), (5, 3)])
def test_a_rank_outside_the_world_is_refused(rank, size):
    with pytest.raises(ValueError, match=f"rank {rank} of size {size}"):
        World(rank, size)


def test_a_world_is_one_rank_unless_told_otherwise_and_cannot_change():
    world = World()
    assert (world.rank, world.size, world.backend, world.local_rank, world.local_size) == (0, 1, "none", 0, 1)
    with pytest.raises(AttributeError):
        world.rank = 1


@pytest.mark.parametrize("world", [World(), World(2, 3)])
def test_without_a_backend_every_rank_works_it_out_by_itself(world):
    calls = []
    assert world.from_rank0(lambda: calls.append(1) or "done") == "done"
    assert calls == [1]
    assert world.on_all(lambda: "done") == ["done"] and world.mine([1, 2, 3]) == [1, 2, 3]
    assert world.share([1, 2, 3], lambda items: [item + world.rank for item in items]) == [
        item + world.rank for item in (1, 2, 3)
    ]
    for run in (world.from_rank0, world.on_all, lambda work: world.share([1], lambda _: work())):
        with pytest.raises(ZeroDivisionError) as caught:
            run(lambda: 1 // 0)
        assert caught.value.__cause__ is None


def test_gather_without_a_backend_has_this_ranks_value_only():
    assert World(2, 3).gather({"x": 1}) == [{"x": 1}]


def test_the_sum_over_one_rank_is_its_own():
    np.testing.assert_array_equal(World().sum(np.array([1.5, -2.0])), [1.5, -2.0])


def test_a_sum_over_ranks_that_cannot_be_reached_is_an_error_not_a_wrong_number():
    with pytest.raises(RuntimeError, match=r"World\(rank=1, size=2\) was made by hand"):
        World(1, 2).sum(np.ones(2))


@pytest.fixture
def launched_as(monkeypatch):
    """Puts this process where a launcher would have started it, without Horovod unless it is wanted."""

    def launch(environ: dict[str, str], horovod: bool = False) -> None:
        for name in [name for _, *names, _ in LAUNCHERS for name in names] + ["SLURM_STEP_ID"]:
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")  # set by World.horovod: undone afterwards
        if not horovod:
            monkeypatch.setitem(sys.modules, "horovod", None)
            monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)

    return launch


@pytest.mark.parametrize(
    "environ", [OPEN_MPI, SRUN, PALS, HYDRA, APRUN, HOROVODRUN], ids=lambda environ: next(iter(environ))
)
def test_several_launched_ranks_without_horovod_are_never_trainings_of_one(launched_as, environ):
    launched_as(environ)
    with pytest.raises(ConfigError, match="Horovod is needed") as caught:
        World.detect()
    assert "jobs/install_horovod.sh" in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "instead"),
    [
        (TORCHRUN, "tfpipe.torch.Loader"),
        (PYTORCH, "tfpipe.torch.Loader"),
        (JAX, "tfpipe.jax.Loader"),
        (TF_CONFIG, "World"),
    ],
)
def test_ranks_that_mpi_does_not_connect_are_refused_with_the_way_out(launched_as, environ, instead):
    """They would be trainings of one each, or one of them and an error about Horovod's MPI."""
    launched_as(environ, horovod=True)
    for connect in (World.detect, lambda: World.detect(horovod=True), World.horovod, World.mpi, launched_world):
        with pytest.raises(ConfigError, match="which MPI and Horovod do not connect") as caught:
            connect()
        launch = find_launch(environ)
        assert f"started this process as rank {launch.rank} of {launch.size}" in str(caught.value)
        assert f"mpirun -n {launch.size}" in str(caught.value) and instead in str(caught.value)


def test_one_process_of_torchrun_works_alone(launched_as):
    launched_as(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"})
    assert (World.detect().size, launched_world().size) == (1, 1)


def test_horovod_asked_for_but_missing_is_an_error_without_a_launcher_too(launched_as):
    launched_as({})
    with pytest.raises(ConfigError, match="Horovod is needed"):
        World.detect(horovod=True)


@pytest.mark.parametrize("environ", [{}, SBATCH, OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}])
def test_one_rank_needs_no_horovod(launched_as, environ):
    launched_as(environ)
    world = World.detect()
    assert (world.rank, world.size, world.backend) == (0, 1, "none")
    assert world.threads == len(os.sched_getaffinity(0))


def test_horovod_switched_off_warns_that_the_rank_is_alone(launched_as, caplog):
    launched_as(OPEN_MPI)
    with caplog.at_level(logging.WARNING, logger="tfpipe"):
        world = World.detect(horovod=False)
    assert (world.rank, world.size) == (0, 1)
    assert "rank 3 of mpirun (Open MPI): alone" in caplog.text


def test_horovod_switched_off_says_nothing_where_nothing_was_launched(launched_as, caplog):
    launched_as({})
    World.detect(horovod=False)
    assert "alone" not in caplog.text


@pytest.mark.parametrize(("environ", "named"), [(SRUN_PMIX, True), (OPEN_MPI, False)])
def test_ranks_that_horovod_does_not_see_are_an_error_that_names_the_way_out(launched_as, monkeypatch, environ, named):
    """Every rank is the first of one, when srun starts a program whose MPI it does not know."""
    launched_as(environ, horovod=True)
    numbers = {"init": None, "rank": 0, "size": 1, "local_rank": 0, "local_size": 1}
    alone = SimpleNamespace(**{name: lambda number=number: number for name, number in numbers.items()})
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(tensorflow=alone))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", alone)
    with pytest.raises(ConfigError, match="horovod sees 1 rank") as caught:
        World.detect()
    assert ("srun --mpi=pmix" in str(caught.value)) == named


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LD_LIBRARY_PATH")}
    env = {**kept, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_a_launched_process_that_cannot_import_horovod_stops():
    code = "import sys; sys.modules['horovod'] = None; from tfpipe import World; print(World.detect())"
    done = python(code, **SRUN)
    assert done.returncode != 0 and done.stdout == ""
    assert "ConfigError: Horovod is needed to train on several ranks" in done.stderr


def test_threads_follow_the_cpus_this_process_may_use():
    cpu = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{cpu}]); from tfpipe import World; print(World.detect().threads)"
    assert python(code).stdout == "1\n"


def test_the_world_is_found_without_importing_tensorflow_or_horovod():
    code = "import sys; from tfpipe import World; World.detect(); print({'tensorflow', 'horovod'} & set(sys.modules))"
    assert python(code).stdout == "set()\n"
