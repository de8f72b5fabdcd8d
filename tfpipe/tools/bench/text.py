"""Formats bench's reports as text and as JSON."""

import dataclasses
from statistics import fmean, median
from typing import Any

from tfpipe.config import DataConfig
from tfpipe.config.model import without_options
from tfpipe.errors import counted
from tfpipe.tools.bench.bench import LIMIT, PIPELINE, Report
from tfpipe.tools.bench.headspace import REPLAY, TRAINING
from tfpipe.tools.bench.machine import Machine
from tfpipe.tools.bench.ranks import RanksReport
from tfpipe.tools.measure import Spread, spread, spread_of
from tfpipe.tools.report.diagnosis import diagnose_chains
from tfpipe.util.console import describe_autotune, extent, line

WIDTHS = (22, 10, 20)
HEADER = line(WIDTHS, "", "images/s", "min to max")
CPU_SECOND = "  (images a CPU second; other processes count less)"
# Images of an epoch of ImageNet; images/s that an H200 trains of ResNet-50 in bf16 (profiles/training.md).
IMAGENET, H200 = 1_281_167, 4_717


def render(report: Report | RanksReport) -> str:
    """Returns the report as text; the last line is the pipeline's images/s over all ranks."""
    if isinstance(report, RanksReport):
        return _ranks(report)
    bound = diagnose_chains(report.figures)
    parts = [_start(report), _rates(report)]
    if report.stages:
        parts.append(_stages(report))
    if TRAINING in report.segments:
        parts.append(_headspace(report))
    choices = describe_autotune((knob.stage, knob.parameter, knob.value) for knob in report.tuned)
    parts.append(f"AUTOTUNE  chose {choices or 'nothing (switched off, or every number is given)'}")
    parts.append(f"bound     {bound.headline}: {bound.because}\n          {bound.advice}")
    rate = report.spread(PIPELINE).median
    epoch = f"an epoch of ImageNet, {IMAGENET:,} images, in {IMAGENET / rate / 60:.1f} min"
    feeds = f"feeds     {epoch}; {rate / H200:.2g} of an H200 that trains ResNet-50"
    return "\n\n".join([*parts, feeds, f"images_per_second: {rate:.1f}"])


def as_json(report: Report | RanksReport) -> dict[str, Any]:
    """Returns all raw and derived numbers; rates in images/s, times in seconds unless a name gives another unit."""
    raw = {**dataclasses.asdict(report), "data": without_options(report.data.model_dump(mode="json"))}
    if isinstance(report, RanksReport):
        return {
            "images_per_second": median(report.totals),
            "ratio_to_one_rank": report.ratio.median,
            "cpu_ratio_to_one_rank": report.cpu_ratio.median,
            **raw,
        }
    facts = {
        "images_per_second": report.spread(PIPELINE).median,
        "crops_per_second": report.spread(PIPELINE, "crops_per_second").median,
        "limit_images_per_second": report.machine.cpus * report.spread(LIMIT).median,
        "ratio_to_limit": report.ratio_to_limit.median,
        "cpu_ratio_to_limit": report.ratio(LIMIT, PIPELINE, "cpu_us").median,
        "rates": {name: report.spread(name)._asdict() for name in report.segments},
        "costs": [cost._asdict() for cost in report.costs],
        "bound": diagnose_chains(report.figures)._asdict(),
    }
    if TRAINING in report.segments:
        room = report.headspace
        facts["headspace"] = {key: value._asdict() for key, value in room._asdict().items()} | {"meaning": room.meaning}
    return {**facts, **raw}


def _ranks(report: RanksReport) -> str:
    rate, turns, size = spread(report.totals), len(report.turns), len(report.turns[0])
    seconds = sum(segment.seconds for turn in report.turns for segment in turn) / turns / size
    note = f"  (a rank's median over {counted(turns, 'turn')} of {seconds:.1f} s, all ranks at once)"
    alone = spread_of(report.alone)
    lines = [
        HEADER,
        _row("1 rank", alone, f"  ({_threads(report.machine_alone)})"),
        _row(counted(size, "rank"), rate, f"  ({_threads(report.machine)} each)"),
        _row("  each of them", report.each, note),
        _row(f"{counted(size, 'rank')} / 1 rank", report.ratio, digits=3),
        _row("  of CPU time", report.cpu_ratio, CPU_SECOND, digits=3),
    ]
    facts = _facts(report.machine_alone, report.data)
    return "\n\n".join(["\n".join(facts), "\n".join(lines), f"images_per_second: {rate.median:.1f}"])


def _threads(machine: Machine) -> str:
    return counted(machine.threads, "pipeline thread")


def _facts(machine: Machine, data: DataConfig) -> list[str]:
    several = f" {counted(len(data.by_view), 'view')} of an image," if data.views else ""
    return [
        f"machine   {machine.cpus} of {machine.host_cpus} CPUs, {_threads(machine)}, TensorFlow {machine.tensorflow}",
        *([f"decoder   {machine.decoder}"] if machine.decoder else []),
        f'pipeline {several} "{data.crop_for("train")}" crops of {data.shapes} {data.dtype}, batches of '
        f"{data.batch_size}, readers {data.num_parallel_readers}, prefetch {data.prefetch_buffer_size}",
    ]


def _start(report: Report) -> str:
    catalog, batch = f"{report.catalog_s:.2f} s", f"{report.first_batch_s[0]:.2f} s"
    images = counted(report.images, "image")
    start = f"start     {images}: filelist and labels {catalog}, first batch {batch} later; in no rate"
    before, after = report.memory
    more = f"{(after - before) / 1e6:.0f} MB more than before the list was read"
    memory = f"memory    {after / 1e6:.0f} MB private to this rank, {more}"
    return "\n".join([*_facts(report.machine, report.data), start, memory])


def _rates(report: Report) -> str:
    machine = report.machine
    segments = report.segments[PIPELINE]
    note = f"{counted(len(segments), 'segment')} of {fmean(segment.seconds for segment in segments):.1f} s"
    # The ratio if no other process used the CPUs.
    of_cpu = report.ratio(LIMIT, PIPELINE, "cpu_us")
    files = f"{counted(report.limit.images, 'whole file')} in memory"
    made_of = f"  (libjpeg-turbo + resize, 1 thread, {files}, x {counted(machine.cpus, 'CPU')})"
    lines = [
        HEADER,
        _row(PIPELINE, report.spread(PIPELINE), f"  ({note})"),
        _row("  in crops/s", report.spread(PIPELINE, "crops_per_second")),
        _row("  CPUs busy", report.spread(PIPELINE, "busy"), digits=2),
        _row("limit", Spread(*(machine.cpus * rate for rate in report.spread(LIMIT))), made_of),
        _row("pipeline / limit", report.ratio_to_limit, digits=2),
        _row("  of CPU time", of_cpu, CPU_SECOND, digits=2),
    ]
    if report.limit.skipped:
        lines.append(f"  the limit goes without {counted(report.limit.skipped, 'file')}, not decoded; see tfpipe check")
    return "\n".join(lines)


def _stages(report: Report) -> str:
    widths = (*WIDTHS, 11, 13, 8)
    lines = [line(widths, "chain up to", "images/s", "min to max", "CPUs busy", "stage: us", "CPU us")]
    for name, cost in zip(report.stages, report.costs, strict=True):
        busy = report.spread(name, "busy").median
        figures = f"{busy:.2f}", f"{cost.us:.1f}", f"{cost.cpu_us:.1f}"
        lines.append(line(widths, cost.name, *extent(report.spread(name)), *figures))
    lines.append(
        "A stage's own us (wall) and CPU us (all threads) an image: this chain less the one above, median of turns."
    )
    return "\n".join(lines)


def _headspace(report: Report) -> str:
    room, widths = report.headspace, (*WIDTHS, 11)
    lines = [line(widths, "training step", "ms", "min to max", "images/s")]
    for fed, name, ms in (("by the pipeline", TRAINING, room.step_ms), ("from memory", REPLAY, room.replay_ms)):
        lines.append(line(widths, f"fed {fed}", *extent(ms, 1), f"{report.spread(name).median:.0f}"))
    percent = Spread(*(100 * share for share in room.share))
    note = "  (% of the step's time, the upper bound for any pipeline work)"
    return "\n".join([*lines, _row("headspace", percent, note, digits=1), f"  {room.meaning}"])


def _row(name: str, value: Spread, note: str = "", digits: int = 0) -> str:
    return line(WIDTHS, name, *extent(value, digits), note)
