"""The page of tune."""

from statistics import median

from tfpipe.tools.page.figures import COLOURS, GRAY, Figure, Value, bar_figure
from tfpipe.tools.page.page import Given, Page
from tfpipe.tools.tune.tune import Tuning, arguments, beside, render, together

BLUE, ORANGE, GREEN = COLOURS[:3]


def page(tuning: Tuning, given: Given) -> Page:
    """Returns the page of a search: the arguments to use, the ratio of each trial, its text."""
    points = [("together", together(tuning))]
    points += [
        ("besides", f"{beside(name, given.path)}: x {median(each):.2f}") for name, each in tuning.besides.items()
    ]
    return given.page(arguments(tuning))._replace(
        points=points, figures=_figures(tuning), printed=render(tuning, given.path)
    )


def _figures(tuning: Tuning) -> list[Figure]:
    trials = [
        Value(
            " ".join(f"{key}={value}" for key, value in trial.change),
            trial.ratio,
            (min(trial.ratios), max(trial.ratios)),
            GREEN if trial.kept else GRAY,
        )
        for _, of_move in tuning.trials
        for trial in of_move
    ]
    besides = [
        Value(name, median(ratios), (min(ratios), max(ratios)), ORANGE) for name, ratios in tuning.besides.items()
    ]
    rates = [
        Value(name, median(rates), (min(rates), max(rates)), colour)
        for name, rates, colour in (("at the start", tuning.start, GRAY), ("at the end", tuning.end, GREEN))
    ]
    text = "The rate of each setting that was tried, divided by that of the setting before it. Lines are the range."
    legend = {"kept": GREEN, "not kept": GRAY, "costs a file or memory": ORANGE}
    found = [bar_figure("trials", "Trials", [*trials, *besides], "times", text, legend)] if trials or besides else []
    if tuning.setting:
        text = "The start and the end, in turns. Bars are medians, lines their range."
        found.append(bar_figure("gain", "All changes together", rates, "crops/s", text, {}))
    return found
