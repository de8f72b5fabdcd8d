"""Slurm on hosts of this machine: slurmctld on the login host, a slurmd on each node."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.hosts import LOGIN, Hosts

START_S = 60
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch")
CONF = """
ClusterName=test
SlurmctldHost={login}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge.socket
CredType=cred/munge
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout={slurmd_timeout_s}
SlurmctldDebug=verbose
NodeName={nodes} CPUs=2 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
MUNGED = (
    "munged --foreground --force --key-file={folder}/munge.key --socket=/run/munge.socket --pid-file=/run/munge.pid"
    " --log-file=/run/munge.log --seed-file=/run/munge.seed"
)


class Slurm(NamedTuple):
    """A Slurm whose commands run on the login host."""

    hosts: Hosts
    environ: dict[str, str]

    def run(self, *command: str | Path, **environ: str) -> str:
        """Runs one of Slurm's commands; returns what it prints."""
        done = self.hosts.run(LOGIN, *command, **self.environ, **environ)
        assert done.code == 0, done
        return done.out.strip()

    def state(self, job: str) -> dict[str, str]:
        """Returns the fields of a job, such as JobState and Restarts."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


def missing_tool() -> str:
    """Returns why there can be no Slurm; an empty string if there can."""
    tool = next((tool for tool in TOOLS if shutil.which(tool) is None), None)
    return f"there is no {tool}: apt install slurm-wlm munge libpmix-dev" if tool else ""


@contextmanager
def make_slurm(hosts: Hosts, slurmd_timeout_s: int = 300) -> Iterator[Slurm]:
    """Starts Slurm's daemons, which end with their hosts. A node that is silent for `slurmd_timeout_s` is down."""
    folder = hosts.folder / "slurm"
    folder.mkdir()
    (folder / "munge.key").write_bytes(bytes(range(256)) * 4)  # of a network that no other host reaches
    (folder / "munge.key").chmod(0o600)
    nodes = [name for name in hosts.hosts if name != LOGIN]
    values = {"login": LOGIN, "folder": folder, "nodes": ",".join(nodes), "slurmd_timeout_s": slurmd_timeout_s}
    (folder / "slurm.conf").write_text(CONF.format(**values))
    slurm = Slurm(hosts, {"SLURM_CONF": str(folder / "slurm.conf")})
    with ExitStack() as ended:
        for name in hosts.hosts:
            daemon = "mkdir -p /run/state /run/spool; exec slurmctld -D" if name == LOGIN else "exec slurmd -D"
            script = f"{MUNGED.format(folder=folder)} & sleep 1; mkdir -p /run/spool; {daemon}"
            process = hosts.start(name, "bash", "-c", f"({script}) >{folder}/{name}.log 2>&1", **slurm.environ)
            ended.callback(_end, process)
        until_s = time.monotonic() + START_S
        while slurm.hosts.run(LOGIN, "sinfo", "-h", "-o", "%T %D", **slurm.environ).out.split() != [
            "idle",
            str(len(nodes)),
        ]:
            assert time.monotonic() < until_s, [path.read_text() for path in folder.glob("*.log")]
            time.sleep(0.5)
        yield slurm


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()  # nsenter; what it has started ends with the host
