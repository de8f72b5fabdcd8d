"""Recognises a pipeline that is a noisy neighbour of the model: a step does not wait, and yet lacks CPUs."""

from typing import NamedTuple

from tfpipe.tools.report.runs import Run

SWEEP = "tfpipe bench --sweep data.cpu_fraction=0.25,0.5,0.75,1"
# Share of its CPUs that the process keeps busy; below it, other processes or nobody have the rest.
BUSY = 0.8
# Runnable threads without a CPU, per CPU. A model alone, with a thread per CPU, leaves it near 0.
QUEUED = 0.25
# Share of the CPUs that the pipeline's threads take; less is hardly worth taking away.
TAKEN = 0.15


class Neighbour(NamedTuple):
    """The headline, the evidence and the advice."""

    headline: str
    because: str
    advice: str


def noisy_neighbour(run: Run) -> Neighbour | None:
    """Returns what to say of a run whose steps do not wait, if its pipeline takes the CPUs of its model; else None."""
    if run.data is None or not run.intervals:
        return None
    cores, busy, queued = run.intervals[-1]["cores"], run.mean("cpu_fraction"), run.mean("queued_fraction")
    taken = pipeline_cpus(run)
    if busy < BUSY or queued < QUEUED or taken < TAKEN * cores:
        return None
    return Neighbour(
        f"NOISY NEIGHBOUR: a step waits {100 * run.wait_fraction:.1f} % of its time for input, but its model and the "
        "pipeline take turns on the same CPUs",
        f"{100 * busy:.0f} % of {cores} CPUs are busy, {queued * cores:.1f} more threads could have run all the time; "
        f"the pipeline's threads keep {taken:.1f} CPUs, or wait for them",
        f"{SWEEP} finds the share of the CPUs that gives the most steps/s (now {run.data.cpu_fraction:g}), compared "
        "with steps fed from memory",
    )


def pipeline_cpus(run: Run) -> float:
    """Returns the threads of the pipeline that were busy or queued for a CPU, on average, without those that read."""
    busy_ms = sum(
        stage["elements"] * stage["busy_ms"]
        for interval in run.intervals
        for stage in interval["stages"]
        if stage["stage"] != "read"
    )
    return busy_ms / 1e3 / run.total("seconds")
