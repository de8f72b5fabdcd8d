"""Signals: the first is noted, the second ends the process at once, also while Python is not listening."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.commands import ROOT
from tests.support.runs import wait_for
from tfpipe.training.checkpointing.signals import SIGNALS, stop_on_signals

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


def started() -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    files = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", WAITING], **files, text=True, env=env)
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
def test_the_second_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    process = started()
    process.send_signal(number)
    assert f"{number.name}: finishes the step and saves" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert "exits at once" in process.stderr.read()


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
