"""Diagnoses what bounds the input pipeline, or a step of a run, and says what to change: mostly a config key.

bench measures chains of stages (`ChainFigures`); a run has its accounting and trace. A step that is slowed down without
waiting for input has a noisy neighbour: the pipeline takes the CPUs of its model.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tfpipe.config import DataConfig
from tfpipe.errors import counted
from tfpipe.tools.report.runs import Run
from tfpipe.training.monitor.stragglers import describe_stragglers

# bench finds "cpu", "calls" (too few images at once) or "wait"; a run has one of the others.
Kind = Literal["cpu", "calls", "wait", "straggler", "threads", "neighbour", "compute", "storage", "decode", "xml",
    "transform", "python", "input", "transfer", "reduce", "callbacks", "rest", "none"]  # fmt: skip

# Threads or CPUs at least this busy are what bounds.
BUSY = 0.8
# A step that waits a smaller share of its time does not wait for its input.
WAITS = 0.05
# A part of a step besides input and model that takes a smaller share of its time is not what bounds.
NOTED = 0.1
# A smaller share of a step's time cannot be distinguished from 0: a host's speed drifts more from turn to turn.
LITTLE = 0.05
# Runnable threads without a CPU, per CPU: a model alone, with a thread per CPU, leaves it near 0; a model and a
# pipeline on the same CPUs make it about 1.
QUEUED, CROWDED = 0.25, 2.0
# Share of the CPUs that the pipeline's threads take; less is hardly worth taking away.
TAKEN_SHARE = 0.15
# More concurrent reads seldom gain anything from a disk or a file server.
MOST_READS = 256

SWEEP = "tfpipe bench --sweep data.threads=0.25,0.5,0.75,null"
INDEX = "tfpipe index parses every XML once for all runs"
STORED = "images stored smaller, or packed ahead of time"
CPUS = "more CPUs for each rank, if the launcher binds it to few or data.threads is low"
# Advice for a stage that keeps the pipeline's threads busy.
REMEDIES = {
    "parse": INDEX,
    "crop": f"{CPUS}; {INDEX}, which leaves only the choice of the crops",
    "decode": f"{CPUS}; {STORED} by tfpipe pack",
    "gather": f"{CPUS}; crops packed as pixels (tfpipe pack --kind raw), which nothing has to decode",
    "service": "more workers (data.service), or more CPUs where they run",
    "batch": f"{CPUS}; smaller crops (data.crop_image_size): this is the copy into batches",
    "finish": 'data.dtype "uint8", and the conversion to floats in the model, on its device',
    "transform": "less work in data.transform: fewer ops, each on the whole batch; or the same ops as first layers of "
    f"the model, on its device; {CPUS}",
}
# Of a part of a step besides input and model: its headline, and what to change.
PART_VERDICTS: dict[Kind, tuple[str, str]] = {
    "transfer": ("TRANSFER-BOUND: the copy of the batches to the device", REMEDIES["finish"]),
    "reduce": (
        "ALLREDUCE-BOUND: the allreduce",
        'a larger data.batch_size, training.compression "fp16", or other training.collectives, if ranks are alike',
    ),
    "callbacks": (
        "CALLBACK-BOUND: callbacks",
        "a larger training.interval and training.status, no training.log_positions, fewer checkpoints",
    ),
    "rest": ("LOOP-BOUND: Keras' loop between the steps", "a larger data.batch_size; or fewer processes on these CPUs"),
}


class Verdict(NamedTuple):
    """The bottleneck, its evidence, and the advice."""

    kind: Kind
    stage: str  # "" if it is none, or not known
    headline: str
    because: str
    advice: str


class StageCost(NamedTuple):
    """Time that a stage adds to the chain before it: medians over the turns."""

    name: str
    us: float  # wall time per image
    cpu_us: float  # CPU time per image, of all threads


NOT_MEASURED = StageCost("", 0.0, 0.0)


class ChainFigures(NamedTuple):
    """Measurements of a pipeline by bench."""

    data: DataConfig
    cpus: int  # CPUs that the process may use
    threads: int  # threads of the pipeline
    reads: int  # images read at once
    busy: float  # CPUs kept busy
    wanted: float  # CPUs that would have been busy if they had been free
    cpu_us: float  # CPU time per image
    stages: Sequence[StageCost]  # () if not measured


class Use(NamedTuple):
    """Utilisation of the resource of a stage."""

    kind: Kind
    stage: str
    of: float  # utilisation; 1: fully used all the time
    because: str


def diagnose_chains(figures: ChainFigures) -> Verdict:
    """Finds the bottleneck (CPUs, too few images at once, or waiting), its stage, and the key to change."""
    data, stages = figures.data, figures.stages
    usable = min(figures.threads, figures.cpus)
    unit = "thread" if figures.threads == usable else "CPU"
    evidence = f"{figures.busy:.2f} of {counted(usable, unit)} busy"
    dearest = max(stages, key=lambda stage: stage.cpu_us, default=NOT_MEASURED)
    total = sum(max(0.0, stage.cpu_us) for stage in stages)
    share = f"; it takes {100 * dearest.cpu_us / total:.0f} % of an image's CPU time" if stages else ""
    if figures.wanted >= BUSY * usable:
        if figures.busy < BUSY * usable:
            evidence += f" and {figures.wanted - figures.busy:.2f} waiting for a CPU that other processes have"
        return _bottleneck("cpu", dearest.name, evidence + share, _cpu_advice(figures, dearest))
    key = "data.parallel.decode" if data.parallel.decode else "data.num_parallel_readers"
    decoders = data.parallel.decode or data.num_parallel_readers
    if isinstance(decoders, int) and decoders < usable and figures.wanted >= BUSY * decoders:
        advice = f'{key} is {decoders}: raise it to {usable}, or to "auto"'
        return _bottleneck("calls", dearest.name, evidence + share, advice)
    slowest = max(stages, key=lambda stage: stage.us - stage.cpu_us / usable, default=NOT_MEASURED)
    if slowest is NOT_MEASURED:
        return _bottleneck("wait", "", f"{evidence}, so it waits for something else", "--stages says at which stage")
    waiting = f"{evidence}; {slowest.us:.0f} us an image, of which {max(0.0, slowest.cpu_us):.0f} us take a CPU"
    return _bottleneck("wait", slowest.name, waiting, _wait_advice(figures, slowest))


def _bottleneck(kind: Kind, stage: str, because: str, advice: str) -> Verdict:
    kinds = {"cpu": "CPU", "calls": "too few images at once", "wait": "waiting"}
    return Verdict(kind, stage, f"by {stage or kinds[kind]}", because, advice)


def _cpu_advice(figures: ChainFigures, top: StageCost) -> str:
    data, cpus, threads = figures.data, figures.cpus, figures.threads
    if data.num_parallel_readers == 1 and cpus > 1:
        return f'data.num_parallel_readers is 1, which is one thread of {cpus}: set it to "auto"'
    if threads < cpus:
        return f"data.threads is {data.threads}, and this process may use {counted(cpus, 'CPU')}: null takes all"
    all_busy = "every CPU it may use is busy: give the rank more CPUs, or less work an image"
    if top is NOT_MEASURED:
        return f"{all_busy}; --stages says where the time goes"
    if top.name != "crop":
        return REMEDIES["transform"] if top.name == "transform" else all_busy
    return f"{all_busy}; {INDEX}; or {STORED}: a trace (--profile 10:30) tells whether XMLs or images take the time"


def _wait_advice(figures: ChainFigures, top: StageCost) -> str:
    data, reads = figures.data, figures.reads
    if top.name == "read":
        if data.num_parallel_readers == 1:
            return 'it waits for storage one file at a time: set data.num_parallel_readers to "auto"'
        # As many reads as keep all CPUs busy: a file's latency / reads = an image's CPU time / CPUs.
        wanted = max(2 * reads, math.ceil(reads * top.us / (figures.cpu_us / figures.cpus)))
        return f"it waits for storage: data.parallel.read={min(MOST_READS, wanted)}; or a copy on local disks"
    if top.name in ("batch", "prefetch") and data.prefetch_buffer_size == 0:
        return 'data.prefetch_buffer_size is 0: set it to "auto"'
    if top.name == "transform":
        return f"Python functions within data.transform run one at a time: {REMEDIES['transform']}"
    return "it waits neither for a file nor for a CPU: the Python that takes the batches may be what is slow"


def diagnose_run(run: Run) -> Verdict:
    """Returns the main bottleneck of a run."""
    if not run.has_figures:
        return Verdict(
            "none",
            "",
            "NOTHING MEASURED: the run has no finished interval and no trace",
            "it has ended, or is, before its first interval; events.jsonl has the reason, if it has failed",
            "training.interval is how many steps one has; --resume auto continues the run",
        )
    wait = run.wait_fraction
    verdict = _straggler(run) or _too_many_threads(run) or _other_part(run)
    if verdict is not None:
        return verdict
    if wait < WAITS:
        return _noisy_neighbour(run) or Verdict(
            "compute",
            "",
            f"COMPUTE-BOUND: a step waits {100 * wait:.1f} % of its time for input",
            f"{_account(run)}no work on the input pipeline can win more than {100 * wait:.1f} %",
            "a larger data.batch_size, training.precision, a faster device; data.threads below 1 leaves some of "
            "the CPUs to a model that trains on them",
        )
    headline = f"INPUT-BOUND: a step waits {100 * wait:.0f} % of its time for input"
    if wait < 1:
        headline += f"; with faster input it could run up to {1 / (1 - wait):.1f} times as fast"
    top = max(uses(run), key=lambda use: use.of, default=None)
    if top is None or (run.trace is None and top.of < BUSY):
        busiest = "" if top is None else f"{top.because}, and "
        return Verdict("input", "", headline, f"{busiest}no trace says at which stage", "record one: --profile 10:20")
    return Verdict(top.kind, top.stage, headline, top.because, _advice(top, run))


def _other_part(run: Run) -> Verdict | None:
    """Returns a verdict if neither input nor model, but another part of a step takes long; else None."""
    parts, wait = run.parts, run.wait_fraction
    step_ms = sum(parts.values())
    # In the allreduce a rank may wait for another one's input.
    kinds = [kind for kind in PART_VERDICTS if kind != "reduce" or wait < WAITS]
    shares: dict[Kind, float] = {kind: parts[kind] / step_ms for kind in kinds} if step_ms else {}
    kind = max(shares, key=lambda each: shares[each], default=None)
    if kind is None or shares[kind] < max(NOTED, wait):
        return None
    share, (what, advice) = shares[kind], PART_VERDICTS[kind]
    longest, spent_ms = next(iter(run.callbacks.items()), ("", 0.0))
    if kind == "callbacks" and spent_ms > parts[kind] / 2:
        advice = f"{longest}: less work in each batch"
    headline = f"{what} {'take' if kind == 'callbacks' else 'takes'} {100 * share:.0f} % of a step's time"
    if share < 1:
        headline += f"; without, it could run up to {1 / (1 - share):.1f} times as fast"
    return Verdict(kind, "", headline, _account(run).removesuffix("; "), advice)


def _account(run: Run) -> str:
    """Returns the parts of a step, which add up to it, as text that another may follow; "" if they are not known."""
    parts = run.parts
    if not parts:
        return ""
    several = len(run.intervals[-1]["ranks"]) > 1
    shown = [f"{name} {mean_ms:.1f}" for name, mean_ms in parts.items() if several or name != "reduce"]
    return f"of a step's {sum(parts.values()):.1f} ms: {', '.join(shown)}; "


def uses(run: Run) -> list[Use]:
    """Returns the utilisation of storage, CPUs and Python by the stages of a trace, or of the intervals."""
    result, total_s = list[Use](), run.total("seconds") if run.trace is None else run.trace.seconds
    for stage in run.stages:
        if stage.name == "read":
            busy = stage.busy_s / total_s
            because = f"read: on average {busy:.1f} of {run.reads} reads at once under way"
            because += f", {1000 * stage.busy_s / stage.calls:.1f} ms an image" if stage.calls else ""
            result.append(Use("storage", "read", busy / run.reads, because))
    for by_python in (False, True):
        stages = [stage for stage in run.stages if stage.by_python == by_python and stage.name != "read"]
        all_s = sum(stage.busy_s for stage in stages)
        if not all_s:
            continue
        top, busy = max(stages, key=lambda stage: stage.busy_s), all_s / total_s
        if by_python:
            because = f"{top.name} calls Python, which runs one thread at a time: on average {busy:.2f} calls under way"
            result.append(Use("python", top.name, busy, because))
        else:
            kinds: dict[str, Kind] = {"parse": "xml", "transform": "transform"}
            because = f"{top.name}: {busy:.2f} of {counted(run.threads, 'pipeline thread')} busy, "
            because += f"{100 * top.busy_s / all_s:.0f} % of it with {top.name}"
            result.append(Use(kinds.get(top.name, "decode"), top.name, busy / run.threads, because))
    return result


def _advice(use: Use, run: Run) -> str:
    data = run.data
    if data is not None and data.num_parallel_readers == 1 and use.kind in ("storage", "decode", "xml"):
        return 'data.num_parallel_readers is 1, so that images are read and decoded one after the other: "auto"'
    if use.kind == "storage":
        reads = min(MOST_READS, 2 * run.reads)
        more = f"data.parallel.read={reads} if the storage gives more when asked for more at once"
        near = "" if data is not None and data.cache else "data.cache keeps files near after the first epoch; "
        return f"{more}; {near}or a copy on local disks"
    if use.kind == "python" and use.stage == "transform":
        return "write data.transform in TensorFlow's ops, without numpy_function or py_function"
    return REMEDIES.get(use.stage, CPUS)


def _straggler(run: Run) -> Verdict | None:
    straggling = describe_stragglers(run.intervals)
    if straggling is None or straggling.fixed is None:
        return None
    rank, host, _, part = straggling.fixed
    what = {
        "input": f"compare its way to the data with another's by tfpipe bench, or trace it: --profile-ranks {rank}",
        "transfer": "look at the link to its GPU",
        "compute": "look at what else runs there, at its clock and at its binding to CPUs",
        "callbacks": 'callbacks[].ranks "first" puts a callback on rank 0 alone: less work in each batch there',
        "rest": "look at what else runs there, and at its binding to CPUs",
    }
    headline = f"STRAGGLER: all ranks wait for rank {rank}"
    return Verdict("straggler", "", headline, str(straggling), f"the node {host}: {what[part]}")


def _too_many_threads(run: Run) -> Verdict | None:
    """Returns a verdict if the config gives the pipeline more threads than CPUs, and they slow the run; else None."""
    data, load = run.data, run.load
    if data is None or load is None or load.queued < CROWDED or data.threads is None or data.threads <= load.cores:
        return None
    waiting = math.floor(load.queued * load.cores)
    return Verdict(
        "threads",
        "",
        f"TOO MANY THREADS: {waiting} more than the {counted(load.cores, 'CPU')} that this rank may use could have run",
        "they take turns, and the model's own threads wait for theirs",
        f"data.threads is {data.threads}: null gives as many as there are CPUs",
    )


def _noisy_neighbour(run: Run) -> Verdict | None:
    """Returns a verdict if the pipeline takes the CPUs of a model that does not wait for it; else None."""
    data, load = run.data, run.load
    if data is None or load is None:
        return None
    if load.busy < BUSY or load.queued < QUEUED or load.pipeline < TAKEN_SHARE * load.cores:
        return None
    return Verdict(
        "neighbour",
        "",
        f"NOISY NEIGHBOUR: a step waits {100 * run.wait_fraction:.1f} % of its time for input, but its model and the "
        "pipeline take turns on the same CPUs",
        f"{100 * load.busy:.0f} % of {counted(load.cores, 'CPU')} busy, {load.queued * load.cores:.1f} more threads "
        f"could have run all the time; the pipeline's threads keep {load.pipeline:.1f} CPUs, or wait for them",
        f"{SWEEP} finds the share of the CPUs that gives the most steps/s (now {data.threads or 'null'}), compared "
        "with steps fed from memory",
    )
