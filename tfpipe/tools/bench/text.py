"""Formats bench's reports as text and as JSON."""

import dataclasses
from statistics import median
from typing import Any

from tfpipe.config import DataConfig
from tfpipe.tools.bench.bench import LIMIT, PIPELINE, SERIAL, Report
from tfpipe.tools.bench.headspace import REPLAY, TRAINING, Headspace, headspace
from tfpipe.tools.bench.machine import Machine
from tfpipe.tools.bench.ranks import RanksReport
from tfpipe.tools.bench.segments import Spread, spread
from tfpipe.tools.bench.verdict import bound, costs

HEADER = f"{'':22}{'images/s':>10}{'min to max':>20}"
CPU_SECOND = "  (images a CPU second; other processes count less)"


def render(report: Report | RanksReport) -> str:
    """Returns the report as text; the last line is the pipeline's images/s over all ranks."""
    if isinstance(report, RanksReport):
        return _ranks(report)
    parts = [_start(report), _rates(report)]
    if report.stages:
        parts += [_stages(report), _pieces(report)]
    if TRAINING in report.segments:
        parts.append(_headspace(report))
    parts += [_tuned(report), _bound(report), f"images_per_second: {report.spread(PIPELINE).median:.1f}"]
    return "\n\n".join(parts)


def as_json(report: Report | RanksReport) -> dict[str, Any]:
    """Returns all raw and derived numbers; rates in images/s, times in seconds unless a name gives another unit."""
    raw = {**dataclasses.asdict(report), "data": report.data.model_dump(mode="json")}
    if isinstance(report, RanksReport):
        facts: dict[str, Any] = {"images_per_second": median(report.together.totals)}
        if report.ratio is not None and report.cpu_ratio is not None:
            facts |= {"ratio_to_one_rank": report.ratio.median, "cpu_ratio_to_one_rank": report.cpu_ratio.median}
        return {**facts, **raw}
    facts = {
        "images_per_second": report.spread(PIPELINE).median,
        "crops_per_second": report.spread(PIPELINE, "crops_per_second").median,
        "limit_images_per_second": report.machine.cpus * report.spread(LIMIT).median,
        "ratio_to_limit": _ratio_to_limit(report).median,
        "cpu_ratio_to_limit": report.ratio(LIMIT, PIPELINE, "cpu_us").median,
        "rates": {name: report.spread(name)._asdict() for name in report.segments},
        "costs": [cost._asdict() for cost in costs(report)],
        "bound": bound(report)._asdict(),
    }
    if SERIAL in report.segments:
        facts["ratio_to_serial"] = report.ratio(PIPELINE, SERIAL).median
    if TRAINING in report.segments:
        room = _headspace_of(report)
        facts["headspace"] = {key: value._asdict() for key, value in room._asdict().items()} | {"meaning": room.meaning}
    return {**facts, **raw}


def _ranks(report: RanksReport) -> str:
    together, alone = report.together, report.alone
    rate = spread(together.totals)
    seconds = sum(segment.seconds for turn in together.turns for segment in turn) / len(together.turns) / together.size
    note = f"  (a rank's median over {len(together.turns)} turns of {seconds:.1f} s, all ranks at once)"
    lines = [HEADER]
    if alone is not None:
        lines.append(_row("1 rank", spread(alone.totals), f"  ({_threads(alone.machine)})"))
    lines += [
        _row(f"{together.size} ranks", rate, f"  ({_threads(together.machine)} each)"),
        _row("  each of them", together.each, note),
    ]
    if report.ratio is not None and report.cpu_ratio is not None:
        lines += [
            _row(f"{together.size} ranks / 1 rank", report.ratio, digits=3),
            _row("  of CPU time", report.cpu_ratio, CPU_SECOND, digits=3),
        ]
    facts = _facts((alone or together).machine, report.data)
    return "\n\n".join(["\n".join(facts), "\n".join(lines), f"images_per_second: {rate.median:.1f}"])


def _threads(machine: Machine) -> str:
    return f"{machine.threads} pipeline thread{'s' if machine.threads > 1 else ''}"


def _facts(machine: Machine, data: DataConfig) -> list[str]:
    height, width = data.crop_image_size
    return [
        f"machine   {machine.cpus} of {machine.host_cpus} CPUs, {_threads(machine)}, TensorFlow {machine.tensorflow}",
        *([f"decoder   {machine.decoder}"] if machine.decoder else []),
        f"pipeline  {data.crop} crops of {height}x{width}x{data.num_channels} {data.dtype}, batches of "
        f"{data.batch_size}, readers {data.num_parallel_readers}, prefetch {data.prefetch_buffer_size}",
    ]


def _start(report: Report) -> str:
    catalog, batch = f"{report.catalog_s:.2f} s", f"{report.first_batch_s[0]:.2f} s"
    start = f"start     {report.images} images: filelist and labels {catalog}, first batch {batch} later; in no rate"
    before, after = report.memory
    more = f"{(after - before) / 1e6:.0f} MB more than before the list was read"
    memory = f"memory    {after / 1e6:.0f} MB private to this rank, {more}"
    return "\n".join([*_facts(report.machine, report.data), start, memory])


def _rates(report: Report) -> str:
    machine = report.machine
    segments = report.segments[PIPELINE]
    note = f"{len(segments)} segments of {sum(segment.seconds for segment in segments) / len(segments):.1f} s"
    # The ratio if no other process used the CPUs.
    of_cpu = report.ratio(LIMIT, PIPELINE, "cpu_us")
    files = f"{report.limit.images} whole files in memory"
    made_of = f"  (libjpeg-turbo + resize, 1 thread, {files}, x {machine.cpus} CPUs)"
    lines = [
        HEADER,
        _row(PIPELINE, report.spread(PIPELINE), f"  ({note})"),
        _row("  in crops/s", report.spread(PIPELINE, "crops_per_second")),
        _row("  CPUs busy", report.spread(PIPELINE, "busy"), digits=2),
        _row("limit", Spread(*(machine.cpus * rate for rate in report.spread(LIMIT))), made_of),
        _row("pipeline / limit", _ratio_to_limit(report), digits=2),
        _row("  of CPU time", of_cpu, CPU_SECOND, digits=2),
    ]
    if report.limit.skipped:
        lines.append(f"  the limit goes without {report.limit.skipped} files that cannot be decoded; see tfpipe check")
    if SERIAL in report.segments:
        serial = "  (data.num_parallel_readers=1, data.prefetch_buffer_size=0)"
        lines += [
            _row(SERIAL, report.spread(SERIAL), serial),
            _row("pipeline / serial", report.ratio(PIPELINE, SERIAL), digits=2),
        ]
    return "\n".join(lines)


def _stages(report: Report) -> str:
    lines = [f"{'chain up to':22}{'images/s':>10}{'min to max':>20}{'CPUs busy':>11}   {'stage: us':>10}{'CPU us':>8}"]
    for name, cost in zip(report.stages, costs(report), strict=True):
        busy = report.spread(name, "busy").median
        lines.append(f"{_row(cost.name, report.spread(name))}{busy:11.2f}   {cost.us:10.1f}{cost.cpu_us:8.1f}")
    lines.append(
        "A stage's own us (wall) and CPU us (all threads) an image: this chain less the one above, median of turns."
    )
    return "\n".join(lines)


def _pieces(report: Report) -> str:
    lines = [f"{'alone, from memory':22}{'images/s':>10}{'min to max':>20}{'':24}{'CPU us':>8}"]
    for name in report.pieces:
        cpu_us = report.spread(name, "cpu_us").median
        lines.append(f"{_row(name, report.spread(name))}{'':24}{cpu_us:8.1f}")
    lines.append("Pieces of crop, over whole images: crop itself resizes its windows alone.")
    return "\n".join(lines)


def _headspace(report: Report) -> str:
    room = _headspace_of(report)
    lines = [f"{'training step':22}{'ms':>10}{'min to max':>20}{'images/s':>11}"]
    for fed, name, ms in (("by the pipeline", TRAINING, room.step_ms), ("from memory", REPLAY, room.replay_ms)):
        lines.append(f"{_row(f'fed {fed}', ms, digits=1)}{report.spread(name).median:11.0f}")
    percent = Spread(*(100 * share for share in room.share))
    lines += [
        _row("headspace", percent, "  (% of the step's time, the upper bound for any pipeline work)", digits=1),
        f"  {room.meaning}",
    ]
    return "\n".join(lines)


def _headspace_of(report: Report) -> Headspace:
    return headspace(report.segments[TRAINING], report.segments[REPLAY], report.data.batch_size)


def _tuned(report: Report) -> str:
    if not report.tuned:
        return "AUTOTUNE  chose nothing (switched off, or every number is given)"
    units = {"parallelism": "at once", "buffer_size": "buffered"}
    chosen = [f"{knob.stage} {knob.value:.0f} {units.get(knob.parameter, knob.parameter)}" for knob in report.tuned]
    return f"AUTOTUNE  chose {', '.join(chosen)}"


def _bound(report: Report) -> str:
    result = bound(report)
    kinds = {"cpu": "CPU", "calls": "too few images at once", "wait": "waiting"}
    return f"bound     by {result.stage or kinds[result.kind]}: {result.because}\n          {result.advice}"


def _ratio_to_limit(report: Report) -> Spread:
    return report.ratio(PIPELINE, LIMIT, times=report.machine.cpus)


def _row(name: str, value: Spread, note: str = "", digits: int = 0) -> str:
    extent = f"{value.low:.{digits}f} to {value.high:.{digits}f}"
    return f"{name:22}{value.median:10.{digits}f}{extent:>20}{note}"
