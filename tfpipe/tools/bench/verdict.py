"""Derives the cost of each stage and the bottleneck of the pipeline from bench's segments."""

import math
from typing import NamedTuple

from tfpipe.tools.bench.bench import PIPELINE, Report
from tfpipe.tools.bench.segments import spread

# A pipeline whose threads are at least this busy is bound by CPUs.
BUSY = 0.8
# More concurrent reads seldom gain anything from a disk or a file server.
MOST_READS = 256


class StageCost(NamedTuple):
    """Time that a stage adds to the chain before it: medians over the turns."""

    name: str
    us: float  # wall time per image
    cpu_us: float  # CPU time per image, of all threads


NOT_MEASURED = StageCost("", 0.0, 0.0)


class Bound(NamedTuple):
    """The bottleneck of the pipeline, its evidence, and the advice."""

    kind: str  # "cpu", "calls" (too few images at once) or "wait"
    stage: str  # "" if stages were not measured
    because: str
    advice: str


def costs(report: Report) -> list[StageCost]:
    """Computes each stage's cost: the chain with it minus the chain without it, turn by turn."""

    def added(name: str, before: str | None, figure: str) -> float:
        chain = [getattr(segment, figure) for segment in report.segments[name]]
        less = [getattr(segment, figure) for segment in report.segments[before]] if before else [0.0] * len(chain)
        return spread([a - b for a, b in zip(chain, less, strict=True)]).median

    return [
        StageCost("prefetch" if name == PIPELINE else name, added(name, before, "us"), added(name, before, "cpu_us"))
        for before, name in zip((None, *report.stages), report.stages, strict=False)
    ]


def bound(report: Report) -> Bound:
    """Finds the bottleneck (CPUs, too few images at once, or waiting), its stage, and the key to change."""
    stages, data, machine = costs(report), report.data, report.machine
    usable = min(machine.threads, machine.cpus)
    busy, wanted = (report.spread(PIPELINE, figure).median for figure in ("busy", "wanted"))
    unit = "thread" if machine.threads == usable else "CPU"
    evidence = f"{busy:.2f} of {usable} {unit}{'s' if usable > 1 else ''} busy"
    dearest = max(stages, key=lambda stage: stage.cpu_us, default=NOT_MEASURED)
    if wanted >= BUSY * usable:
        if busy < BUSY * usable:
            evidence += f" and {wanted - busy:.2f} waiting for a CPU that other processes have"
        return Bound("cpu", dearest.name, evidence + _share(dearest, stages), _cpu_advice(report, dearest))
    key = "data.parallel.decode" if data.parallel.decode else "data.num_parallel_readers"
    decoders = data.parallel.decode or data.num_parallel_readers
    if isinstance(decoders, int) and decoders < usable and wanted >= BUSY * decoders:
        advice = f'{key} is {decoders}: raise it to {usable}, or to "auto"'
        return Bound("calls", dearest.name, evidence + _share(dearest, stages), advice)
    slowest = max(stages, key=lambda stage: stage.us - stage.cpu_us / usable, default=NOT_MEASURED)
    if slowest is NOT_MEASURED:
        return Bound("wait", "", f"{evidence}, so it waits for something else", "--stages says at which stage")
    waiting = f"{evidence}; {slowest.us:.0f} us an image, of which {max(0.0, slowest.cpu_us):.0f} us take a CPU"
    return Bound("wait", slowest.name, waiting, _wait_advice(report, slowest))


def _share(top: StageCost, stages: list[StageCost]) -> str:
    if top is NOT_MEASURED:
        return ""
    total = sum(max(0.0, stage.cpu_us) for stage in stages)
    return f"; it takes {100 * top.cpu_us / total:.0f} % of an image's CPU time"


def _cpu_advice(report: Report, top: StageCost) -> str:
    machine, data = report.machine, report.data
    if data.num_parallel_readers == 1 and machine.cpus > 1:
        return f'data.num_parallel_readers is 1, which is one thread of {machine.cpus}: set it to "auto"'
    if machine.threads < machine.cpus:
        may = f"and this process may use {machine.cpus} CPUs"
        if data.threads is None:
            return f"data.cpu_fraction is {data.cpu_fraction:g}, {may}: raise it if nothing else needs them"
        return f"data.threads is {machine.threads}, {may}: set it to null"
    all_busy = "every CPU it may use is busy: give the rank more CPUs, or less work an image"
    if top is NOT_MEASURED:
        return f"{all_busy}; --stages says where the time goes"
    if top.name != "crop" or not report.pieces:
        return all_busy
    alone = {name: report.spread(name, "cpu_us").median for name in report.pieces}
    dearest = max(alone, key=alone.__getitem__)
    remedy = {
        "parse XML": 'tfpipe index parses every XML once for all runs, data.unit "box" once a run',
        "decode and resize": "images stored smaller, or packed ahead of time",
    }[dearest]
    return f"{all_busy}; within crop, {dearest} takes most ({alone[dearest]:.0f} us alone): {remedy}"


def _wait_advice(report: Report, top: StageCost) -> str:
    data, machine = report.data, report.machine
    if top.name == "read":
        if data.num_parallel_readers == 1:
            return 'it waits for storage one file at a time: set data.num_parallel_readers to "auto"'
        # As many reads as keep all CPUs busy: a file's latency / reads = an image's CPU time / CPUs.
        cpus_us = report.spread(PIPELINE, "cpu_us").median / machine.cpus
        reads = max(2 * machine.reads, math.ceil(machine.reads * top.us / cpus_us))
        return f"it waits for storage: data.parallel.read={min(MOST_READS, reads)}; or a copy on local disks"
    if top.name in ("batch", "prefetch") and data.prefetch_buffer_size == 0:
        return 'data.prefetch_buffer_size is 0: set it to "auto"'
    return "it waits neither for a file nor for a CPU: the Python that takes the batches may be what is slow"
