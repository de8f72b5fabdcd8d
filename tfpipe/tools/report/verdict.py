"""Diagnoses the bottleneck of a run, and names the config key to change."""

import math
from typing import Literal, NamedTuple

from tfpipe.tools.report.neighbour import noisy_neighbour
from tfpipe.tools.report.runs import Run
from tfpipe.tools.report.trace import StageTime, Trace
from tfpipe.training.monitor.stragglers import Straggler, describe_stragglers

Kind = Literal[
    "straggler", "threads", "neighbour", "compute", "storage", "decode", "xml", "transform", "python", "input"
]

# Below this share of waiting, a run is compute-bound.
WAITS = 0.05
# Runnable threads without a CPU, per CPU; a model and a pipeline on the same CPUs make it about 1.
CROWDED = 2.0
# More concurrent reads seldom gain anything from a file server.
MOST_READS = 256

INDEX = "tfpipe index parses every XML once for all runs"
CPUS = "more CPUs for each rank, if the launcher binds it to few or data.threads or data.cpu_fraction is low"
# Advice for a stage that keeps the pipeline's threads busy.
REMEDIES = {
    "parse": INDEX,
    "crop": f"{CPUS}; {INDEX}, which leaves only the choice of the crops",
    "decode": f"{CPUS}; images stored smaller, or packed ahead of time by tfpipe pack",
    "flip": f"{CPUS}; data.cache that keeps files instead of crops: the decoder then mirrors at no cost",
    "gather": f"{CPUS}; crops packed as pixels (tfpipe pack --kind raw), which nothing has to decode",
    "service": "more workers (data.service.workers), or more CPUs where they run",
    "batch": f"{CPUS}; smaller crops (data.crop_image_size): this is the copy into batches",
    "finish": 'data.dtype "uint8", and the conversion to floats in the model, on its device',
    "transform": "less work in data.transform: fewer ops, each on the whole batch; or the same ops as first layers of "
    f"the model, on its device; {CPUS}",
}


class Verdict(NamedTuple):
    """The bottleneck, its evidence, and the advice."""

    kind: Kind
    headline: str
    because: str
    advice: str


class Use(NamedTuple):
    """Utilisation of the resource of a stage."""

    kind: Kind
    stage: str
    of: float  # utilisation; 1: fully used all the time
    because: str


def diagnose(run: Run) -> Verdict:
    """Returns the main bottleneck of a run."""
    straggling = describe_stragglers(run.intervals)
    if straggling is not None and straggling.fixed is not None:
        return _straggler(straggling.fixed, str(straggling))
    wait = run.wait_fraction
    too_many = _too_many(run)
    if too_many is not None:
        return _threads(run, too_many)
    if wait < WAITS:
        neighbour = noisy_neighbour(run)
        if neighbour is not None:
            return Verdict("neighbour", *neighbour)
        return Verdict(
            "compute",
            f"COMPUTE-BOUND: a step waits {100 * wait:.1f} % of its time for input",
            f"the rest is the model's; no work on the input pipeline can win more than {100 * wait:.1f} %",
            "a larger data.batch_size, training.precision, a faster device; data.cpu_fraction below 1 leaves more of "
            "the CPUs to a model that trains on them",
        )
    headline = f"INPUT-BOUND: a step waits {100 * wait:.0f} % of its time for input"
    if wait < 1:
        headline += f"; with faster input it could run up to {1 / (1 - wait):.1f} times as fast"
    used = uses(run.trace, run.at_once.get("read", 1), run.threads) if run.trace is not None else []
    if not used:
        return Verdict("input", headline, "no trace says at which stage", "record one: --profile 10:20")
    bottleneck = max(used, key=lambda use: use.of)
    return Verdict(bottleneck.kind, headline, bottleneck.because, _advice(bottleneck, run))


def uses(trace: Trace, reads: int, threads: int) -> list[Use]:
    """Returns the utilisation of storage, CPUs and Python by a pipeline of that many concurrent reads and threads."""
    stages = {stage.name: stage for stage in trace.stages}
    by_python = [stage for stage in trace.stages if stage.by_python]
    computing = [stage for stage in trace.stages if stage.name != "read" and not stage.by_python]
    result = []
    if "read" in stages:
        busy = stages["read"].busy_s / trace.seconds
        because = f"read: {busy:.1f} of {reads} reads at once under way all the time{_each(stages['read'], trace)}"
        result.append(Use("storage", "read", busy / reads, because))
    if computing:
        top = max(computing, key=lambda stage: stage.busy_s)
        busy = sum(stage.busy_s for stage in computing) / trace.seconds
        share = 100 * top.busy_s / sum(stage.busy_s for stage in computing)
        because = f"{top.name}: {busy:.2f} of {threads} pipeline threads busy, {share:.0f} % of it with {top.name}"
        kinds: dict[str, Kind] = {"parse": "xml", "transform": "transform"}
        result.append(Use(kinds.get(top.name, "decode"), top.name, busy / threads, because))
    if by_python:
        top = max(by_python, key=lambda stage: stage.busy_s)
        busy = sum(stage.busy_s for stage in by_python) / trace.seconds
        because = f"{top.name} calls Python, which runs one thread at a time: {busy:.2f} calls under way all the time"
        result.append(Use("python", top.name, busy, because))
    return result


def _each(stage: StageTime, trace: Trace) -> str:
    return f", {1000 * stage.busy_s / trace.images:.1f} ms an image" if trace.images else ""


def _advice(use: Use, run: Run) -> str:
    serial = run.data is not None and run.data.num_parallel_readers == 1
    if serial and use.kind in ("storage", "decode", "xml"):
        return 'data.num_parallel_readers is 1, so that images are read and decoded one after the other: "auto"'
    if use.kind == "storage":
        reads = min(MOST_READS, 2 * run.at_once.get("read", 1))
        more = f"data.parallel.read={reads} if the storage gives more when asked for more at once"
        cached = run.data is not None and run.data.cache is not None
        near = "" if cached else "data.cache keeps files near after the first epoch; "
        return f"{more}; {near}or a copy on local disks"
    if use.kind == "python" and use.stage == "transform":
        return "write data.transform in TensorFlow's ops, without numpy_function or py_function"
    return REMEDIES.get(use.stage, CPUS)


def _straggler(straggler: Straggler, description: str) -> Verdict:
    rank, host, _, part = straggler
    what = {
        "input": f"compare its way to the data with another's by tfpipe bench, or trace it: --profile-ranks {rank}",
        "compute": "look at what else runs there, at its clock and at its binding to CPUs",
    }
    headline = f"STRAGGLER: all ranks wait for rank {rank}"
    return Verdict("straggler", headline, description, f"the node {host}: {what[part]}")


def _too_many(run: Run) -> str | None:
    """Returns advice on the key that gives the pipeline more threads than CPUs, if they slow the run; else None."""
    if run.data is None or not run.intervals or run.mean("queued_fraction") < CROWDED:
        return None
    cores, data = run.intervals[-1]["cores"], run.data
    if data.threads is not None and data.threads > cores:
        return f"data.threads is {data.threads}: null gives as many as there are CPUs"
    return None


def _threads(run: Run, advice: str) -> Verdict:
    cores = run.intervals[-1]["cores"]
    waiting = math.floor(run.mean("queued_fraction") * cores)
    return Verdict(
        "threads",
        f"TOO MANY THREADS: {waiting} more than the {cores} CPUs that this rank may use could have run",
        "they take turns, and the model's own threads wait for theirs",
        advice,
    )
