"""Signals: the first is noted, the second ends the process at once, also while Python is not listening."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.support.commands import ROOT
from tfpipe.training.signals import SIGNALS, stop_on_signals

# A process that, once it has said so, waits in C for as long as a stalled read would, where no Python handler runs.
WAITING = """
import ctypes, logging, os, sys, time, tfpipe.training.signals as s
logging.basicConfig(level=logging.INFO)
with s.stop_on_signals() as stop:
    print("ready", flush=True)
    # sleep() returns early after a signal; read() is taken up again by Python.
    os.read(0, 1) if sys.argv[1] == "read" else ctypes.CDLL(None).sleep(3)
    while not stop: time.sleep(0.01)
    print(stop.signal.name, flush=True)
"""


def started(how: str) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_process_goes_on(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with stop_on_signals() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        deadline = time.monotonic() + 5
        while not stop and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stop and stop.signal is number
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert "signals" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    process = started("read")
    process.send_signal(number)
    assert f"{number.name}: finishes the step and saves" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(5) == 128 + number
    assert "exits at once" in process.stderr.read()


def test_a_signal_is_noted_while_no_python_runs() -> None:
    process = started("sleep")
    process.send_signal(signal.SIGUSR1)
    assert "SIGUSR1: finishes the step" in process.stderr.readline()
    assert process.stdout.readline() == "SIGUSR1\n"
    assert process.wait(5) == 0


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
