"""What bench found, as text and as JSON."""

import dataclasses
from typing import Any

from tfpipe.tools.bench import LIMIT, PIPELINE, SERIAL, Report
from tfpipe.tools.bench_bound import bound, costs, cpu_ratio, limit_rate, ratio
from tfpipe.tools.bench_measure import Spread, spread


def render(report: Report) -> str:
    """All of it, the pipeline's images/s on the last line."""
    parts = [_facts(report), _rates(report)]
    if report.stages:
        parts += [_stages(report), _pieces(report)]
    parts += [_tuned(report), _bound(report), f"images_per_second: {_rate(report, PIPELINE).median:.1f}"]
    return "\n\n".join(parts)


def as_json(report: Report) -> dict[str, Any]:
    """Every raw number, and what was worked out from them; rates in images/s, times in seconds or as named."""
    found = {
        "images_per_second": _rate(report, PIPELINE).median,
        "crops_per_second": _crops(report).median,
        "limit_images_per_second": limit_rate(report).median,
        "ratio_to_limit": ratio(report, PIPELINE, LIMIT, report.machine.cpus).median,
        "cpu_ratio_to_limit": cpu_ratio(report).median,
        "rates": {name: _rate(report, name)._asdict() for name in report.segments},
        "costs": [cost._asdict() for cost in costs(report)],
        "bound": bound(report)._asdict(),
    }
    if SERIAL in report.segments:
        found["ratio_to_serial"] = ratio(report, PIPELINE, SERIAL).median
    plain = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    plain["machine"] = dataclasses.asdict(report.machine)
    plain["data"] = report.data.model_dump(mode="json")
    plain["segments"] = {name: [dataclasses.asdict(each) for each in of] for name, of in report.segments.items()}
    plain["tuned"] = [each._asdict() for each in report.tuned]
    return {**found, **plain}


def _facts(report: Report) -> str:
    machine, data = report.machine, report.data
    height, width = data.crop_image_size
    return "\n".join(
        [
            f"machine   {machine.cpus} of {machine.host_cpus} CPUs, {machine.threads} pipeline threads, "
            f"TensorFlow {machine.tensorflow}",
            f"pipeline  {report.images} images, {data.crop} crops of {height}x{width}x{data.num_channels} "
            f"{data.dtype}, batches of {data.batch_size}, readers {data.num_parallel_readers}, "
            f"prefetch {data.prefetch_buffer_size}",
            f"start     filelist and labels {report.catalog_s:.2f} s, first batch {report.first_batch_s[0]:.2f} s "
            "later; in no rate",
        ]
    )


def _rates(report: Report) -> str:
    machine = report.machine
    segments = report.segments[PIPELINE]
    each = f"{len(segments)} segments of {sum(segment.seconds for segment in segments) / len(segments):.1f} s"
    lines = [f"{'':22}{'images/s':>10}{'min to max':>20}", _row(PIPELINE, _rate(report, PIPELINE), f"  ({each})")]
    crops, busy = _crops(report), spread([segment.busy for segment in segments])
    lines += [_row("  in crops/s", crops), _row("  CPUs busy", busy, digits=2)]
    made_of = f"  (1 thread of {report.limit_made_of}, {report.limit_images} files in memory, x {machine.cpus} CPUs)"
    lines += [
        _row("limit", limit_rate(report), made_of),
        _row("pipeline / limit", ratio(report, PIPELINE, LIMIT, machine.cpus), digits=2),
        _row("  of CPU time", cpu_ratio(report), "  (images a CPU second; other processes count less)", digits=2),
    ]
    if report.limit_note:
        lines.append(f"  the limit is {report.limit_note}")
    if SERIAL in report.segments:
        serial = "  (data.num_parallel_readers=1, data.prefetch_buffer_size=0)"
        lines += [
            _row(SERIAL, _rate(report, SERIAL), serial),
            _row("pipeline / serial", ratio(report, PIPELINE, SERIAL), digits=2),
        ]
    return "\n".join(lines)


def _stages(report: Report) -> str:
    lines = [f"{'chain up to':22}{'images/s':>10}{'min to max':>20}{'CPUs busy':>11}   {'stage: us':>10}{'CPU us':>8}"]
    for name, cost in zip(report.stages, costs(report), strict=True):
        busy = spread([segment.busy for segment in report.segments[name]]).median
        row = _row(cost.name, _rate(report, name))
        lines.append(f"{row}{busy:11.2f}   {cost.us:10.1f}{cost.cpu_us:8.1f}")
    lines.append(
        "A stage's own us (wall) and CPU us (all threads) an image: this chain less the one above, median of turns."
    )
    return "\n".join(lines)


def _pieces(report: Report) -> str:
    lines = [f"{'alone, from memory':22}{'images/s':>10}{'min to max':>20}{'':24}{'CPU us':>8}"]
    for name in report.pieces:
        cpu_us = spread([segment.cpu_us for segment in report.segments[name]]).median
        lines.append(f"{_row(name, _rate(report, name))}{'':24}{cpu_us:8.1f}")
    lines.append("Pieces of crop, over whole images: crop itself decodes and resizes its windows alone.")
    return "\n".join(lines)


def _tuned(report: Report) -> str:
    if not report.tuned:
        return "AUTOTUNE  chose nothing (switched off, or every number is given)"
    units = {"parallelism": "at once", "buffer_size": "buffered"}
    chosen = [f"{each.stage} {each.value:.0f} {units.get(each.parameter, each.parameter)}" for each in report.tuned]
    return f"AUTOTUNE  chose {', '.join(chosen)}"


def _bound(report: Report) -> str:
    found = bound(report)
    kinds = {"cpu": "CPU", "readers": "too few readers", "wait": "waiting"}
    return f"bound     by {found.stage or kinds[found.kind]}: {found.because}\n          {found.advice}"


def _rate(report: Report, name: str) -> Spread:
    return spread([segment.images_per_second for segment in report.segments[name]])


def _crops(report: Report) -> Spread:
    return spread([segment.crops_per_second for segment in report.segments[PIPELINE]])


def _row(name: str, value: Spread, note: str = "", digits: int = 0) -> str:
    extent = f"{value.low:.{digits}f} to {value.high:.{digits}f}"
    return f"{name:22}{value.median:10.{digits}f}{extent:>20}{note}"
