"""A random run, carried out: its data, its commands with their faults, and what must be true of them."""

import functools
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS, Fault, Site
from tests.chaos.forms import SERVED, write_data
from tests.chaos.logs import ConsumerLogs, TrainLogs
from tests.chaos.plan import BATCH, Leg, Plan
from tests.support.commands import Finished, end, finish
from tests.support.faults import faulty
from tests.support.runs import epoch_of
from tests.support.sample import SampleData
from tests.support.server import Server
from tfpipe import World, load_config
from tfpipe.prepare.index import build_index

# Long for what takes seconds, short next to a hang.
BOUNDED_S = 300
MARK = "TFPIPE_TESTS_CHAOS"
EPOCHS = 3


def _wait_for(done: Callable[[], object]) -> None:
    """Waits until `done()`; bounded here, since `python -m tests.chaos` runs without pytest."""
    until_s = time.monotonic() + BOUNDED_S
    while not done():
        assert time.monotonic() < until_s, "a command hangs"
        time.sleep(0.05)


class Story:
    def __init__(self, plan: Plan, sample: SampleData, folder: Path) -> None:
        """Writes the data into `folder`."""
        self.plan, self.folder = plan, folder
        self.logs = (TrainLogs if plan.consumer == "train.py" else ConsumerLogs)(folder / "run", plan.consumer)
        self.site = Site(folder, random.Random(plan.seed))
        if plan.source in SERVED:
            self.site.server = Server(folder / "tree")
            self.site.server.ranges = True
        self.ends: list[str] = []
        """Faults of the commands so far, with their exit codes."""
        self.config = self._prepare(sample)
        self.epochs = EPOCHS * (len(plan.legs) + 1)
        # In the last epoch a rank may be ahead of another.
        self.expected = epoch_of(self.config, epochs=self.epochs - 1, size=plan.ranks)
        for stored in () if plan.source == "index" else folder.glob("indexes/*"):
            shutil.rmtree(stored) if stored.is_dir() else stored.unlink()  # the first command makes it

    def _prepare(self, sample: SampleData) -> Path:
        url = self.site.server.url if self.site.server else ""
        data: dict[str, Any] = {"batch_size": BATCH, "max_bad_fraction": 0.9, "transform": "tests.chaos.slow:pause"}
        data |= write_data(self.plan.source, sample, self.folder, url)
        data |= {"cache": "cache"} if self.plan.source == "cache" else {}
        data |= {"cache": "memory"} if self.plan.source == "memory" else {}
        data |= {"service": 1} if self.plan.source == "service" else {}
        sections: dict[str, dict[str, Any]] = {"data": data, "training": {"epochs": EPOCHS, "log_positions": True}}
        for key, value in self.plan.overrides.items():
            *folders, name = key.split(".")
            section: dict[str, Any] = functools.reduce(lambda at, name: at.setdefault(name, {}), folders, sections)
            section[name] = value
        if "test_filelist" in data and data["test_filelist"] is None:
            data["test_label_file"] = None
        config = sample.config(self.folder / "c.json", **sections)
        if self.plan.source == "index":
            build_index(load_config(config).data, "train", World(), 1)
        return config

    def carry_out(self) -> None:
        try:
            for number, leg in enumerate([*self.plan.legs, Leg(self.plan.ranks, "", 0)]):
                # More epochs for each, lest a command that its fault did not end leaves nothing to do.
                self._command(leg, EPOCHS * (number + 1))
        finally:
            if self.site.server is not None:
                self.site.server.close()
        self._check_positions()
        self.logs.check(self.epochs, BATCH)

    def _command(self, leg: Leg, epochs: int) -> None:
        """Runs a command that meets its fault; checks its end, and repairs what the fault has spoilt."""
        fault = FAULTS[leg.fault]
        # Only ranks that run meet it.
        running = fault.is_signal or fault.is_passing
        if not leg.after and not running:
            fault.act(self.site)
        since_ns, reached = time.time_ns(), self.logs.saved()
        overrides = (f"training.epochs={epochs}", *fault.options)
        environ = {**self.site.ranks.environ, MARK: str(self.folder), **faulty(*map(self._of_digit, fault.rules))}
        process = self.logs.start(leg.ranks, self.config, overrides, environ)
        try:
            if leg.after and not fault.rules:
                due = lambda: self.logs.written_ns() > since_ns and self.logs.steps() >= reached + leg.after  # noqa: E731
                _wait_for(lambda: process.poll() is not None or due())
            elif running:
                _wait_for(lambda: process.poll() is not None or self.site.ranks.running())
                time.sleep(self.site.rng.uniform(0, 3))
            if leg.after or running:
                fault.act(self.site)
            finished = finish(process, BOUNDED_S)
        finally:
            if process.poll() is None:
                end(process)
        self._check_end(leg, fault, finished)
        self.site.repair()

    def _of_digit(self, text: str) -> str:
        """Replaces N by a digit, with which some of the images' names end."""
        return re.sub(r"N(?=\.|\[\.)", str(self.plan.seed % 10), text)

    def _check_end(self, leg: Leg, fault: Fault, finished: Finished) -> None:
        """Checks the exit code, the message and that nothing is left running."""
        with (self.folder / "stderr.txt").open("a") as file:
            file.write(f"--- {leg}: {finished.code}\n{finished.out}{finished.err}")
        self.ends.append(f"{leg.fault or 'to the end'}: code {finished.code}")
        skips = fault.skipped is not None and self.plan.overrides["data.on_error"] == "skip"
        codes = fault.skipped if skips else fault.codes
        # A signal ends a consumer, and a run that does not handle it yet.
        unhandled = fault.is_signal and not (leg.after and self.plan.consumer == "train.py")
        at_start = {-15, 143, -10, 138, 1} if unhandled else set()
        assert finished.code in codes | at_start, f"code {finished.code}"
        # Python's own; a log of TensorFlow's may hold one, with an empty line.
        assert "Traceback (most recent call last):\n  File" not in finished.err, "a traceback"
        if finished.code in (1, 2) and not fault.is_signal:
            says = [self._of_digit(fault.says), *(re.escape(path.name) for path in self.site.spoilt)]
            assert not [text for text in says if not re.search(text, finished.err)], f"not said: {says}"
            assert re.search(r"^(tfpipe: )?error: .", finished.err, re.MULTILINE), "no message"
        _wait_for(lambda: not self.site.ranks.running() and not list(marked(str(self.folder))))

    def _check_positions(self) -> None:
        """Each crop of all epochs but the last was trained once or left out, and none of the last twice."""
        seen, left_out = self.logs.used(), self.logs.left_out()
        assert max(seen.values()) == 1, f"twice: {[place for place, count in seen.items() if count > 1][:5]}"
        both = [place for place in seen if place[0] in left_out]
        assert not both, f"trained and left out: {both[:5]}"
        lost = [place for place in self.expected if place not in seen and place[0] not in left_out]
        assert not lost, f"lost: {len(lost)}, {lost[:5]}"
        beyond = [
            place for place in seen if place[0] <= max(p for p, _ in self.expected) and place not in self.expected
        ]
        assert not beyond, f"not in the data: {beyond[:5]}"


def marked(mark: str) -> list[int]:
    """Returns the processes that run with a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found
