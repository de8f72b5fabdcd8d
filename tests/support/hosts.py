"""Hosts in namespaces of this machine: each has its own address, name, processes, /tmp, /dev/shm and sshd.

They are connected by a bridge, and share the file system except for /tmp, /run and /dev/shm, in which they see only
the repository, the Python environment and a shared folder. Needs root and openssh-server.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import MPI_ENVIRON, ROOT, WARM, Finished, ensure_server, finish
from tests.support.warm import ADDRESS
from tfpipe.data.runtime.clock import DELAY_MS

UNSHARE = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]
LOGIN = "login"
NODES = ("node1", "node2", "node3")
NETWORK = "10.77.0"
START_S = 30

# The first process of a host: kernel and sshd are its own, and with it all of the host's processes end.
INIT = """
set -euo pipefail
name=$1 settings=$2
shift 2
hostname "$name"
mount -t tmpfs tmpfs /mnt
for folder in "$@"; do mkdir -p "/mnt$folder" && mount --bind "$folder" "/mnt$folder"; done
for folder in /tmp /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
for folder in "$@"; do mkdir -p "$folder" && mount --bind "/mnt$folder" "$folder"; done
mount --bind "$settings/hosts" /etc/hosts
mkdir -p -m 755 /run/sshd
ip link set lo up
echo ready
read -r network
/usr/sbin/sshd -D -f "$settings/sshd_config" &
while true; do wait -n || true; sleep 1; done
"""
SSHD = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PidFile none
"""
SSH = """#!/bin/sh
exec /usr/bin/ssh -i {folder}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$@"
"""


class Host(NamedTuple):
    name: str
    pid: int  # as this process sees it

    def enter(self, *namespaces: str) -> list[str]:
        """Returns the words before a command that run it on this host."""
        kinds = namespaces or ("net", "uts", "ipc", "mount", "pid")
        return ["nsenter", f"--target={self.pid}", *(f"--{kind}" for kind in kinds), "--"]


class Hosts(NamedTuple):
    """A login host and three nodes, on one network."""

    folder: Path  # their settings; as VENV of a job script, the Python of the tests
    switch: int  # process that holds the bridge's network
    hosts: dict[str, Host]

    def start(self, host: str, *command: str | Path, **environ: str) -> subprocess.Popen[str]:
        """Starts a command on a host, in the repository's folder."""
        own = {"PATH": f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}", "TMPDIR": "/tmp"}
        env = {**os.environ, **MPI_ENVIRON, "PYTHONPATH": str(ROOT), **own, **environ}
        env.pop("PRTE_MCA_rmaps_default_mapping_policy")  # it would put all ranks on the first host
        # A process that enters another file system is in its root.
        ensure_server()
        shell = ["bash", "-c", f'cd {shlex.quote(str(ROOT))} && exec "$@"', "bash"]
        words = [*self.hosts[host].enter(), *shell, *map(str, command)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def run(self, host: str, *command: str | Path, **environ: str) -> Finished:
        """Runs a command on a host to its end."""
        return finish(self.start(host, *command, **environ))

    def signal(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Sends a signal to a command that `start` has started."""
        os.kill(_child(process.pid), number)

    def kill(self, host: str) -> None:
        """Kills all processes of a host; its address answers no more."""
        os.kill(self.hosts[host].pid, signal.SIGKILL)

    def cut(self, host: str) -> None:
        """Drops all packets from and to a host, whose processes continue."""
        _in_network(self.switch, "ip", "link", "set", _port(host), "nomaster")


def missing() -> str:
    """Returns why this machine cannot have such hosts; an empty string if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("/usr/sbin/sshd", "openssh-server"), ("ssh", "openssh-client")):
        if shutil.which(tool) is None:
            return f"there is no {tool}: apt install {package}"
    tried = subprocess.run([*UNSHARE, "ip", "link", "add", "type", "bridge"], capture_output=True, text=True)
    return f"namespaces cannot be had: {tried.stderr.strip()}" if tried.returncode else ""


@contextmanager
def make_hosts(folder: Path, shared: Sequence[Path] = (), nodes: Sequence[str] = NODES) -> Iterator[Hosts]:
    """Makes a host "login" and `nodes`, which all see `folder` and the folders `shared`.

    They end with this block, or with this process. `folder` gets their settings, in the new folder "hosts".
    """
    folder = folder / "hosts"
    (folder / "bin").mkdir(parents=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    # sshd and mpirun hand no environment on.
    variables = {"PYTHONPATH": str(ROOT), ADDRESS: os.environ[ADDRESS]}
    exported = "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    exported += f" {DELAY_MS}=${{{DELAY_MS}-60}}"
    python = f'#!/bin/sh\n{exported}\nexec {shlex.join(WARM)} "$@"\n'
    programs = {"ssh": SSH.format(folder=folder), "python": python}
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    names = [LOGIN, *nodes]
    addresses = [f"{NETWORK}.{number + 1}" for number in range(len(names))]
    lines = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    with ExitStack() as ended:
        switch = ended.enter_context(_held(["unshare", "--net", "bash", "-c", "echo ready; read -r end"]))
        _in_network(switch.pid, "ip", "link", "add", "bridge", "type", "bridge")
        _in_network(switch.pid, "ip", "link", "set", "bridge", "up")
        hosts = {}
        for name, address in zip(names, addresses, strict=True):
            process = ended.enter_context(_held(_init(name, folder, [folder.parent, *shared])))
            hosts[name] = Host(name, _child(process.pid))
            _connect(hosts[name], address, switch.pid)
            assert process.stdin is not None, "a pipe"
            process.stdin.write("connected\n")
            process.stdin.flush()
        for host in hosts.values():
            _wait_for_sshd(host)
        yield Hosts(folder, switch.pid, hosts)


def _init(name: str, folder: Path, shared: Sequence[Path]) -> list[str]:
    environment = Path(sys.prefix).resolve()
    warm = Path(os.environ[ADDRESS]).parent
    seen = (ROOT, environment, Path(sys.base_prefix), warm, *shared)
    folders = dict.fromkeys(str(each.resolve()) for each in seen)
    hidden = [folder for folder in folders if folder.startswith(("/tmp/", "/run/", "/dev/shm/"))]
    return [*UNSHARE, "--kill-child", "--mount-proc", "bash", "-c", INIT, name, name, str(folder), *hidden]


@contextmanager
def _held(command: Sequence[str | Path]) -> Iterator[subprocess.Popen[str]]:
    """Runs a command that says when it is ready; it is killed with this block or process."""
    words = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n", f"failed: {words}"
        yield process
    finally:
        with process:
            process.kill()


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _port(host: str) -> str:
    return f"to-{host}"


def _connect(host: Host, address: str, switch: int) -> None:
    ends = [_port(host.name), "netns", str(switch), "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
    subprocess.run(["ip", "link", "add", *ends], check=True)
    _in_network(switch, "ip", "link", "set", _port(host.name), "master", "bridge", "up")
    _in_network(host.pid, "ip", "address", "add", f"{address}/24", "dev", "eth0")
    _in_network(host.pid, "ip", "link", "set", "eth0", "up")


def _in_network(pid: int, *command: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", "--", *command], check=True)


def _wait_for_sshd(host: Host) -> None:
    until_s = time.monotonic() + START_S
    probe = "exec 3<>/dev/tcp/127.0.0.1/22"
    while subprocess.run([*host.enter("net"), "bash", "-c", probe], capture_output=True).returncode:
        assert time.monotonic() < until_s, f"no sshd on {host.name}"
        time.sleep(0.05)
