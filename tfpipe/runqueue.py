"""How long this process's threads have been kept from running, by others on the same CPUs."""

import os
from collections.abc import Mapping
from contextlib import suppress


def queued_s() -> dict[str, float]:
    """By thread, how long it could have run so far but had no CPU; nothing where the kernel does not say."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread}/schedstat") as file:
            found[thread] = 1e-9 * int(file.read().split()[1])
    return found


def queued_since(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """The sum, in seconds, over the threads that were there both times."""
    return sum(seconds - before[thread] for thread, seconds in now.items() if thread in before)
