"""Formats a sweep as text, as JSON, and as a picture."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.tools.bench.segments import spread
from tfpipe.tools.bench.sweep import AS_GOOD, Sweep


def render(sweep: Sweep) -> str:
    """Returns a table with a line for each setting, the knee, and whether the pipeline slows the training step."""
    names = {setting: _name(sweep, setting) for setting in sweep.settings}
    width = max(24, *map(len, names.values())) + 2
    head = f"{'':{width}}{sweep.unit:>10}{'min to max':>18}{'of best':>9}{'threads':>9}"
    head += "" if sweep.memory is None else f"{'wait':>8}{'of memory':>11}"
    lines = [head]
    for setting, threads in zip(sweep.settings, sweep.threads, strict=True):
        rate, digits = spread(sweep.rates(setting)), 0 if sweep.memory is None else 2
        extent = f"{rate.low:.{digits}f} to {rate.high:.{digits}f}"
        line = f"{names[setting]:{width}}{rate.median:10.{digits}f}{extent:>18}"
        line += f"{sweep.ratio(setting, sweep.best).median:9.2f}{threads:9}"
        of_memory = sweep.of_memory(setting)
        if of_memory is not None:
            wait = spread([segment.wait_share for segment in sweep.segments[setting]]).median
            line += f"{100 * wait:6.0f} %{of_memory.median:11.2f}"
        lines.append(f"{line}{'   <- knee' if setting == sweep.knee else ''}")
    turns = len(sweep.segments[sweep.best])
    lines.append(f"Medians of {turns} turns, in which all settings alternate; ratios turn by turn.")
    return "\n\n".join(["\n".join(lines), *_conclusions(sweep)])


def _conclusions(sweep: Sweep) -> list[str]:
    best, knee, share = sweep.best, sweep.knee, f"{100 * AS_GOOD:.0f} %"
    flags = " ".join(f"--set {key}={value}" for key, value in zip(sweep.keys, knee, strict=True))
    if knee == best:
        lines = [f"knee      {flags}: no setting before it comes within {share} of it"]
    else:
        ratio = sweep.ratio(knee, best).median
        lines = [
            f"knee      {flags}: {ratio:.2f} of the best, {_name(sweep, best)}; less than {share} is won beyond it"
        ]
    fullest = max(zip(sweep.threads, sweep.settings, strict=True))[1]
    room = sweep.headspace(fullest)
    if room is not None and room.is_noisy:
        gain = sweep.ratio(best, fullest)
        lines.append(
            f"NOISY NEIGHBOUR: at {_name(sweep, fullest)} a step waits {100 * room.wait.median:.0f} % of its time, and "
            f"is still {100 * room.share.median:.0f} % slower than from memory:\nthe pipeline takes the model's CPUs. "
            f"{_name(sweep, best)} gives x {gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f}) of its steps/s"
        )
    return lines


def as_json(sweep: Sweep) -> dict[str, Any]:
    """Returns all raw and derived numbers; rates in the sweep's unit."""
    return {
        "keys": sweep.keys,
        "unit": sweep.unit,
        "best": sweep.best,
        "knee": sweep.knee,
        "settings": [
            {
                "values": setting,
                "rate": spread(sweep.rates(setting))._asdict(),
                "of_best": sweep.ratio(setting, sweep.best)._asdict(),
                "threads": threads,
                "segments": [dataclasses.asdict(segment) for segment in sweep.segments[setting]],
            }
            for setting, threads in zip(sweep.settings, sweep.threads, strict=True)
        ],
        "memory": None if sweep.memory is None else [dataclasses.asdict(segment) for segment in sweep.memory],
    }


def plot(sweep: Sweep, path: Path) -> None:
    """Draws the rates over the first key's values, a line for each value of the second, with the knee marked.

    Raises ConfigError if matplotlib is not installed, or `path` cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"--plot needs matplotlib ({error}): pip install 'tfpipe[profile]'") from error
    figure = Figure((7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    values = list(dict.fromkeys(setting[0] for setting in sweep.settings))
    for rest in dict.fromkeys(setting[1:] for setting in sweep.settings):
        rates = [spread(sweep.rates((value, *rest))) for value in values]
        errors = [[rate.median - rate.low for rate in rates], [rate.high - rate.median for rate in rates]]
        label = f"{sweep.keys[1]}={_plain(rest[0])}" if rest else None
        medians = [rate.median for rate in rates]
        axes.errorbar(range(len(values)), medians, yerr=errors, marker="o", capsize=3, label=label)
    knee = spread(sweep.rates(sweep.knee)).median
    axes.plot(values.index(sweep.knee[0]), knee, "o", ms=14, mfc="none", mec="#c44e52", label="knee")
    if sweep.memory is not None:
        memory = spread([segment.crops_per_second / sweep.batch_size for segment in sweep.memory]).median
        axes.axhline(memory, color="#8c8c8c", ls="--", label="from memory")
    axes.set_xticks(range(len(values)), list(map(_plain, values)))
    axes.set_xlabel(sweep.keys[0])
    axes.set_ylabel(f"{sweep.unit}, median and range")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from error


def _name(sweep: Sweep, setting: tuple[str, ...]) -> str:
    return " ".join(f"{key}={_plain(value)}" for key, value in zip(sweep.keys, setting, strict=True))


def _plain(value: str) -> str:
    try:
        loaded = json.loads(value)
    except ValueError:
        return value
    return loaded if isinstance(loaded, str) else value
