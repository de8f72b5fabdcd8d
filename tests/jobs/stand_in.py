"""A scheduler and its launcher, as far as jobs/ relies on them: python stand_in.py NAME ARGS.

A launcher refuses flags that the real one has not, and starts its command with the variables the real one sets: on
MPIRUN, where that is set, else once, as rank 0. Every call is written to the file CALLS, as a line of JSON.
"""

import argparse
import json
import os
import re
import signal
import sys
from pathlib import Path


def launcher_of(name: str) -> tuple[argparse.ArgumentParser, dict[str, str]]:
    """The flags that jobs/ may use, and the variables of a rank; {rank} and {size} stand for its own."""
    parser = argparse.ArgumentParser(name, allow_abbrev=False, add_help=False)
    if name == "mpiexec":  # Cray's, of PALS
        parser.add_argument("-n", dest="ranks", type=int, required=True)
        parser.add_argument("--ppn", type=int, required=True)
        parser.add_argument("--depth", type=int)
        parser.add_argument("--cpu-bind", type=cpu_bind, required=True)
        environ = {"PALS_RANKID": "{rank}", "PALS_LOCAL_RANKID": "{rank}", "PMI_RANK": "{rank}", "PMI_SIZE": "{size}"}
    elif name == "aprun":
        parser.add_argument("-n", dest="ranks", type=int, required=True)
        parser.add_argument("-N", dest="ppn", type=int, required=True)
        parser.add_argument("-d", type=int)
        parser.add_argument("-j", type=int)
        parser.add_argument("--cc", choices=("depth", "none"), required=True)
        environ = {"ALPS_APP_PE": "{rank}", "ALPS_APP_ID": "99"}
    elif name == "flux":  # run, and submit
        for flag in ("--nodes", "--cores-per-task", "--gpus-per-task"):
            parser.add_argument(flag, type=int)
        parser.add_argument("--ntasks", dest="ranks", type=int, required=True)
        options = ("cpu-affinity=per-task", "gpu-affinity=per-task", "exit-timeout=300s")
        parser.add_argument("--setopt", action="append", choices=options)
        environ = {"FLUX_TASK_RANK": "{rank}", "FLUX_JOB_SIZE": "{size}", "FLUX_JOB_ID": "f1"}
    else:  # srun
        parser.add_argument("--ntasks", dest="ranks", type=int, default=int(os.environ.get("SLURM_NTASKS", "1")))
        parser.add_argument("--ntasks-per-node", type=int)
        parser.add_argument("--nodes", type=int)
        parser.add_argument("--nodelist")
        parser.add_argument("--overlap", action="store_true")
        parser.add_argument("--cpus-per-task", type=int)
        parser.add_argument("--mpi", choices=("pmix", "pmi2", "cray_shasta", "none"))
        parser.add_argument("--gpus-per-task", type=int)
        parser.add_argument("--gpus-per-node", type=int)
        parser.add_argument("--gpu-bind", choices=("closest",))
        parser.add_argument("--cpu-bind", type=slurm_bind, action="append")
        parser.add_argument("--kill-on-bad-exit", choices=("0",))
        parser.add_argument("--wait", type=int)
        environ = {"SLURM_PROCID": "{rank}", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "{size}"}
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser, environ


def cpu_bind(text: str) -> str:
    """Returns a value of Cray's --cpu-bind: a word, or the cores of each rank, as list:0-7:8-15."""
    if text not in ("depth", "none") and not re.fullmatch(r"list(:\d+(-\d+)?(,\d+(-\d+)?)*)+", text):
        raise ValueError(text)
    return text


def slurm_bind(text: str) -> str:
    """Returns a value of srun's --cpu-bind: a word, or a mask for each task of a node, the last flag counts."""
    if text != "cores" and not re.fullmatch(r"mask_cpu:[0-9a-f]+(,[0-9a-f]+)*", text):
        raise ValueError(text)
    return text


def flux(words: list[str]) -> None:
    """Runs a job, or notes one, runs the one that was noted, or signals it."""
    noted = Path(os.environ["CALLS"]).with_name("flux-job")
    if words[0] == "submit":
        launcher_of("flux")[0].parse_args(words[1:])
        noted.write_text(json.dumps(words[1:]))
        print("f1")
    elif words[0] == "run":
        launch("flux", words[1:])
    elif words[:3] == ["job", "attach", "f1"]:
        noted.with_name("flux-pid").write_text(str(os.getpid()))
        launch("flux", json.loads(noted.read_text()))
    elif words == ["job", "kill", "--signal=SIGUSR1", "f1"]:
        os.kill(int(noted.with_name("flux-pid").read_text()), signal.SIGUSR1)
    elif words in (["job", "timeleft"], ["getattr", "size"], ["getattr", "jobid"]):
        print({"timeleft": 3600, "size": 2, "jobid": "f7"}[words[1]])
    elif words == ["--parent", "job", "info", "f7", "jobspec"]:
        asked = {"duration": 7200.0, "queue": "pbatch", "bank": "mine", "environment": {"queue": "another"}}
        print(json.dumps({"version": 1, "attributes": {"system": asked}}))
    elif words[:2] == ["--parent", "batch"]:
        parser = argparse.ArgumentParser("flux batch", allow_abbrev=False, add_help=False)
        for flag in ("--nodes", "--time-limit", "--queue", "--bank"):
            parser.add_argument(flag)
        parser.add_argument("script")
        parser.parse_args(words[2:])
    else:
        sys.exit(f"flux: {words}")


def launch(name: str, words: list[str]) -> None:
    """Becomes the command, or mpirun of it."""
    parser, environ = launcher_of(name)
    args = parser.parse_args(words)
    if getattr(args, "nodelist", None) and os.environ.get("LOST") in args.nodelist.split(","):
        sys.exit(f"{name}: error: Required node not available (down, drained or reserved)")
    if "MPIRUN" not in os.environ:
        rank0 = {name: value.format(rank=0, size=args.ranks) for name, value in environ.items()}
        os.execvpe(args.command[0], args.command, {**os.environ, **rank0})
    # Open MPI finds its ranks by PMIX_RANK; tfpipe is to find them by what the real launcher would have set.
    exports = "".join(
        f"export {name}={value.format(rank='$OMPI_COMM_WORLD_RANK', size=args.ranks)}\n"
        for name, value in environ.items()
    )
    script = exports + 'unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PRTE_LAUNCHED\nexec "$@"'
    mpirun = [os.environ["MPIRUN"], "-n", str(args.ranks), "bash", "-c", script, name, *args.command]
    os.execv(mpirun[0], mpirun)


def main() -> None:
    """Notes the call, and does what the program of that name does."""
    name, *words = sys.argv[1:]
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps([name, *words]) + "\n")
    if name in ("mpiexec", "aprun", "srun"):
        launch(name, words)
    elif name == "flux":
        flux(words)
    elif (name, words[:2]) == ("scontrol", ["show", "hostnames"]):
        print("node1\nnode2\nnode3")
    elif name == "qstat":
        print("Job Id: 1.host\n    queue = small\n    Account_Name = mine\n    Resource_List.walltime = 01:00:00")
        print("    Resource_List.nodect = 2\n    Resource_List.select = 2:ncpus=64:ngpus=4:system=\n\tpolaris")


if __name__ == "__main__":
    main()
