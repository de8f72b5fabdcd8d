"""The figures of a run's page."""

import re

import pytest
from lxml import etree

from tfpipe.tools.report.figures import AxisMark, Bar, Line, draw_lines, draw_rows, line_figure, number


@pytest.mark.parametrize(
    ("value", "text"), [(11_463.2, "11,463"), (999.96, "1000"), (0.12345, "0.1235"), (0, "0"), (-2e6, "-2,000,000")]
)
def test_numbers_are_written_without_an_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_a_peak_does_not_flatten_the_other_ranks() -> None:
    steps = list(range(20))
    quiet, peaked = Line("rank 0", steps, [5.0 + step % 3 for step in steps]), [4.0] * 19 + [11_000.0]
    svg = draw_lines([quiet, Line("rank 1", steps, peaked)], "step", "ms", "x")
    assert "ms, logarithmic" in svg and "10,000" in svg and "e+" not in svg
    assert "logarithmic" not in draw_lines([quiet], "step", "ms", "x")
    # A share of zero is no logarithm.
    assert "logarithmic" in draw_lines([Line("rank 1", steps, [0.0, *peaked[1:]])], "step", "ms", "x")


def test_a_single_point_has_one_number() -> None:
    assert line_figure("x", "Loss", [Line("test", [1], [2.5])], "epoch", "loss").text == "Loss by epoch: test 2.5."


@pytest.mark.filterwarnings("error")
def test_every_figure_shows_names_as_they_are() -> None:
    """No dollar sign begins a formula, and a control character ends no figure."""
    name = "$\\frac{$ \0\x1b[31m \udcff <&>"
    shown = re.sub("[\0\x1b\udcff]", "\ufffd", name)
    line = Line(name, [1, 2], [1, 2])
    bars = draw_rows({name: [Bar(0, 2, "red", name)]}, name, {name: "red"}, "x")
    for svg in (bars, line_figure("y", name, [line, line], name, name, [AxisMark(1, name)]).svg):
        texts = ["".join(text.itertext()) for text in etree.fromstring(svg).iter("{*}text", "{*}title")]
        assert sum(shown in text for text in texts) >= 4
