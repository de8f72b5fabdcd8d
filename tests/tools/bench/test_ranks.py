"""The bench of several ranks: when they count, what is made of it, and real ranks."""

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.commands import ROOT, WARM, ensure_server, run
from tests.support.sample import SampleData
from tfpipe import World
from tfpipe.cli import main
from tfpipe.config import load_config
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.tools.bench import ranks
from tfpipe.tools.bench.bench import BenchPlan
from tfpipe.tools.bench.machine import Machine
from tfpipe.tools.bench.ranks import Ranks, RanksReport
from tfpipe.tools.bench.segments import Count, Segment, measure
from tfpipe.tools.bench.text import as_json, render


def test_a_rank_goes_on_until_all_are_there_and_counts_only_what_is_between() -> None:
    delivered = []

    def source() -> Iterator[Count]:
        for images in range(1, 1000):
            delivered.append(images)
            yield Count(images, 2 * images)

    polls = iter([False, False, True, False, False, False, True])
    arrived_at = []

    def arrive() -> Callable[[], bool]:
        arrived_at.append(delivered[-1])
        return lambda: next(polls)

    made = measure(source(), seconds=0, lead_in_s=0, arrive=arrive)
    # 1; here, 2 and 3 while others warm up; 4 counts; here again, 5, 6 and 7 while others measure.
    assert (made.images, made.crops) == (1, 2)
    assert arrived_at == [1, 4] and delivered[-1] == 7


def segment(images: int, seconds: float, cpu_seconds: float) -> Segment:
    return Segment(images, 2 * images, seconds, cpu_seconds, 0.0)


def report(sample: SampleData, tmp_path: Path, alone: bool) -> RanksReport:
    """Of two turns: three ranks of 100, 200 and 300 images/s, then half of it; one alone of 500, then 400."""
    together = [[segment(100 * n, turn, 0.5 * n) for n in (1, 2, 3)] for turn in (1.0, 2.0)]
    one = [[segment(500, 1.0, 2.0)], [segment(400, 1.0, 1.6)]]
    data = load_config(sample.config(tmp_path / "c.json")).data
    return RanksReport(
        data,
        Ranks(Machine(8, 2, 2, 64, "2.21.0"), together),
        Ranks(Machine(8, 6, 6, 64, "2.21.0"), one) if alone else None,
    )


def test_the_total_is_the_sum_and_the_ratio_is_taken_turn_by_turn(sample: SampleData, tmp_path: Path) -> None:
    found = report(sample, tmp_path, alone=True)
    assert found.together.totals == pytest.approx([600, 300])
    # A rank's median over its two turns.
    assert found.together.each == pytest.approx((150, 75, 225))
    assert found.ratio == pytest.approx(((600 / 500 + 300 / 400) / 2, 300 / 400, 600 / 500))
    # 5000 us an image over the three, 4000 us alone.
    assert found.cpu_ratio.median == pytest.approx(4000 / 5000)

    lines = render(found).splitlines()
    assert lines[-1] == "images_per_second: 450.0"
    rows = [" ".join(line.split()) for line in lines]
    assert "1 rank 450 400 to 500 (6 pipeline threads)" in rows
    assert "3 ranks 450 300 to 600 (2 pipeline threads each)" in rows
    assert "3 ranks / 1 rank 0.975 0.750 to 1.200" in rows
    read = json.loads(json.dumps(as_json(found)))
    assert (read["images_per_second"], read["ratio_to_one_rank"]) == pytest.approx((450, 0.975))
    assert read["together"]["turns"][1][2]["images"] == 300 and read["alone"]["machine"]["threads"] == 6


def test_launched_ranks_have_nothing_to_be_compared_with(sample: SampleData, tmp_path: Path) -> None:
    found = report(sample, tmp_path, alone=False)
    text = render(found)
    assert "1 rank" not in text and text.splitlines()[-1] == "images_per_second: 450.0"
    assert "ratio_to_one_rank" not in as_json(found)


@pytest.mark.parametrize(
    ("plan", "world", "said"),
    [
        (BenchPlan(ranks=2), World(0, 3), "3 are launched already"),
        (BenchPlan(ranks=2, stages=True), World(), "--stages, --serial and --headspace are of one rank"),
        (BenchPlan(ranks=2, headspace=True), World(), "--stages, --serial and --headspace are of one rank"),
        (BenchPlan(serial=True), World(1, 2), "--stages, --serial and --headspace are of one rank"),
    ],
)
def test_what_does_not_go_together_is_refused(plan: BenchPlan, world: World, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan.check(world)


def test_started_ranks_share_the_cpus_as_launched_ones_do(sample: SampleData, tmp_path: Path, monkeypatch) -> None:
    worlds = []

    class Context:
        def Pipe(self) -> tuple[object, object]:
            return self, self

        def Process(self, target: object, args: tuple, daemon: bool) -> "Context":
            worlds.append(args[2])
            return self

        start = close = terminate = join = lambda self: None

    monkeypatch.setattr(ranks, "get_context", lambda how: Context())
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    config = load_config(sample.config(tmp_path / "c.json", data={"cpu_fraction": 0.5}))
    with ranks._Processes(config, 3, 0.1) as started:
        assert started.machine.threads == 1
    assert worlds == [World(rank, 3, "none", rank, 3, threads=2) for rank in range(3)]


class Answers(AbstractContextManager):
    """Ranks in threads of this process, each of which takes its part in a measurement by a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *parts: Callable[[Connection], None]) -> None:
        waiting = iter(parts)
        context = SimpleNamespace(Pipe=Pipe, Process=lambda target, args, daemon: self.process(next(waiting), args[0]))
        monkeypatch.setattr(ranks, "get_context", lambda how: context)
        self.pool = ThreadPoolExecutor()
        self.done: list[Future[None]] = []

    def process(self, part: Callable[[Connection], None], link: Connection) -> SimpleNamespace:
        link = Connection(os.dup(link.fileno()))
        self.done.append(self.pool.submit(part, link))
        return SimpleNamespace(start=lambda: None, terminate=lambda: None, join=lambda: None)

    def __exit__(self, *_: object) -> None:
        for each in self.done:
            each.result(60)


def test_all_ranks_warm_up_before_any_measures_and_measure_before_any_ends(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_of_late = threading.Barrier(2, timeout=60)

    def early(link: Connection) -> None:
        assert link.recv() == 0.5
        for answer in ("here", "here", "early"):
            link.send(answer)
            if answer == "here":
                assert not link.poll(0.1)
                turn_of_late.wait()
                assert link.recv() is True

    def late(link: Connection) -> None:
        assert link.recv() == 0.5
        for answer in ("here", "here", "late"):
            if answer == "here":
                turn_of_late.wait()
            link.send(answer)
            if answer == "here":
                assert link.recv() is True

    config = load_config(sample.config(tmp_path / "c.json"))
    with Answers(monkeypatch, early, late), ranks._Processes(config, 2, 0.1) as started:
        assert started.measure(0.5) == ["early", "late"]


RANK = """
import pickle, sys
from multiprocessing.connection import Connection
from tfpipe.tools.bench.ranks import _serve
_serve(Connection(0), *pickle.load(open(sys.argv[1], "rb")))
"""


class Warm:
    """The process of a rank in a fork of the warm server, in the place of a spawned one."""

    def __init__(self, folder: Path, target: object, args: tuple, daemon: bool) -> None:
        ensure_server()
        link, *rest = args
        path = folder / f"rank-{args[2].rank}-of-{args[2].size}"
        path.write_bytes(pickle.dumps(rest))
        # What multiprocessing hands to a child is its end of the pipe, as its stdin.
        self.process = subprocess.Popen(
            [*WARM, "-c", RANK, path], stdin=link.fileno(), env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        self.start = lambda: None
        self.terminate, self.kill, self.join = self.process.terminate, self.process.kill, self.process.wait


@pytest.fixture
def warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ranks start in forks of the warm server."""
    context = SimpleNamespace(Pipe=Pipe, Process=partial(Warm, tmp_path))
    monkeypatch.setattr(ranks, "get_context", lambda how: context)


def check_report(printed: str, out: Path, repeats: int, each_s: float) -> None:
    """Checks a report of two ranks against one alone."""
    read = json.loads(out.read_text())
    assert printed.splitlines()[-1] == f"images_per_second: {read['images_per_second']:.1f}"
    turns = len(read["alone"]["turns"])
    assert [len(turn) for turn in read["together"]["turns"]] == [2] * turns
    assert [len(turn) for turn in read["alone"]["turns"]] == [1] * turns == [1] * repeats
    for turn in read["together"]["turns"] + read["alone"]["turns"]:
        assert all(each["seconds"] >= each_s and each["images"] > 0 for each in turn)


def test_two_ranks_are_measured_against_one(
    sample: SampleData, tmp_path: Path, warm: None, capfd: pytest.CaptureFixture[str]
) -> None:
    config, out = sample.config(tmp_path / "c.json", data={"annotations": "none"}), tmp_path / "out.json"
    words = ["--ranks", "2", "--seconds", "0.1", "--repeats", "1", "--json", str(out)]
    assert main(["bench", "-c", str(config), *words]) == 0
    check_report(capfd.readouterr().out, out, 1, 0.1)


@pytest.mark.full("spawns three processes that import TensorFlow: test_two_ranks_are_measured_against_one forks them")
def test_two_spawned_ranks_are_measured_against_one(sample: SampleData, tmp_path: Path) -> None:
    config, out = sample.config(tmp_path / "c.json"), tmp_path / "out.json"
    words = ["--ranks", "2", "--seconds", "1.5", "--repeats", "2", "--json", out]
    done = run(sys.executable, "-m", "tfpipe", "bench", "-c", config, *words)
    assert done.code == 0, done.err
    check_report(done.out, out, 2, 0.75)


def test_a_rank_that_fails_ends_the_bench(sample: SampleData, tmp_path: Path, warm: None) -> None:
    bad = tmp_path / "Data/CLS-LOC/train/n01/bad.JPEG"
    bad.parent.mkdir(parents=True)
    bad.write_text("no image")
    (tmp_path / "list.txt").write_text("\n".join([*list(read_filelist(sample.train))[:20], str(bad)]))
    data = {"train_filelist": str(tmp_path / "list.txt"), "annotations": "none"}
    config = load_config(sample.config(tmp_path / "d.json", data=data))
    with ranks._Processes(config, 2, 0.1) as started, pytest.raises(TfpipeError, match=r"bad\.JPEG"):
        started.measure(0.2)
    with ranks._Processes(config, 1, 0.1) as started:
        started._processes[0].kill()
        started._processes[0].join()
        with pytest.raises(TfpipeError, match="rank 0 of 1 has ended"):
            started.measure(0.2)
