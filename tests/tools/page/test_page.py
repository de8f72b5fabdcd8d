"""What all pages share: their figures, and what they need."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from lxml import etree

from tests.support.pages import read_page
from tests.support.sample import SampleData
from tfpipe import World
from tfpipe.cli import main
from tfpipe.errors import ConfigError
from tfpipe.tools.page.figures import AxisMark, Line, Value, bar_figure, draw_lines, line_figure, number
from tfpipe.tools.page.page import Given, write
from tfpipe.tools.trained.confusion import Confusion


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


def test_bars_of_one_name_and_value_are_all_drawn() -> None:
    values = [Value("a", 2.0, (1.0, 3.0)), Value("a", 2.0, (1.0, 3.0)), Value("b" * 30 + " " + "c" * 30, -1.0)]
    figure = bar_figure("x", "Title", values, "ms", "Text.", {})
    assert len(re.findall(r"<(?:\w+:)?title", figure.svg)) == 3
    assert [tuple(row) for row in figure.rows] == [("a", "2", "1 to 3")] * 2 + [(values[2].name, "-1", "")]


@pytest.mark.filterwarnings("error")
def test_every_figure_shows_names_as_they_are(tmp_path: Path) -> None:
    """No dollar sign begins a formula, and a control character ends no figure."""
    name = "$\\frac{$ \0\x1b[31m \udcff <&>"
    shown = re.sub("[\0\x1b\udcff]", "\ufffd", name)
    line = Line(name, [1, 2], [1, 2])
    bars = bar_figure("x", name, [Value(name, 2.0)], name, name, {name: "red"})
    for svg in (bars.svg, line_figure("y", name, [line, line], name, name, [AxisMark(1, name)]).svg):
        texts = ["".join(text.itertext()) for text in etree.fromstring(svg).iter("{*}text", "{*}title")]
        assert sum(shown in text for text in texts) >= 4
    confusion = Confusion(2)
    confusion.add(np.array([0, 1]), np.array([1, 1]))
    confusion.over(World()).draw([name, name], name, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size > 0


def test_a_page_is_safe_and_names_its_config(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text('{"<script>": 1}')
    given = Given("bench", tmp_path / "odd.json", ["data.classes=<b>"])
    write(given.page("<i>head</i>")._replace(printed="<script>alert(1)</script>"), tmp_path / "x.html")
    page = read_page(tmp_path / "x.html")
    assert page.xpath("string(//pre)") == "<script>alert(1)</script>"
    assert page.xpath("string(//details/pre)") == '{"<script>": 1}' and not page.xpath("//i")


@pytest.mark.parametrize("command", ["bench", "tune", "check"])
def test_what_is_missing_is_told_before_anything_is_measured(
    sample: SampleData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
) -> None:
    words = [command, "-c", str(sample.config(tmp_path / "c.json")), "--html"]
    assert main([*words, str(tmp_path / "no" / "x.html")]) == 2
    read = capfd.readouterr()
    assert "there is no folder" in read.err and not read.out
    for package, extra in (("matplotlib.figure", "matplotlib"), ("jinja2", "Jinja2")):
        monkeypatch.setitem(sys.modules, package, None)
        assert main([*words, str(tmp_path / "x.html")]) == 2
        read = capfd.readouterr()
        assert f"--html needs {extra}" in read.err and "pip install 'tfpipe[profile]'" in read.err and not read.out


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot write"):
        write(Given("bench", tmp_path / "c.json", []).page("x"), tmp_path / "no" / "x.html")
