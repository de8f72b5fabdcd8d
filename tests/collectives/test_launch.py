"""What identifies a launch, and what is none."""

import json

import pytest

from tests.test_distributed import (
    APRUN,
    FLUX,
    HYDRA,
    JAX,
    OPEN_MPI,
    PALS,
    PYTORCH,
    RECORDED_SRUN,
    SBATCH,
    SRUN_PMI2,
    TF_CONFIG,
    TORCHRUN,
)
from tfpipe.collectives.launch import LAUNCHERS, Launch, find_launch, launch_identity, stray_size, whole_number
from tfpipe.data.runtime.clock import DELAY_MS, simulated_delay_s
from tfpipe.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "changed"),
    [
        pytest.param(OPEN_MPI, "PMIX_NAMESPACE", id="mpirun"),
        pytest.param(PALS, "PALS_APID", id="pals"),
        pytest.param(APRUN | {"PMI_SIZE": "12"}, "ALPS_APP_ID", id="aprun"),
        pytest.param(FLUX, "FLUX_JOB_ID", id="flux"),
        pytest.param(RECORDED_SRUN, "SLURM_STEP_ID", id="srun"),
        pytest.param(RECORDED_SRUN | {"SLURM_RESTART_COUNT": "1"}, "SLURM_RESTART_COUNT", id="srun-requeued"),
        pytest.param(SRUN_PMI2, "PMI_JOBID", id="srun-pmi2"),
        pytest.param(TORCHRUN, "TORCHELASTIC_RESTART_COUNT", id="torchrun-restarted"),
        pytest.param(PYTORCH, "MASTER_PORT", id="pytorch"),
        pytest.param(JAX, "JAX_COORDINATOR_ADDRESS", id="jax"),
        pytest.param(TF_CONFIG, "", id="tf-config"),
        pytest.param(HYDRA | {"TFPIPE_LAUNCH": "7"}, "TFPIPE_LAUNCH", id="told"),
        pytest.param(HYDRA | {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "2"}, "SLURM_STEP_ID", id="hydra-by-srun"),
    ],
)
def test_the_ranks_of_a_launch_share_what_other_launches_do_not_have(environ: dict[str, str], changed: str) -> None:
    launch = find_launch(environ)
    assert launch is not None
    identity = launch_identity(launch, environ)
    assert identity
    ranks = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK")
    other_rank = {name: "0" for name in ranks if name in environ}
    assert launch_identity(launch, environ | other_rank) == identity
    if changed:
        assert launch_identity(launch, environ | {changed: "another"}) != identity


@pytest.mark.parametrize(("name", "rank", "size", "identity"), LAUNCHERS)
def test_a_launcher_is_known_by_its_own_variables(name: str, rank: str, size: str, identity: tuple[str, ...]) -> None:
    environ = {rank: "1", **({size: "2"} if size else {"PRTE_LAUNCHED": "1"}), **dict.fromkeys(identity, "7")}
    launch = find_launch(environ)
    assert launch == Launch(name, 1, 2 if size else None)
    of_launch = launch_identity(launch, environ)
    assert launch_identity(launch, environ | {rank: "0"}) == of_launch
    others = [launch_identity(launch, environ | {variable: "8"}) for variable in identity]
    assert len({of_launch, *others}) == 1 + len(identity)


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "::1", "node17"])
def test_an_address_of_the_loopback_is_another_launch_on_each_host(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Two launches on hosts that share a file system have the same MASTER_ADDR and MASTER_PORT."""
    cluster = {"cluster": {"worker": [f"{address}:1", f"{address}:2"]}, "task": {"type": "worker", "index": 0}}
    for environ in (
        PYTORCH | {"MASTER_ADDR": address},
        TORCHRUN | {"MASTER_ADDR": address},
        JAX | {"JAX_COORDINATOR_ADDRESS": f"{address}:1"},
        {"TF_CONFIG": json.dumps(cluster)},
    ):
        launch = find_launch(environ)
        assert launch is not None
        identities = set()
        for host in ("node1", "node2"):
            monkeypatch.setattr("socket.gethostname", lambda host=host: host)
            identities.add(launch_identity(launch, environ))
        assert len(identities) == (1 if address == "node17" else 2), environ


def test_hydra_does_not_identify_a_launch() -> None:
    launch = find_launch(HYDRA)
    assert launch is not None and launch_identity(launch, HYDRA) is None


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292"])
def test_the_shell_of_an_interactive_allocation_is_no_rank(step: str) -> None:
    """Slurm starts it as a step, with a number of its own."""
    assert find_launch(SBATCH | {"SLURM_STEP_ID": step, "SLURM_STEP_NUM_TASKS": "8"}) is None


@pytest.mark.parametrize(
    ("environ", "stray"),
    [
        ({}, ""),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ""),
        ({"RANK": "3", "WORLD_SIZE": "4"}, "WORLD_SIZE=4"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE=2"),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "node-0"}, "WORLD_SIZE=4"),
        ({"WORLD_SIZE": ""}, ""),
        (PYTORCH, ""),
        (OPEN_MPI | {"WORLD_SIZE": "4"}, ""),
    ],
)
def test_a_size_without_a_way_to_the_others_is_found(environ: dict[str, str], stray: str) -> None:
    assert stray_size(environ) == stray


@pytest.mark.parametrize("text", ["many", " ", "-2", "2.0", "0x2", "1e3"])
def test_a_text_in_the_place_of_a_number_is_refused_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    refusals = {"RANK": find_launch, "WORLD_SIZE": stray_size}
    for name, read in refusals.items():
        with monkeypatch.context() as patch, pytest.raises(ConfigError, match=f'^{name} is "{text}", and '):
            patch.setenv(name, text)
            read({**PYTORCH, name: text})


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "", DELAY_MS: "", "TFPIPE_LAUNCH": ""}])
def test_a_variable_that_is_empty_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert (whole_number(environ, "WORLD_SIZE"), stray_size(environ), simulated_delay_s()) == (None, "", 0)
    assert launch_identity(Launch("mpirun (Open MPI)", 0, 2), environ) is None
