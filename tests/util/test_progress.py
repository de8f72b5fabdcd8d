"""Progress of long work: a bar on a terminal, lines in a log, silence on other ranks."""

import fcntl
import io
import logging
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import types
from collections.abc import Iterator

import pytest

from tests.support.commands import ROOT, run
from tfpipe.util import progress as progress_module
from tfpipe.util.progress import progress


@pytest.fixture
def clock(monkeypatch):
    """Time that stands still unless it is told to pass: `clock.now`, in seconds."""
    fake = types.SimpleNamespace(now=1000.0)
    fake.monotonic = lambda: fake.now
    monkeypatch.setattr(progress_module, "time", fake)
    return fake


@pytest.mark.parametrize("show", [True, False])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_items_pass_through_unchanged_one_by_one(monkeypatch, show, is_terminal):
    asked = []

    def items():
        for item in ("a", None, "c"):
            asked.append(item)
            yield item

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    got = progress(items(), 3, "passing", show=show)
    assert asked == []
    assert next(got) == "a" and asked == ["a"]
    assert list(got) == [None, "c"]


def test_a_log_has_a_line_every_half_minute_with_count_rate_and_time_left(clock, caplog):
    with caplog.at_level(logging.INFO, logger="tfpipe"):
        for _ in progress(range(10), 10, "writing images", "image"):
            clock.now += 10
    assert caplog.messages == [
        "writing images: 3 of 10, 0.1 image/s, 70 s left",
        "writing images: 6 of 10, 0.1 image/s, 40 s left",
        "writing images: 9 of 10, 0.1 image/s, 10 s left",
    ]


def test_an_item_counts_only_when_it_is_done(clock, caplog):
    with caplog.at_level(logging.INFO, logger="tfpipe"):
        items = progress(range(3), 3, "reading")
        next(items)
        clock.now += 40
        assert caplog.messages == []
        next(items)
    assert caplog.messages == ["reading: 1 of 3, 0.0 file/s, 80 s left"]


def test_more_items_than_foretold_leave_no_negative_time(clock, caplog):
    with caplog.at_level(logging.INFO, logger="tfpipe"):
        for _ in progress(range(2), 1, "reading"):
            clock.now += 31
    assert caplog.messages[-1].endswith(" 0 s left")


def test_other_ranks_are_silent(clock, caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        for _ in progress(range(10), 10, "reading", show=False):
            clock.now += 100
    assert caplog.messages == []
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal of 80 columns: what shows, and where to write."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    yield main, side
    os.close(main)
    os.close(side)


def read_all(main: int) -> str:
    """Returns what shows by now; the kernel brings it over a little later than it was written."""
    shown = b""
    while select.select([main], [], [], 0.5)[0]:
        shown += os.read(main, 1 << 16)
    return shown.decode()


def test_a_terminal_shows_a_bar_with_rate_and_time_left_and_then_clears_it(monkeypatch, terminal):
    main, side = terminal
    monkeypatch.setattr(progress_module, "BAR_AFTER_S", 0.05)
    with open(side, "w", closefd=False) as file:
        monkeypatch.setattr(sys, "stderr", file)
        for _ in progress(range(6), 6, "writing images", "image"):
            time.sleep(0.15)
        shown = read_all(main)
    assert re.search(r"writing images: +\d+%.* [1-5]/6 \[00:0\d<00:0\d, +\d\.\d+(image/s|s/image)\]", shown), shown
    # In place, and gone in the end.
    assert "\n" not in shown and shown.endswith("\r") and shown.rsplit("\r", 2)[1].strip() == ""


def test_a_terminal_stays_as_it_is_where_work_is_short(monkeypatch, terminal):
    main, side = terminal
    with open(side, "w", closefd=False) as file:
        monkeypatch.setattr(sys, "stderr", file)
        assert list(progress(range(5), 5, "writing images", "image")) == [0, 1, 2, 3, 4]
        assert read_all(main) == ""


def test_the_bar_shows_also_where_chatter_is_filtered(terminal):
    """Every command that starts TensorFlow works with that filter, which passes whole lines alone."""
    main, side = terminal
    code = (
        "import os, time\n"
        "from tfpipe.util import progress\n"
        "from tfpipe.util.console import without_chatter\n"
        "progress.BAR_AFTER_S = 0.05\n"
        "with without_chatter():\n"
        "    for number in progress.progress(range(6), 6, 'measuring', 'segment'):\n"
        "        os.write(2, b'I0000 00:00:1795192574.112288   19922 port.cc:153] chatter\\n')\n"
        "        time.sleep(0.15)\n"
        "    os.write(2, b'a line of C++\\n')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=env, stderr=side, check=True, timeout=60)
    shown = read_all(main)
    assert "3/6" in shown and "segment/s" in shown and "a line of C++" in shown
    assert "chatter" not in shown


def test_a_log_behind_the_filter_has_lines_and_no_bar():
    code = (
        "import types\n"
        "from tfpipe.util import progress\n"
        "from tfpipe.util.console import configure_logging, without_chatter\n"
        "now = [0.0]\n"
        "progress.time = types.SimpleNamespace(monotonic=lambda: now[0])\n"
        "configure_logging(0)\n"
        "with without_chatter():\n"
        "    for number in progress.progress(range(4), 4, 'measuring', 'segment'):\n"
        "        now[0] += 20\n"
    )
    done = run(sys.executable, "-c", code)
    lines = done.err.splitlines()
    assert lines == ["measuring: 2 of 4, 0.1 segment/s, 40 s left", "measuring: 4 of 4, 0.1 segment/s, 0 s left"]
