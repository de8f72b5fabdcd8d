"""A scheduler and its launcher, as far as jobs/ relies on them: python stand_in.py NAME ARGS.

A launcher refuses flags that the real one has not, and starts its command with the variables the real one sets: on
MPIRUN, where that is set, else once, as rank 0. Every call is written to the file CALLS, as a line of JSON.
"""

import argparse
import json
import os
import sys


def launcher_of(name: str) -> tuple[argparse.ArgumentParser, dict[str, str]]:
    """The flags that jobs/ may use, and the variables of a rank; {rank} and {size} stand for its own."""
    parser = argparse.ArgumentParser(name, allow_abbrev=False, add_help=False)
    if name == "mpiexec":  # Cray's, of PALS
        parser.add_argument("-n", dest="ranks", type=int, required=True)
        parser.add_argument("--ppn", type=int, required=True)
        parser.add_argument("--depth", type=int)
        parser.add_argument("--cpu-bind", choices=("depth", "none"), required=True)
        environ = {"PALS_RANKID": "{rank}", "PALS_LOCAL_RANKID": "{rank}", "PMI_RANK": "{rank}", "PMI_SIZE": "{size}"}
    elif name == "aprun":
        parser.add_argument("-n", dest="ranks", type=int, required=True)
        parser.add_argument("-N", dest="ppn", type=int, required=True)
        parser.add_argument("-d", type=int)
        parser.add_argument("-j", type=int)
        parser.add_argument("--cc", choices=("depth", "none"), required=True)
        environ = {"ALPS_APP_PE": "{rank}", "ALPS_APP_ID": "99"}
    else:  # srun
        parser.add_argument("--ntasks", dest="ranks", type=int, default=int(os.environ.get("SLURM_NTASKS", "1")))
        parser.add_argument("--ntasks-per-node", type=int)
        parser.add_argument("--nodes", type=int)
        parser.add_argument("--nodelist")
        parser.add_argument("--overlap", action="store_true")
        parser.add_argument("--cpus-per-task", type=int)
        parser.add_argument("--mpi", choices=("pmix", "pmi2", "cray_shasta"))
        parser.add_argument("--cpu-bind", choices=("cores",))
        parser.add_argument("--kill-on-bad-exit", choices=("0",))
        parser.add_argument("--wait", type=int)
        environ = {"SLURM_PROCID": "{rank}", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "{size}"}
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser, environ


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
    script = exports + 'unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE\nexec "$@"'
    mpirun = [os.environ["MPIRUN"], "-n", str(args.ranks), "bash", "-c", script, name, *args.command]
    os.execv(mpirun[0], mpirun)


def main() -> None:
    """Notes the call, and does what the program of that name does."""
    name, *words = sys.argv[1:]
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps([name, *words]) + "\n")
    if name in ("mpiexec", "aprun", "srun"):
        launch(name, words)
    elif (name, words[:2]) == ("scontrol", ["show", "hostnames"]):
        print("node1\nnode2\nnode3")
    elif name == "qstat":
        print("Job Id: 1.host\n    Resource_List.walltime = 01:00:00\n    Resource_List.select = 2")


if __name__ == "__main__":
    main()
