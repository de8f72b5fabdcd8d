"""The job scripts, run as their schedulers run them, with stand-ins for scheduler and launcher."""

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.commands import MPI_ENVIRON, ROOT, WARM, Finished, ensure_server, finish, mpirun, start
from tests.support.runs import LATE, read_metrics, wait_for
from tests.support.sample import SampleData

STAND_IN = Path(__file__).with_name("stand_in.py")

# In the place of .venv/bin/python: `train.py` trains a step and ends with the next of CODES.
PYTHON = """
echo "[\\"python\\"$(printf ', "%s"' "$@")]" >> "$CALLS"
case "$*" in
    *"tfpipe stage"*)
        echo "/local: 7 files copied (0.1 MB), 0 already there"
        echo "train from it with: --set 'data.train_filelist=/local disk/train.txt'" ;;
    *"tfpipe report"*) echo "the report" ;;
    train.py*)
        if [[ ${STUCK:-} ]]; then
            trap 'echo > "$RUN/checkpoints/step-000000009.npz"; exit 75' USR1 TERM
            mkdir -p "$RUN/checkpoints" && echo $$ > "$RUN/pid" && mv "$RUN/pid" "$RUN/started"
            while true; do /bin/sleep 0.05; done
        fi
        read -r code < "$CODES" && sed -i 1d "$CODES"
        mkdir -p "$RUN/checkpoints"
        [[ ${IDLE:-} ]] || touch "$RUN/checkpoints/step-$(printf %09d $(($(wc -l < "$CALLS") + 1))).npz"
        [[ "$code" != 0 || ${UNFINISHED:-} ]] || touch "$RUN/model.keras"
        [[ "$*" != *--profile* ]] || mkdir -p "$RUN/plugins/profile"
        [[ ! ${BEGUN:-} ]] || echo >> "$RUN/events.jsonl"
        exit "$code" ;;
esac
"""
SCHEDULED = {
    "slurm": {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "4"},
    "pbs": {"PBS_JOBID": "7.host", "PBS_O_QUEUE": "prod"},
    "flux": {"FLUX_ENCLOSING_ID": "f7", "CORES": "16"},
}
LAUNCHED = {
    "slurm": "srun --cpus-per-task=4 --cpu-bind=cores --kill-on-bad-exit=0 --wait=300",
    "pbs": "mpiexec -n 8 --ppn 4 --depth 8 --cpu-bind depth",
    "flux": "flux submit --nodes=2 --ntasks=8 --cores-per-task=16 --gpus-per-task=1 --setopt=cpu-affinity=per-task "
    "--setopt=gpu-affinity=per-task --setopt=exit-timeout=300s",
    "mpirun": "mpirun -n 2",
}
RESUBMITTED = {
    "slurm": "scontrol requeue 7",
    "pbs": "qsub -l select=2:ncpus=64:ngpus=4:system=polaris -l walltime=01:00:00 -q prod -A mine "
    "-v CONFIG,RUN,VENV,IMAGE,MODULES,STAGE,SET,RANKS_PER_NODE,DEPTH,CPU_BIND,SAVE_S jobs/pbs.sh",
    "flux": "flux --parent batch --nodes=2 --time-limit=7200s --queue=pbatch --bank=mine jobs/flux.sh",
}


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


class Cluster(NamedTuple):
    """A machine with stand-ins on its PATH."""

    root: Path
    environ: dict[str, str]

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    def start(self, script: str, *args: str, **environ: str) -> subprocess.Popen[str]:
        """Starts jobs/SCRIPT.sh as its scheduler does, in the repository's directory."""
        scheduled = SCHEDULED.get(script, {})
        command = ("bash", "-c", f'cd "{ROOT}" && exec "$@"', "job", f"jobs/{script}.sh", *args)
        return start(*command, **{**self.environ, **scheduled, **environ})

    def run(self, script: str, *args: str, **environ: str) -> Finished:
        return finish(self.start(script, *args, **environ))

    def calls(self, but: str = "python") -> list[str]:
        """The calls that were made, but for programs of that name and for those that ask a scheduler."""
        lines = (self.root / "calls").read_text().splitlines()
        asking = (["flux", "job"], ["flux", "getattr"], ["flux", "--parent", "job"])
        calls = [
            words
            for words in map(json.loads, lines)
            if words[0] not in (but, "qstat") and not any(words[: len(each)] == each for each in asking)
        ]
        return [" ".join(words) for words in calls]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "bin").mkdir()
    for name in ("mpiexec", "aprun", "srun", "scontrol", "qsub", "qstat", "flux"):
        write_program(tmp_path / "bin" / name, f'exec "{sys.executable}" "{STAND_IN}" {name} "$@"')
    (tmp_path / "nodes").write_text("node1\nnode1\nnode2\nnode2\n")
    (tmp_path / "calls").touch()
    environ = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "CALLS": f"{tmp_path}/calls",
        "PBS_NODEFILE": f"{tmp_path}/nodes",
        "RUN": f"{tmp_path}/run",
    }
    return Cluster(tmp_path, environ)


@pytest.fixture
def pretending(cluster: Cluster) -> Cluster:
    """Trains nothing: the python in VENV, and the mpirun, are stand-ins too."""
    venv = cluster.root / "venv/bin"
    venv.mkdir(parents=True)
    write_program(venv / "python", PYTHON)
    mpirun = '[ "$1" = -n ] && shift 2; [ "$1" = --host ] && echo "$2" >> "$HOSTS_TAKEN" && shift 2; exec "$@"'
    write_program(venv / "mpirun", mpirun)
    write_program(venv / "ssh", 'case "$*" in *" $LOST "*) exit 255 ;; *) [ "${@: -1}" = true ] ;; esac')
    settings = {
        "VENV": str(venv.parent),
        "CODES": f"{cluster.root}/codes",
        "HOSTS_TAKEN": f"{cluster.root}/hosts",
        "CONFIG": "c.json",
        "SET": "training.epochs=2",
    }
    return Cluster(cluster.root, {**cluster.environ, **settings})


def trained(cluster: Cluster) -> str:
    python = f"{cluster.environ['VENV']}/bin/python"
    train = f"train.py -c c.json -l {cluster.run_dir} --resume auto"
    return f"{python} {train} --set training.epochs=2"


def resubmitted(cluster: Cluster, script: str) -> str:
    return RESUBMITTED[script].format(run=cluster.run_dir, venv=cluster.environ["VENV"])


@pytest.mark.parametrize("script", SCHEDULED)
def test_a_job_trains_and_is_submitted_again_until_all_epochs_are_done(pretending: Cluster, script: str) -> None:
    (pretending.root / "codes").write_text("75\n0\n")
    first = pretending.run(script)
    assert first.code == 75, first.err
    launched = f"{LAUNCHED[script]} {trained(pretending)}"
    assert pretending.calls() == [launched, resubmitted(pretending, script)]
    second = pretending.run(script)
    assert second.code == 0, second.err
    assert pretending.calls()[2:] == [launched]


@pytest.mark.parametrize("crash", [139, 14])  # the second: seen of srun 22.05 with PMIx, when a rank crashes in MPI
@pytest.mark.parametrize("begun", ["", "1"])
def test_a_start_that_crashes_before_the_run_has_begun_is_made_again(
    pretending: Cluster, begun: str, crash: int
) -> None:
    (pretending.root / "codes").write_text(f"{crash}\n0\n")
    done = pretending.run("slurm", BEGUN=begun)
    assert (done.code, len(pretending.calls())) == ((crash, 1) if begun else (0, 2)), done.err
    assert ("a rank crashed before the run had begun; starts it once more" in done.out) == (not begun)
    (pretending.root / "codes").write_text(f"{crash}\n" * 3 + "0\n")
    assert pretending.run("slurm").code == 0
    (pretending.root / "codes").write_text(f"{crash}\n" * 4 + "0\n")
    assert pretending.run("slurm").code == crash, "not for ever"


@pytest.mark.parametrize("script", LAUNCHED)
def test_what_would_be_run_is_what_is_run(pretending: Cluster, script: str) -> None:
    (pretending.root / "codes").write_text("0\n")
    said = pretending.run(script, "--dry-run")
    assert said.code == 0, said.err
    assert f"{LAUNCHED[script]} {trained(pretending)}" in [line.strip() for line in said.out.splitlines()]
    if script in RESUBMITTED:
        assert resubmitted(pretending, script) in said.out.replace("\\", "")
    assert pretending.calls() == [] and not pretending.run_dir.exists()
    assert pretending.run(script).code == 0


@pytest.mark.parametrize("script", LAUNCHED)
def test_data_is_staged_by_the_ranks_and_trained_from_there(pretending: Cluster, script: str) -> None:
    (pretending.root / "codes").write_text("0\n")
    done = pretending.run(script, STAGE="/local")
    assert done.code == 0, done.err
    stage = "-m tfpipe stage -c c.json --out /local --split all --set training.epochs=2"
    calls = pretending.calls(but="")
    if script != "mpirun":
        assert calls[0] == f"{LAUNCHED[script]} {pretending.environ['VENV']}/bin/python {stage}"
    assert f"python {stage}" in calls
    train = trained(pretending).partition("train.py")[2]
    assert calls[-1] == f"python train.py{train} --set data.train_filelist=/local disk/train.txt"
    assert "7 files copied" in done.out


@pytest.mark.parametrize("script", LAUNCHED)
def test_names_may_have_spaces_brackets_and_commas(pretending: Cluster, script: str) -> None:
    (pretending.root / "codes").write_text("75\n")
    run_dir = str(pretending.root / "my [run] 1, x*")
    values = ["data.train_filelist=/a b/[c] =.txt", "data.classes=[a b, c]", "training.epochs=2"]
    done = pretending.run(script, RUN=run_dir, SET=f" {'  '.join(values)} ", STAGE="/local disk")
    assert done.code == 75, "it finds its checkpoint, and is resumed"
    given = [word for value in values for word in ("--set", value)]
    stage, train = [
        words for words in map(json.loads, (pretending.root / "calls").read_text().splitlines()) if words[0] == "python"
    ]
    assert stage[3:] == ["stage", "-c", "c.json", "--out", "/local disk", "--split", "all", *given]
    staged = ["--set", "data.train_filelist=/local disk/train.txt"]
    assert train[1:] == ["train.py", "-c", "c.json", "-l", run_dir, "--resume", "auto", *given, *staged]


def test_a_containers_python_is_started_in_it(pretending: Cluster) -> None:
    (pretending.root / "codes").write_text("0\n")
    inside = '[[ $1 == exec ]] && echo "$2" >> "$CALLS.images" && shift 2; exec "$@"'
    write_program(pretending.root / "bin/apptainer", inside)
    assert pretending.run("slurm", IMAGE="/images/my image.sif").code == 0
    assert (pretending.root / "calls.images").read_text() == "/images/my image.sif\n"


def test_steps_are_traced_in_the_first_job_and_reported_after_the_last(pretending: Cluster) -> None:
    (pretending.root / "codes").write_text("75\n0\n")
    assert pretending.run("slurm", PROFILE="20:40").code == 75
    assert pretending.run("slurm", PROFILE="20:40").code == 0
    trains = [call for call in pretending.calls(but="srun") if "train.py" in call]
    assert ["--profile 20:40" in call for call in trains] == [True, False]
    assert (pretending.run_dir / "report.txt").read_text() == "the report\n"


@pytest.mark.parametrize(
    ("script", "codes", "environ", "code", "said"),
    [
        *(("pbs", f"{code}\n", {}, code, "") for code in (1, 2, 137)),
        ("slurm", "75\n", {"IDLE": "1"}, 1, "has not trained one step"),
        ("mpirun", "0\n", {"UNFINISHED": "1"}, 1, "the run has not ended"),
        # Of several hosts that all answer, and of the only one.
        *(("mpirun", "3\n0\n", {"HOSTS": "node1:2", "LOST": lost}, 3, "") for lost in ("none", "node1")),
    ],
)
def test_a_failed_job_is_not_submitted_again(
    pretending: Cluster, script: str, codes: str, environ: dict[str, str], code: int, said: str
) -> None:
    (pretending.root / "codes").write_text(codes)
    done = pretending.run(script, **environ)
    assert done.code == code and said in done.out and "resumes" not in done.out
    assert not any(call.startswith(("qsub", "scontrol")) for call in pretending.calls())


@pytest.mark.parametrize(
    ("script", "number"),
    [("slurm", signal.SIGUSR1), ("slurm", signal.SIGTERM), ("mpirun", signal.SIGUSR1), ("mpirun", signal.SIGTERM)],
)
def test_a_signal_saves_the_run_and_a_cancelled_job_is_not_submitted_again(
    pretending: Cluster, script: str, number: signal.Signals
) -> None:
    job = pretending.start(script, STUCK="1")
    started = pretending.run_dir / "started"
    wait_for(started.exists, job)
    job.send_signal(number)
    if script == "slurm" and number == signal.SIGTERM:
        os.kill(int(started.read_text()), number)  # scancel sends it to all processes of the job
    done = finish(job)
    assert done.code == 75, done.err
    again = script == "slurm" and number == signal.SIGUSR1
    assert any(call.startswith("scontrol") for call in pretending.calls()) == again
    assert ("cancelled" in done.out) == (number == signal.SIGTERM)


@pytest.mark.parametrize("code", [0, 1, 137], ids=["0, as of Open MPI's mpirun", "1", "137"])
def test_a_lost_host_is_left_out_and_the_run_goes_on(pretending: Cluster, code: int) -> None:
    (pretending.root / "codes").write_text(f"{code}\n0\n")
    done = pretending.run("mpirun", HOSTS="node1:2,node2:4,node3:2", RANKS="8", LOST="node2")
    assert done.code == 0, done.err
    assert "job: node2 does not answer; resumes on node1 node3" in done.out
    assert (pretending.root / "hosts").read_text() == "node1:2,node2:4,node3:2\nnode1:2,node3:2\n"
    assert [call.split()[-1] for call in pretending.calls(but="")] == ["training.epochs=2"] * 2


def test_a_lost_node_of_slurm_is_left_out_and_the_job_goes_on(pretending: Cluster) -> None:
    """`srun` of the stand-in reaches node1 and node3."""
    (pretending.root / "codes").write_text("143\n0\n")
    done = pretending.run(
        "slurm", SLURM_JOB_NUM_NODES="3", SLURM_NTASKS="6", SLURM_JOB_NODELIST="node[1-3]", LOST="node2"
    )
    assert done.code == 0, done.err
    assert "job: node2 does not answer; resumes on node1 node3" in done.out
    trains = [call for call in pretending.calls() if "train.py" in call]
    assert trains[0].startswith("srun --cpus-per-task=4")
    assert trains[1].startswith("srun --overlap --nodelist=node1,node3 --nodes=2 --ntasks=4 --cpus-per-task=4")
    assert not any(call.startswith("scontrol requeue") for call in pretending.calls())


def test_a_walltime_too_short_to_save_in_is_refused(pretending: Cluster) -> None:
    done = pretending.run("pbs", SAVE_S="3600")
    assert done.code == 2 and "the walltime is over" in done.out
    assert pretending.calls() == []


@pytest.mark.parametrize("script", ["pbs", "flux"])
def test_a_run_is_told_to_save_before_the_walltime_is_over(pretending: Cluster, script: str) -> None:
    """These schedulers send no signal in time. The stand-in for `sleep` is over as soon as the run has begun."""
    until = 'until [ -e "$RUN/started" ]; do :; done'
    write_program(pretending.root / "bin/sleep", f'echo "$1" > "{pretending.root}/slept"\n{until}')
    done = pretending.run(script, STUCK="1", SAVE_S="600")
    assert done.code == 75, done.err
    assert 2900 < int((pretending.root / "slept").read_text()) <= 3000
    assert resubmitted(pretending, script).replace("SAVE_S=300", "SAVE_S=600") in pretending.calls()


@pytest.mark.parametrize(
    ("script", "settings", "words"),
    [
        (
            "slurm",
            {"GPUS": "--gpus-per-task=1 --gpu-bind=closest"},
            "--cpu-bind=cores --gpus-per-task=1 --gpu-bind=clos",
        ),
        (
            "slurm",
            {"GPUS": "--gpus-per-node=2 --cpu-bind=mask_cpu:fe,fe00"},
            "--gpus-per-node=2 --cpu-bind=mask_cpu:fe,fe00",
        ),
        ("pbs", {"CPU_BIND": "list:24-31:16-23:8-15:0-7"}, "--depth 8 --cpu-bind list:24-31:16-23:8-15:0-7 "),
        ("flux", {"GPUS": ""}, "--cores-per-task=16 --setopt=cpu-affinity=per-task --setopt=exit"),
    ],
)
def test_each_rank_gets_its_gpu_and_the_cores_next_to_it(
    pretending: Cluster, script: str, settings: dict[str, str], words: str
) -> None:
    (pretending.root / "codes").write_text("0\n")
    done = pretending.run(script, **settings)
    assert done.code == 0, done.err
    (call,) = pretending.calls()
    assert words in call


def test_the_two_profiles_differ_in_readers_and_prefetch_alone(pretending: Cluster) -> None:
    (pretending.root / "codes").write_text("0\n0\n")
    runs = {name: f"{pretending.root}/{name}" for name in ("serial", "parallel")}
    for name, run_dir in runs.items():
        done = pretending.run(f"profile_{name}", RUN=run_dir, SERIAL=runs["serial"], LAUNCH="aprun -n 1 -N 1 --cc none")
        assert done.code == 0, done.err
    train = "train.py -c c.json -l {} -n 40 --profile 15:30 --set training.epochs=2{}"
    serial = " --set data.num_parallel_readers=1 --set data.prefetch_buffer_size=0"
    assert [call.removeprefix("python ") for call in pretending.calls(but="aprun")] == [
        train.format(runs["serial"], serial),
        f"-m tfpipe report {runs['serial']}",
        train.format(runs["parallel"], ""),
        f"-m tfpipe report {runs['serial']} {runs['parallel']}",
    ]


@pytest.mark.full("a real job; the other tests check what the script asks of PBS, and test_resume the signals")
def test_ranks_under_pbs_stop_in_time_and_the_next_job_goes_on(
    cluster: Cluster, sample: SampleData, tmp_path: Path
) -> None:
    """Two real ranks, with the variables of Cray's mpiexec and none of mpirun's."""
    config = sample.config(
        tmp_path / "c.json",
        data={"batch_size": 4, "crop": "full", "test_filelist": None},
        training={"epochs": 4, "log_positions": True},
    )
    ensure_server()
    write_program(tmp_path / "bin/python", f'exec {shlex.join(WARM)} "$@"')
    settings = {
        **MPI_ENVIRON,
        "MPIRUN": mpirun(),
        "CONFIG": str(config),
        "VENV": "",  # which may have an mpiexec of its own, that would come first
        "RANKS_PER_NODE": "1",
        "DEPTH": "1",
        "SET": "data.seed=3",
    }
    log = cluster.run_dir / "positions-0.csv"
    slow = f"{settings['SET']} data.parallel.read=1 data.prefetch_buffer_size=2"
    job = cluster.start("pbs", **{**settings, **LATE, "SET": slow})
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 20, job)
    job.send_signal(signal.SIGUSR1)
    told = finish(job)
    assert told.code == 75, told.err
    assert told.err.count("SIGUSR1: finishes the step and saves") == 1
    (qsub,) = (call for call in cluster.calls() if call.startswith("qsub"))
    assert qsub == RESUBMITTED["pbs"]
    done = cluster.run("pbs", **settings)
    assert done.code == 0, done.err
    assert "resumes after" in done.err and "bit-identical on all 2 ranks" in done.err
    assert [line["epoch"] for line in read_metrics(cluster.run_dir)] == [1, 2, 3, 4]


DETECTED = """
import sys
from tfpipe.collectives.launch import find_launch
from tfpipe.distributed import World
world = {"horovod": World.detect, "tensorflow": World.tensorflow}[sys.argv[1]]()
assert (world.size, world.backend, world.rank) == (2, sys.argv[1], find_launch().rank), world
print("fine", find_launch().launcher, world.gather(world.rank))
"""


@pytest.mark.parametrize(
    ("launcher", "backend"), [*itertools.product(("aprun", "srun"), ("horovod", "tensorflow")), ("flux", "tensorflow")]
)
def test_ranks_find_each_other_under(
    cluster: Cluster, launcher: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Horovod, aprun tells no size, so that MPI passes the address; under srun, a file does, without PMIx."""
    mpi = "pmix" if backend == "horovod" else "none"
    flags = {
        "aprun": "-n 2 -N 2 -d 1 -j 1 --cc depth",
        "srun": f"--ntasks=2 --cpus-per-task=1 --mpi={mpi}",
        "flux": "run --ntasks=2 --cores-per-task=1",
    }
    environ = {**cluster.environ, **MPI_ENVIRON, "MPIRUN": mpirun(), "SLURM_JOB_ID": "7"}
    monkeypatch.chdir(cluster.root)  # the ranks meet in its folder "runs"
    done = finish(start(launcher, *flags[launcher].split(), *WARM, "-c", DETECTED, backend, **environ))
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == [f"fine {launcher} [0, 1]"] * 2
