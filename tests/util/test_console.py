"""Output besides the results: log lines by rank, and no chatter but nothing else lost."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import run
from tfpipe.util.console import figure, without_chatter

# Recorded from TensorFlow 2.21.
CHATTER = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795192574.112288   19922 port.cc:153] oneDNN custom operations are on.",
    "E0000 00:00:1795192574.112654   19922 cuda_platform.cc:51] failed call to cuInit: UNKNOWN ERROR (303)",
    "W0000 00:00:1795192574.112654   19922 cudart_stub.cc:31] Could not find cuda drivers on your machine.",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.",
]
KEPT = [
    "tfpipe: error: something is wrong",
    "F0000 00:00:1795192574.112654   19922 mutex.cc:42] Check failed: fatal",
    "*** An error occurred in MPI_Init_thread",
    "    I0000 of an indented line",
    "Information: E1 is no chatter",
    "",
]


@given(st.floats(1e-3, 1e6))
def test_a_rate_is_never_shown_as_nothing(rate: float) -> None:
    assert abs(float(figure(rate)) - rate) <= 0.051 * rate


@pytest.mark.parametrize(
    ("rank", "debug", "expected"),
    [
        (0, False, "info\nwarning\n"),
        (0, True, "debug\ninfo\nwarning\n"),
        (3, False, "rank 3: warning\n"),
        (3, True, "rank 3: debug\nrank 3: info\nrank 3: warning\n"),
    ],
)
def test_rank_0_informs_and_the_others_only_warn_and_say_who_they_are(rank, debug, expected):
    done = run(
        *(sys.executable, "-c"),
        "import logging\n"
        "from tfpipe.util.console import configure_logging\n"
        f"configure_logging({rank}, {debug})\n"
        "log = logging.getLogger('tfpipe.data.somewhere')\n"
        "log.debug('debug'); log.info('info'); log.warning('warning')\n"
        "logging.getLogger('other.library').info('not ours')\n",
    )
    assert done == (0, "", expected)


def test_chatter_is_dropped_and_everything_else_comes_through_in_order(capfd):
    lines = [line for pair in zip(KEPT, [*CHATTER, CHATTER[0]], strict=True) for line in pair]
    with without_chatter():
        for number, line in enumerate(lines):
            if number % 2:
                os.write(2, f"{line}\n".encode())  # as C++ does
            else:
                print(line, file=sys.stderr, flush=True)
    assert capfd.readouterr().err == "".join(f"{line}\n" for line in KEPT)


def test_what_was_written_before_and_after_is_untouched(capfd):
    print(CHATTER[1], file=sys.stderr)
    with without_chatter():
        print("not flushed", file=sys.stderr, end="")
    os.write(2, b" after\n")
    assert capfd.readouterr().err == f"{CHATTER[1]}\nnot flushed after\n"


def test_results_on_stdout_are_not_held_back(capfd):
    with without_chatter():
        os.write(1, f"{CHATTER[1]}\n".encode())
        assert capfd.readouterr().out == f"{CHATTER[1]}\n"


def test_a_failure_within_is_passed_on_with_what_was_said(capfd):
    with pytest.raises(ZeroDivisionError), without_chatter():
        os.write(2, b"the reason\n")
        raise ZeroDivisionError
    os.write(2, b"stderr works again\n")
    assert capfd.readouterr().err == "the reason\nstderr works again\n"


def test_bytes_that_are_no_text_come_through(capfdbinary):
    with without_chatter():
        os.write(2, b"\xff\xfe\x00 line\n")
    assert capfdbinary.readouterr().err == b"\xff\xfe\x00 line\n"


def test_no_descriptor_leaks():
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for _ in range(3):
        with without_chatter():
            pass
    assert opened() == before


@pytest.mark.parametrize("death", ["os._exit(3)", "os.abort()", "os.kill(os.getpid(), 9)"])
def test_the_last_words_of_a_process_that_dies_within_are_not_lost(death):
    """MPI_Init that fails says why on stderr, and ends the process without going back to Python."""
    done = run(
        *(sys.executable, "-c"),
        "import os\n"
        "from tfpipe.util.console import without_chatter\n"
        "with without_chatter():\n"
        "    os.write(2, b'*** MPI_Init failed: the reason\\n')\n"
        f"    {death}\n",
    )
    assert done.code != 0
    assert "the reason" in done.err
