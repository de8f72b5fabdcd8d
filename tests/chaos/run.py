"""A random run, carried out: its data, its commands with their faults, and what must be true of them."""

import functools
import os
import random
import re
import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS, PACKED, Fault, Site
from tests.chaos.plan import BATCH, Leg, Plan
from tests.support.commands import Finished, end, finish
from tests.support.faults import faulty
from tests.support.packs import LOOSE, packed
from tests.support.runs import epoch_of, read_metrics, steps, train, trained, wait_for
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.prepare.index import build_index
from tfpipe.training.skipping import BAD_FILES

# Long for what takes seconds, short beside a hang.
BOUNDED_S = 120
MARK = "TFPIPE_TESTS_CHAOS"
EPOCHS = 3


class Story:
    """A run in a folder of its own."""

    def __init__(self, plan: Plan, sample: SampleData, folder: Path) -> None:
        """Copies the data into `folder`; packs are made once, beside the sample."""
        self.plan, self.folder, self.run_dir = plan, folder, folder / "run"
        self.site = Site(folder, random.Random(plan.seed))
        self.ends: list[str] = []
        """Faults of the commands so far, with their exit codes."""
        self.config = self._prepare(sample)
        self.epochs = EPOCHS * (len(plan.legs) + 1)
        # In the last epoch a rank may be ahead of another.
        self.expected = epoch_of(self.config, epochs=self.epochs - 1, size=plan.ranks)

    def _prepare(self, sample: SampleData) -> Path:
        data: dict[str, Any] = {"batch_size": BATCH, "max_bad_fraction": 0.9, "transform": "tests.chaos.slow:pause"}
        if self.plan.source in PACKED:
            pack = sample.root.parent / f"packed-{self.plan.source}"
            if not pack.exists():
                packed(load_config(sample.config(sample.root.parent / "pack.json")), pack, self.plan.source, shards=3)
            shutil.copytree(pack, self.folder / "packed")
            data |= {**LOOSE, "source": {"kind": "packed", "path": "packed"}}
        else:
            shutil.copytree(sample.root, self.folder / "tree")
            for split, path in (("train", sample.train), ("val", sample.val)):
                text = path.read_text().replace(str(sample.root), str(self.folder / "tree"))
                (self.folder / f"{split}.txt").write_text(text)
            data |= {"train_filelist": "train.txt", "test_filelist": "val.txt", "index": "indexes"}
        data |= {"cache": "cache"} if self.plan.source == "cache" else {}
        data |= {"cache": "memory"} if self.plan.source == "memory" else {}
        data |= {"service": {"workers": 1, "timeout_s": 10}} if self.plan.source == "service" else {}
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
        """Runs all commands and checks what they leave."""
        for number, leg in enumerate([*self.plan.legs, Leg(self.plan.ranks, "", 0)]):
            # More epochs for each, lest a command that its fault did not end leaves nothing to do.
            self._command(leg, EPOCHS * (number + 1))
        self._check_positions()
        self._check_metrics()

    def _command(self, leg: Leg, epochs: int) -> None:
        """Runs a command that meets its fault; checks its end, and repairs what the fault has spoilt."""
        fault = FAULTS[leg.fault]
        if not leg.after and not fault.is_signal:
            fault.act(self.site)
        since_ns, reached = time.time_ns(), self._saved()
        words = [word for option in (f"training.epochs={epochs}", *fault.options) for word in ("--set", option)]
        environ = {**self.site.ranks.environ, MARK: str(self.folder), **faulty(*map(self._of_digit, fault.rules))}
        process = train(leg.ranks, "-c", self.config, "-l", self.run_dir, "--resume", "auto", *words, **environ)
        try:
            if leg.after and not fault.rules:
                due = lambda: self._written_ns() > since_ns and steps(self.run_dir) >= reached + leg.after  # noqa: E731
                wait_for(lambda: process.poll() is not None or due(), timeout_s=BOUNDED_S)
            elif fault.is_signal:
                wait_for(lambda: process.poll() is not None or self.site.ranks.running(), timeout_s=BOUNDED_S)
                time.sleep(self.site.rng.uniform(0, 3))
            if leg.after or fault.is_signal:
                fault.act(self.site)
            finished = finish(process, BOUNDED_S)
        finally:
            if process.poll() is None:
                end(process)
        self._check_end(leg, fault, finished)
        self.site.repair()

    def _of_digit(self, text: str) -> str:
        """Replaces N by a digit, with which some of the images' names end."""
        return text.replace("N.", f"{self.plan.seed % 10}.")

    def _saved(self) -> int:
        """Returns the steps of the last checkpoint."""
        return max((int(path.stem[5:]) for path in self.run_dir.glob("checkpoints/step-*.npz")), default=0)

    def _written_ns(self) -> int:
        with suppress(OSError):
            return (self.run_dir / "positions-0.csv").stat().st_mtime_ns
        return 0

    def _check_end(self, leg: Leg, fault: Fault, finished: Finished) -> None:
        """Checks the exit code, the message and that nothing is left running."""
        with (self.folder / "stderr.txt").open("a") as file:
            file.write(f"--- {leg}: {finished.code}\n{finished.out}{finished.err}")
        self.ends.append(f"{leg.fault or 'to the end'}: code {finished.code}")
        skips = fault.skipped is not None and self.plan.overrides["data.on_error"] == "skip"
        codes = fault.skipped if skips else fault.codes
        # A signal may come before the run handles it, and end it.
        at_start = {-15, 143, -10, 138, 1} if fault.is_signal and not leg.after else set()
        assert finished.code in codes | at_start, f"code {finished.code}"
        # Python's own; a log of TensorFlow's may hold one, with an empty line.
        assert "Traceback (most recent call last):\n  File" not in finished.err, "a traceback"
        if finished.code in (1, 2) and not fault.is_signal:
            says = [self._of_digit(fault.says), *(path.name for path in self.site.spoilt)]
            assert not [text for text in says if text not in finished.err], f"not said: {says}"
            assert re.search(r"^(tfpipe: )?error: .", finished.err, re.MULTILINE), "no message"
        wait_for(lambda: not self.site.ranks.running() and not list(marked(str(self.folder))), timeout_s=20)

    def _check_positions(self) -> None:
        """Each crop of all epochs but the last was trained once or left out, and none of the last twice."""
        seen = Counter((position, crop) for _, position, crop in trained(self.run_dir))
        assert max(seen.values()) == 1, f"twice: {[place for place, count in seen.items() if count > 1][:5]}"
        left_out = Counter(int(line[3]) for line in self._bad_files())
        assert max(left_out.values(), default=1) == 1, f"left out twice: {left_out.most_common(3)}"
        both = [place for place in seen if place[0] in left_out]
        assert not both, f"trained and left out: {both[:5]}"
        lost = [place for place in self.expected if place not in seen and place[0] not in left_out]
        assert not lost, f"lost: {len(lost)}, {lost[:5]}"
        beyond = [
            place for place in seen if place[0] <= max(p for p, _ in self.expected) and place not in self.expected
        ]
        assert not beyond, f"not in the data: {beyond[:5]}"
        counts = Counter(step for step, *_ in trained(self.run_dir))
        assert sorted(counts) == list(range(1, max(counts) + 1)), "steps are missing"
        assert all(count % BATCH == 0 for count in counts.values()), "a batch is cut"

    def _bad_files(self) -> list[list[str]]:
        """Returns the lines on training samples in bad_files.txt."""
        path = self.run_dir / BAD_FILES
        lines = [line.split("\t") for line in path.read_text().splitlines()[1:]] if path.exists() else []
        return [line for line in lines if line[2] == "train"]

    def _check_metrics(self) -> None:
        metrics = read_metrics(self.run_dir)
        assert [line["epoch"] for line in metrics] == list(range(1, self.epochs + 1)), "epochs"
        counted, listed = sum(line.get("dropped_images", 0) for line in metrics), len(self._bad_files())
        assert counted == listed, f"dropped_images {counted}, bad_files.txt {listed}"
        assert (self.run_dir / "model.keras").exists(), "no model"
        leftover = [path.name for path in self.run_dir.rglob(".*") if path.name != ".writable"]
        assert not leftover, f"left in the run's directory: {leftover}"


def marked(mark: str) -> list[int]:
    """Returns the processes that run with a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found
