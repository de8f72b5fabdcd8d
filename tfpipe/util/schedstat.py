"""Run-queue delay: how long this process's threads waited for a CPU that other threads occupied."""

import os
from collections.abc import Mapping
from contextlib import suppress


def queued_s() -> dict[str, float]:
    """Returns, by thread, the seconds spent runnable without a CPU so far; empty if the kernel does not report them."""
    delays_s = {}
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread}/schedstat") as file:
            delays_s[thread] = 1e-9 * int(file.read().split()[1])
    return delays_s


def queued_since(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Returns the seconds of delay between two `queued_s`, summed over the threads that are in both."""
    return sum(seconds - before[thread] for thread, seconds in now.items() if thread in before)
