"""Namespaces of Linux: lets a forked command run on the host of the process that asked for it (see hosts.py)."""

import ctypes
import os
import signal
from contextlib import suppress

# Of sched.h and prctl.h; Python has no names for them before 3.12.
NEW = {"mnt": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "pid": 0x20000000, "net": 0x40000000}
PR_SET_PDEATHSIG = 1


def elsewhere(pid: int) -> bool:
    """Returns whether a process is in another namespace of processes."""
    with suppress(OSError):  # it has ended
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    return False


def enter(pid: int) -> None:
    """Enters the namespaces of a process, in a child of this process, which waits for it and ends as it does.

    A process keeps its own namespace of processes; only its children are in another one.
    """
    libc, process = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    if libc.setns(process, sum(NEW.values())):
        raise OSError(ctypes.get_errno(), "cannot enter the namespaces")
    os.close(process)
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(0, 1024)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
