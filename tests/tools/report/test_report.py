"""The report: what a trace is read as, what is said of it, and how it looks."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded import unpack
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.cli import main
from tfpipe.config import DataConfig
from tfpipe.data.runtime.clock import DELAY_MS
from tfpipe.data.runtime.tracing import Window
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.bench import trace as take_trace
from tfpipe.tools.report import runs
from tfpipe.tools.report.diagnosis import diagnose_run, uses
from tfpipe.tools.report.runs import Run, load_run
from tfpipe.tools.report.text import as_json, render
from tfpipe.tools.report.trace import STAGES, StageTime, Step, Trace, find_trace, read_trace

AT_ONCE = {"visit": 16, "read": 64, "crop": 2}


def trace(wait: float, **busy_s: float) -> Trace:
    """Two seconds of twenty steps, of which they wait that share, and in which stages were busy so long."""
    steps = tuple(Step(number, 0.1 * number, 0.1, 0.1 * wait) for number in range(20))
    stages = [
        StageTime(name, 320 if name == "read" else 10, each, name == "transform") for name, each in busy_s.items()
    ]
    return Trace(Path("x.xplane.pb"), 2.0, steps, tuple(stages))


def interval(
    wait: float,
    straggler: dict | None = None,
    queued: float = 0.0,
    ranks: int = 1,
    busy_ms: dict[str, float] | None = None,
    **shares: float,
) -> dict[str, Any]:
    """A line of the accounting, of ten steps of 100 ms; what no share takes is the model's. `busy_ms`: an element's."""
    shares = {"transfer": 0, "reduce": 0, "callbacks": 0, "rest": 0, "wait": wait, **shares}
    shares |= {"step": 1, "delay": wait, "compute": 1 - sum(shares.values())}
    parts = {
        f"{name}_ms": {"mean": 100 * share, "p50": 99 * share, "p90": 120 * share, "p99": 130 * share}
        for name, share in shares.items()
    }
    low_to_high = {"min": 10.0, "median": 20.0, "max": 40.0}
    return {
        **{"steps": 10, "seconds": 1.0, "images_per_second": 800.0, "input_wait_fraction": wait},
        **parts,
        "callbacks": {"callbacks[0] CSVLogger": 2.0, "callbacks[1] Own": 90 * shares["callbacks"]},
        **{"cpu_fraction": 0.5, "cores": 2, "queued_fraction": queued, "memory_bytes": 10**9},
        **{"read_bytes": 10**8, "storage_bytes": 10**7, "images": 800, "files": 1000},
        "autotune": [{"stage": "prefetch", "parameter": "buffer_size", "value": 4.0}],
        "stages": [
            {"stage": stage, "elements": 9, "busy_ms": (busy_ms or {}).get(stage, 1.0), "parallelism": n}
            for stage, n in AT_ONCE.items()
        ],
        "ranks": [{"rank": rank} for rank in range(ranks)],
        "spread": {"wait_ms": low_to_high, "own_ms": low_to_high},
        "straggler": straggler,
    }


def made(traced: Trace | None = None, intervals: tuple = (), **data: object) -> Run:
    """A run of which that is left."""
    config = DataConfig.model_validate_json(json.dumps({"train_filelist": "/train.txt", **data}))
    return Run(Path("runs/x"), config, traced, intervals, AT_ONCE)


NEW = ("transfer_ms", "callbacks_ms", "rest_ms", "callbacks")
SLOW = {"rank": 2, "host": "n3", "times": 2.5, "because": "input"}


@pytest.mark.parametrize(
    ("of", "kind", "said", "change"),
    [
        (made(trace(0.02, read=0.1, decode=1.0)), "compute", "2.0 %", "data.batch_size"),
        # The reads that may be under way are under way all the time, the decoders seldom.
        (made(trace(0.8, read=120.0, decode=0.5)), "storage", "60.0 of 64 reads", "data.parallel.read=128"),
        (made(trace(0.8, read=20.0, decode=3.8)), "decode", "1.90 of 2 pipeline threads", "more CPUs"),
        (made(trace(0.5, read=1.0, parse=2.1, decode=1.5)), "xml", "1.80 of 2", "tfpipe index"),
        (made(trace(0.9, read=1.0, decode=1.5, transform=1.9)), "python", "transform calls Python", "data.transform"),
        (made(trace(0.8, read=1.0, decode=0.5, finish=2.0)), "decode", "% of it with finish", 'data.dtype "uint8"'),
        (made(trace(0.8, read=120.0), cache="/tmp/c"), "storage", "", "at once; or a copy on local disks"),
        (
            made(trace(0.5, read=1.0, decode=0.5), num_parallel_readers=1),
            "decode",
            "",
            "data.num_parallel_readers is 1",
        ),
        (made(None, (interval(0.4),)), "input", "no trace", "--profile"),
        # Without a trace the intervals say which stage is busy all the time, and no other is blamed.
        (
            made(None, (interval(0.4, busy_ms={"read": 7e3}),) * 2),
            "storage",
            "63.0 of 64 reads",
            "data.parallel.read=128",
        ),
        (
            made(None, (interval(0.4, busy_ms={"crop": 190}),)),
            "decode",
            "crop: 1.72 of 2 pipeline threads",
            "more CPUs",
        ),
        (
            made(None, (interval(0.4, busy_ms={"crop": 150}),)),
            "input",
            "1.36 of 2 pipeline threads busy, ",
            "--profile",
        ),
        (made(None, (interval(0.4, busy_ms=dict.fromkeys(AT_ONCE, 0.0)),)), "input", "no trace", "--profile"),
        (made(None, (interval(0.01),)), "compute", "1.0 %", ""),
        # The accounting of all steps counts before the trace of some.
        (made(trace(0.9, read=0.1, decode=1.0), (interval(0.01),)), "compute", "1.0 %", ""),
        (made(None, (interval(0.6, SLOW, ranks=3),) * 3), "straggler", "2.5 times slower than", "--profile-ranks 2"),
        (made(None, (interval(0.6, SLOW, ranks=3), *[interval(0.6, ranks=3)] * 9)), "input", "", ""),
        (made(None, (interval(0.3, queued=4.0),), threads=16), "threads", "take turns", "data.threads is 16"),
        # Calls beyond the threads only queue.
        (made(None, (interval(0.3, queued=4.0),), parallel={"decode": 9}), "input", "no trace", "--profile"),
        # As many threads as CPUs are not too many.
        (made(None, (interval(0.3, queued=4.0),), threads=2), "input", "no trace", "--profile"),
        (made(None, (interval(0.01, queued=4.0),)), "compute", "", ""),
        (made(None, (interval(0.01, queued=0.5),), threads=16), "compute", "", ""),
        # Each part of a step is named if it takes long, and longer than the wait for input.
        (made(None, (interval(0.01, callbacks=0.5),)), "callbacks", "callbacks 50.0, rest 0.0", "callbacks[1] Own: "),
        (made(None, ({**interval(0.01, callbacks=0.5), "callbacks": {}},)), "callbacks", "", "training.log_positions"),
        (made(None, (interval(0.2, transfer=0.3),)), "transfer", "transfer 30.0, compute 50.0", 'data.dtype "uint8"'),
        (made(None, (interval(0.0, reduce=0.4, ranks=2),)), "reduce", "reduce 40.0", "training.collectives"),
        (made(None, (interval(0.2, reduce=0.4, ranks=2),)), "input", "no trace", "--profile"),
        (made(None, (interval(0.0, rest=0.6),)), "rest", "compute 40.0, callbacks 0.0, rest 60.0", "data.batch_size"),
        (made(None, (interval(0.4, callbacks=0.3),)), "input", "no trace", "--profile"),
        (made(None, (interval(0.01, callbacks=0.04, rest=0.05),)), "compute", "compute 90.0, callbacks 4.0", ""),
        # Earlier versions have not all parts.
        (made(None, ({k: v for k, v in interval(0.01).items() if k not in NEW},)), "compute", "no work", ""),
    ],
)
def test_what_bounds_a_run_is_told(of: Run, kind: str, said: str, change: str) -> None:
    found = diagnose_run(of)
    assert found.kind == kind, found
    assert said in found.because and change in found.advice


def test_no_more_reads_are_advised_than_gain_anything() -> None:
    found = diagnose_run(replace(made(trace(0.8, read=390.0)), at_once={"read": 200}))
    assert "data.parallel.read=256 if" in found.advice, found


def test_longer_intervals_count_for_more_in_shares_and_those_of_more_steps_in_times() -> None:
    run = made(None, ({**interval(0.1), "seconds": 3.0}, {**interval(0.5), "steps": 30}))
    assert run.wait_fraction == pytest.approx(0.2)
    assert run.mean("wait_ms", "mean") == pytest.approx(40)
    assert run.total("images") == 1600


def test_traces_are_in_the_order_of_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "find_trace", lambda folder: folder / "trace")
    names = ["rank-1", "rank-2", "rank-10"]
    for name in names:
        (tmp_path / name).mkdir()
    assert runs.trace_paths(tmp_path) == [tmp_path / "trace", *(tmp_path / name / "trace" for name in names)]


@pytest.mark.parametrize("at_once", [{"read": 64, "crop": 3}, {"gather": 3}])
def test_calls_are_not_taken_for_threads(at_once: dict[str, int]) -> None:
    found = diagnose_run(replace(made(trace(0.8, decode=3.8), (interval(0.8),)), at_once=at_once))
    assert "decode: 1.90 of 2 pipeline threads busy" in found.because, found


def test_a_transform_of_tensorflows_ops_gets_advice_about_itself() -> None:
    busy = trace(0.8, read=1.0, decode=0.5)
    stages = (*busy.stages, StageTime("transform", 10, 3.2, False))
    found = diagnose_run(made(replace(busy, stages=stages)))
    assert found.kind == "transform" and "86 % of it with transform" in found.because, found
    assert "data.transform" in found.advice and "images stored smaller" not in found.advice


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_advice_that_names_no_other(stage: str) -> None:
    of = replace(trace(0.8), stages=(StageTime(stage, 10, 3.9, False),))
    advice = diagnose_run(made(of if stage != "read" else trace(0.8, read=120.0))).advice
    others = {"transform": "data.transform", "decode": "images stored smaller", "finish": "data.dtype"}
    assert not [other for other, word in others.items() if other != stage and word in advice], advice


def test_with_one_reader_the_longer_part_bounds() -> None:
    def longest(**busy_s: float) -> str:
        run = replace(made(trace(0.9, **busy_s)), data=None, at_once={})  # one read and one thread at a time
        return max(uses(run), key=lambda use: use.of).kind

    assert (longest(read=1.2, decode=0.5), longest(read=0.3, decode=1.4)) == ("storage", "decode")


def test_how_much_faster_it_could_be_is_told() -> None:
    assert "could run up to 5.0 times as fast" in diagnose_run(made(trace(0.8, read=120.0))).headline


def test_a_screen_says_it_all() -> None:
    text = render([made(trace(0.4, visit=0.01, read=3.2, decode=3.6), (interval(0.4, ranks=2),))])
    for part in (
        "INPUT-BOUND",
        "because",
        "change",
        "prefetch 4 buffered",
        "1000 files/s, 100.0 MB/s, 10.0 from storage",
    ):
        assert part in text
    read = next(line for line in text.splitlines() if line.strip().startswith("read ") and "64" in line)
    # 3.2 s for 320 images, over 2 s.
    assert read.split() == ["read", "320", "10000.0", "3.200", "47.0%", "1.60", "64"]
    assert len(text.splitlines()) < 40 and max(map(len, text.splitlines())) <= 200


def test_runs_stand_side_by_side() -> None:
    both = [made(trace(0.9, read=3.2)), replace(made(None, (interval(0.01),)), folder=Path("runs/y"))]
    rows = {line[:24].strip(): line[24:].split() for line in render(both).splitlines()[:6]}
    assert rows[""] == ["runs/x", "runs/y"] and rows["verdict"] == ["storage", "compute"]
    assert rows["images/s"] == ["160", "800"] and rows["input wait"] == ["90.0", "%", "1.0", "%"]


def test_json_holds_the_numbers() -> None:
    found = json.loads(json.dumps(as_json(made(trace(0.4, read=3.2, decode=3.6), (interval(0.4),)))))
    assert found["verdict"]["kind"] == "decode" and found["input_wait_fraction"] == 0.4
    assert {stage["name"]: stage["us_per_image"] for stage in found["trace"]["stages"]} == {
        "read": 10000,
        "decode": 11250,
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 16 batches of 16 of the pipeline alone, each read 10 ms late."""
    return unpack("bench", tmp_path_factory.mktemp("recorded"))


def test_a_recorded_trace_is_read_stage_by_stage(recorded: Path) -> None:
    found = read_trace(find_trace(recorded))
    assert [step.number for step in found.steps] == list(range(5, 21))
    # Nothing but waiting for batches, a few milliseconds each, and what Python takes to ask.
    assert (found.wait_fraction, found.seconds) == pytest.approx((0.73606, 0.0733046), rel=1e-4)
    assert found.images == 221
    # An image a call in one, 32 in three others; a read that had begun when the trace did is not in it.
    calls = {"read": 221, "parse": 6, "crop": 6, "decode": 6, "batch": 15, "tf.data": 0}
    busy_ms = {"read": 2058.27, "parse": 13.7983, "crop": 19.8179, "decode": 49.1139, "batch": 0.27176}
    assert {stage.name: stage.calls for stage in found.stages} == calls
    assert {stage.name: 1000 * stage.busy_s for stage in found.stages} == pytest.approx(
        {**busy_ms, "tf.data": 0.62813}, rel=1e-4
    )
    assert not any(stage.by_python for stage in found.stages)
    assert 0 < max(span.end_s for span in found.calls) < found.seconds + 0.02


def test_without_xprof_the_intervals_have_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after `make train`; a trace alone cannot be read without."""
    run, alone = unpack("compute", tmp_path / "run"), unpack("bench", tmp_path / "alone")
    traced = load_run(run)
    monkeypatch.setitem(sys.modules, "xprof", None)
    monkeypatch.delitem(sys.modules, "xprof.profile_data")
    untraced = load_run(run)
    assert traced.trace is not None and untraced.trace is None
    assert diagnose_run(untraced).kind == diagnose_run(traced).kind
    (said,) = (message for message in caplog.messages if "left out" in message)
    assert said.startswith(f"{traced.trace.path} is left out; ") and "pip install 'tfpipe[profile]'" in said
    with pytest.raises(ConfigError, match=r"needs xprof .*pip install 'tfpipe\[profile\]'"):
        load_run(alone)


@pytest.mark.full("xprof, which reads the marks, is large: recorded traces are above")
def test_a_real_trace_has_its_stages_and_its_folder_is_a_run(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DELAY_MS, "10")
    config = load_config(sample.config(tmp_path / "c.json"), ["data.seed=10"])
    take_trace(config, World(threads=2), Window(5, 21), tmp_path / "run")
    found = load_run(tmp_path / "run")
    assert [step.number for step in found.trace.steps] == list(range(5, 21))
    assert 0 < found.wait_fraction <= 1
    stages = {stage.name: stage for stage in found.trace.stages}
    assert {"read", "parse", "crop", "decode", "batch"} <= stages.keys()
    assert [stage.name for stage in found.trace.stages if stage.by_python] == ["parse"]
    # An image a call in one, 32 in the other; a batch of 16 needs a little more than half of 32 images.
    assert 5 < stages["read"].calls / stages["decode"].calls < 64
    assert found.at_once["read"] == 64 and found.at_once["crop"] == 3
    assert found.data.seed == 10
    # TensorBoard measures between marks of steps that say that they are its roots.
    from xprof.profile_data import ProfileData

    (plane,) = (each for each in ProfileData.from_file(str(found.trace.path)).planes if each.name == "/host:CPU")
    marks = [dict(event.stats) for line in plane.lines for event in line.events if event.name == "train"]
    assert [(int(mark["step_num"]), int(mark["_r"])) for mark in marks] == [(number, 1) for number in range(5, 21)]


def test_an_empty_folder_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2, "interval"')
    with pytest.raises(ConfigError, match="neither a trace nor a finished interval"):
        load_run(tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    assert "neither a trace" in capsys.readouterr().err


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    tf.profiler.experimental.start(str(tmp_path))
    tf.profiler.experimental.stop()
    with pytest.raises(ConfigError, match="marks no step"):
        load_run(tmp_path)


def run_of(
    wait: float = 0.01, busy: float = 0.97, queued: float = 0.6, taken: float = 1.2, reading: float = 30.0
) -> Run:
    """A run of 10 s on 2 CPUs, whose pipeline kept so many threads busy."""
    interval: dict[str, Any] = {
        **{"steps": 100, "seconds": 10.0, "cores": 2, "input_wait_fraction": wait, "ranks": [{"rank": 0}]},
        **{"cpu_fraction": busy, "queued_fraction": queued, "straggler": None},
        "stages": [
            {"stage": "read", "elements": 3200, "busy_ms": 1e4 * reading / 3200, "parallelism": 64},
            {"stage": "crop", "elements": 100, "busy_ms": 1e4 * taken / 100, "parallelism": 2},
        ],
    }
    return Run(Path("runs/x"), DataConfig(train_filelist=Path("/train.txt")), None, (interval,), AT_ONCE)


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (run_of(), "neighbour"),
        (run_of(wait=0.2), "input"),  # It waits: a faster pipeline comes first.
        (run_of(busy=0.5, queued=2.0), "compute"),  # Other processes have the CPUs.
        (run_of(queued=0.1), "compute"),  # There is room for all threads.
        (run_of(taken=0.1), "compute"),  # The model queues for itself; the pipeline takes little.
    ],
)
def test_a_neighbour_is_noisy_if_the_step_does_not_wait_and_both_want_the_cpus(run: Run, kind: str) -> None:
    assert diagnose_run(run).kind == kind


def test_the_evidence_is_in_cpus_and_the_advice_is_a_sweep() -> None:
    found = diagnose_run(run_of())
    assert "waits 1.0 % of its time" in found.headline
    assert "97 % of 2 CPUs busy, 1.2 more threads could have run" in found.because
    assert "threads keep 1.2 CPUs" in found.because  # without those that read
    assert "--sweep data.threads=0.25,0.5,0.75,null" in found.advice and "(now null)" in found.advice
