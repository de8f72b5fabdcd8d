"""Formats what tune has found as text and as JSON."""

from pathlib import Path
from typing import Any

from tfpipe.tools.tune.moves import flags
from tfpipe.tools.tune.search import GAIN, Trial
from tfpipe.tools.tune.tune import Tuning


def render(tuning: Tuning, config: Path) -> str:
    """Returns what each change gave, the gain of all together, and, as the last line, the arguments to use."""
    lines = []
    for name, trials in tuning.trials:
        kept = [trial for trial in trials if trial.kept]
        others = ", ".join(f"{_value(trial)} x {trial.ratio:.2f}" for trial in trials if not trial.kept)
        if kept:
            lines.append(f"kept      {_value(kept[0], with_key=True)}: x {kept[0].ratio:.2f}{_aside(others)}")
        else:
            lines.append(f"no gain   {name}: {others}")
    if not tuning.in_time:
        lines.append("          the rest was not tried: the time was up (--minutes)")
    gain, low, high = tuning.gain
    extent = f"({low:.2f} to {high:.2f}), in {len(tuning.start)} turns from {tuning.start_rate:.0f} crops/s"
    if tuning.setting:
        lines.append(f"together  x {gain:.2f} {extent}{_steps(tuning)}")
    elif tuning.rejected:
        lines.append(
            f"together  x {gain:.2f} {extent}{_steps(tuning)}: not faster than at the start, so nothing is changed"
        )
    else:
        lines.append(f"together  nothing won {100 * GAIN:.0f} %: the setting is as fast as any that was tried")
    lines += [f"besides   {line}" for line in _besides(tuning, config)]
    return "\n".join([*lines, "", flags(tuning.setting) or "change nothing"])


def as_json(tuning: Tuning) -> dict[str, Any]:
    """Returns all raw and derived numbers; rates in crops/s."""
    return {
        "setting": dict(tuning.setting),
        "gain": tuning.gain._asdict(),
        "start_crops_per_second": tuning.start,
        "end_crops_per_second": tuning.end,
        "step_ratios": tuning.steps,
        "trials": [
            {"key": name, "change": dict(trial.change), "ratios": trial.ratios, "kept": trial.kept}
            for name, trials in tuning.trials
            for trial in trials
        ],
        "besides": dict(tuning.besides),
        "in_time": tuning.in_time,
    }


def _value(trial: Trial, with_key: bool = False) -> str:
    if with_key or len(trial.change) > 1:
        return ", ".join(f"{key}={value}" for key, value in trial.change)
    return trial.change[0][1]


def _aside(others: str) -> str:
    return f" (others: {others})" if others else ""


def _steps(tuning: Tuning) -> str:
    return "" if tuning.steps is None else f", training steps x {tuning.step_gain:.2f}"


def _besides(tuning: Tuning, config: Path) -> list[str]:
    texts = {
        "index": f"tfpipe index -c {config}, once: no XML is opened or parsed any more",
        "cache": "--set data.cache=memory, or a folder on a local disk: epochs after the first",
    }
    return [
        f"{texts[name]}: x {tuning.median_of(name):.2f}{'' if tuning.pays(name) else ', no gain'}"
        for name in tuning.besides
    ]
