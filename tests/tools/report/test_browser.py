"""Pages in a browser: every figure is seen and readable, by day and by night, on a desk and on a telephone."""

from pathlib import Path

import pytest

from tests.support.browser import look
from tests.support.recorded import unpack
from tfpipe.tools.report.page import write_page
from tfpipe.tools.report.runs import load_run


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (500, False)])
def test_the_page_of_a_run_can_be_read(tmp_path: Path, width: int, dark: bool) -> None:
    write_page(load_run(unpack("straggler", tmp_path)), tmp_path / "run.html")
    seen = look(tmp_path / "run.html", width, dark)
    assert (seen.problems, seen.console) == ([], []) and seen.figures == 5
    assert seen.dark == dark and seen.back == ("rgb(21, 25, 29)" if dark else "rgb(255, 255, 255)")


def test_what_cannot_be_read_is_found(tmp_path: Path) -> None:
    """The look itself: two texts in one place, one outside, one in the page's colour, a script's error."""
    texts = '<text y="50">first</text><text y="50">second</text><text y="-50">outside</text>'
    texts += '<text y="90" fill="#fff">hidden</text>'
    svg = f'<figure id="f"><svg width="300" height="100" style="overflow: visible">{texts}</svg></figure>'
    body = f'<body style="background: #fff">{svg}<script>console.log("odd")</script></body>'
    (tmp_path / "x.html").write_text(f"<html><head></head>{body}</html>")
    seen = look(tmp_path / "x.html")
    assert seen.problems == [
        'f: "first" lies on "second"',
        'f: "outside" is cut off',
        'f: "hidden" has the colour of the page',
    ]
    assert seen.console == ["odd"]
