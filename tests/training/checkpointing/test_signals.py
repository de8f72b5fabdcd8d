"""Signals: the first is noted, a later one ends the process at once, also while Python is not listening."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.commands import ROOT
from tests.support.runs import wait_for
from tfpipe.training.checkpointing import signals
from tfpipe.training.checkpointing.signals import SIGNALS, Stop, stop_on_signals

# A process that, once it has said so, waits in C as for a stalled read, where no Python handler runs, until its stdin
# ends.
WAITING = """
import ctypes, logging, os, threading, time, tfpipe.training.checkpointing.signals as s
logging.basicConfig(level=logging.INFO)
c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
def release():
    os.read(0, 1)
    c.pthread_mutex_unlock(mutex)
with s.stop_on_signals() as stop:
    c.pthread_mutex_lock(mutex)
    threading.Thread(target=release, daemon=True).start()
    print("ready", flush=True)
    c.pthread_mutex_lock(mutex)
    while not stop: time.sleep(0.01)
    print(stop.signal.name, flush=True)
"""


ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """SIGHUP as it is in a terminal: under nohup, tests and all that they start would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def started() -> subprocess.Popen:
    files = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", WAITING], **files, text=True, env=ENV)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_process_goes_on(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with stop_on_signals() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        wait_for(lambda: stop)
        assert stop.signal is number
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert "signals" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("number", SIGNALS)
def test_another_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    process, other = started(), signal.SIGTERM if number is signal.SIGINT else signal.SIGINT
    process.send_signal(number)
    assert f"{number.name}: finishes the step and saves" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(other)
    assert process.wait(60) == 128 + other
    assert f"{other.name}: exits at once" in process.stderr.read()


def test_the_same_signal_again_is_one_wish_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher forwards what a scheduler or a terminal has sent to all processes."""
    now, ended = [100.0], []
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(signals.os, "_exit", ended.append)
    stop = Stop()
    for later_s, ends in ((0, False), (0, False), (0.1, False), (4.8, False), (0.2, True)):
        now[0] += later_s
        stop.ask(signal.SIGTERM)
        assert stop.signal is signal.SIGTERM
        assert ended == [128 + signal.SIGTERM] * ends


EARLY = """
import os, signal, tfpipe.training.checkpointing.signals as s
s.end_on_early_signal()
with s.stop_on_signals() as stop:
    os.kill(os.getpid(), signal.SIGUSR1)
    while not stop: pass
os.kill(os.getpid(), signal.SIGUSR1)
while True: signal.pause()
"""


def test_sigusr1_while_no_step_is_trained_ends_the_process_by_name() -> None:
    """During the imports, and after the last step; in between it stops the run as ever."""
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, env=ENV, check=False)
    assert done.returncode == 75, done
    assert done.stderr == "tfpipe: SIGUSR1: no step is being trained, exits at once; --resume auto continues the run\n"


# A process that writes to its terminal until it is told to stop, and then what it was told to the file of its argument.
ON_A_TERMINAL = """
import contextlib, pathlib, sys, time, tfpipe.training.checkpointing.signals as s
with s.stop_on_signals() as stop:
    while not stop:
        with contextlib.suppress(OSError):
            print("a line of progress", flush=True)
        time.sleep(0.001)
    for _ in range(100): print("more", flush=True)
    pathlib.Path(sys.argv[1]).write_text(stop.signal.name)
"""


def test_a_closed_terminal_saves_and_what_is_written_to_it_is_no_error(tmp_path: Path) -> None:
    """A lost ssh connection does the same: the kernel sends SIGHUP, and each write is an error from then on."""
    number, terminal = pty.fork()
    if number == 0:
        os.execve(sys.executable, [sys.executable, "-c", ON_A_TERMINAL, tmp_path / "said"], ENV)
    while b"a line of progress" not in (read := os.read(terminal, 4096)):
        assert read
    os.close(terminal)
    _, status = os.waitpid(number, 0)
    assert (tmp_path / "said").read_text() == "SIGHUP" and os.waitstatus_to_exitcode(status) == 0


def test_a_hangup_that_is_ignored_stays_so() -> None:
    """Under nohup the run continues."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_for(lambda: stop)
            assert stop.signal is signal.SIGUSR1
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_is_noted_while_no_python_runs() -> None:
    process = started()
    process.send_signal(signal.SIGUSR1)
    assert "SIGUSR1: finishes the step" in process.stderr.readline()
    assert process.communicate("\n", timeout=60) == ("SIGUSR1\n", "")
    assert process.returncode == 0


def test_other_threads_may_train_too() -> None:
    """Python lets the main thread alone set handlers."""
    seen = []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


FORKED = """
import os, signal, tfpipe.training.checkpointing.signals as s
reads, writes = os.pipe()
with s.stop_on_signals() as stop:
    child = os.fork()
    if not child:
        os.write(writes, b"r")
        while True: signal.pause()
    os.read(reads, 1)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bool(stop), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    while not stop: pass
child = os.fork()
if not child:
    os._exit(signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)
print(os.waitpid(child, 0)[1])
"""


def test_a_signal_that_ends_a_forked_child_does_not_stop_its_parent() -> None:
    """A pool of processes ends its own by SIGTERM."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, env=ENV, check=False)
    assert (done.returncode, done.stdout) == (0, f"{-signal.SIGTERM} False\n0\n"), done.stderr
