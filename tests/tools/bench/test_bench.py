"""The bench: how segments are counted, what is made of them, and a real run."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.clock import Clock
from tests.support.sample import SampleData
from tfpipe import World
from tfpipe.cli import main
from tfpipe.config import Config, DataConfig, load_config
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.runtime.autotune import TunedValue
from tfpipe.data.runtime.parallelism import calls_at_once
from tfpipe.native import decoder_name
from tfpipe.tools import measure as engine
from tfpipe.tools.bench import bench, machine
from tfpipe.tools.bench.bench import BenchPlan, Report
from tfpipe.tools.bench.headspace import REPLAY, TRAINING
from tfpipe.tools.bench.machine import DecodeLimit, Machine
from tfpipe.tools.bench.text import as_json, render
from tfpipe.tools.measure import Count, Pipelines, Segment, measure
from tfpipe.tools.report.diagnosis import StageCost, Verdict, diagnose_chains

STAGES = ("visit", "read", "crop", "batch", "pipeline")


def segment(us: float, cpu_us: float, queued_us: float = 0.0) -> Segment:
    """1000 images of so many microseconds each, two crops to three images."""
    return Segment(1000, 1500, 1e-3 * us, 1e-3 * cpu_us, 1e-3 * queued_us)


def report(chain: list[tuple[float, ...]], cpus: int = 2, **data: object) -> Report:
    """Makes one of two equal turns; `chain` has us, CPU us and perhaps us in the queue for each of STAGES, an image."""
    segments = {name: [segment(*each)] * 2 for name, each in zip(STAGES, chain, strict=True)}
    segments["limit"] = [segment(1000, 1000)] * 2
    config = DataConfig.model_validate_json(json.dumps({"train_filelist": "/train.txt", **data}))
    threads = 1 if config.num_parallel_readers == 1 else config.threads or 2
    reads = calls_at_once(config, World(threads=cpus)).read or 1
    return Report(
        machine=Machine(host_cpus=4, cpus=cpus, threads=threads, reads=reads, tensorflow="2.21.0", decoder="x"),
        data=config,
        images=96,
        catalog_s=0.5,
        first_batch_s=[1.0, 0.5],
        segments=segments,
        stages=STAGES,
        tuned=[TunedValue("crop", "parallelism", 2.0), TunedValue("prefetch", "buffer_size", 4.0)],
        limit=DecodeLimit(images=96, skipped=0),
        memory=(300_000_000, 420_000_000),
    )


def bound(of: Report) -> Verdict:
    return diagnose_chains(of.figures)


CPU_BOUND = [(1, 1), (51, 101), (651, 1201), (671, 1241), (625, 1250)]
SLOW_READ = [(1, 1), (5001, 100), (5100, 1200), (5100, 1240), (5100, 1250)]
SERIAL = [(1, 1), (101, 101), (1201, 1201), (1241, 1241), (1250, 1250)]
NO_BUFFER = [(1, 1), (51, 101), (651, 1201), (1900, 1241), (1900, 1250)]
SHARED_CPUS = [(1, 1), (151, 101), (1251, 1201), (1271, 1241), (1280, 1250, 1200)]  # with others: no wait for storage


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of segments; a quarter of its time is this process's CPU time, and a half its threads queue for."""
    clock = Clock()
    fake = SimpleNamespace(perf_counter=clock, process_time=lambda: clock.now_s / 4, sleep=lambda _: None)
    monkeypatch.setattr(engine, "time", fake)
    monkeypatch.setattr(engine, "queued_s", lambda: {"thread": clock.now_s / 2})
    return clock


def test_a_segment_is_what_comes_between_two_deliveries_after_the_lead_in(clock: Clock) -> None:
    def source() -> Iterator[Count]:
        images = 0
        while True:
            clock.now_s += 1
            images += 7
            yield Count(images, 2 * images)

    deliveries = source()
    made = measure(deliveries, seconds=10, lead_in_s=5)
    assert made == Segment(70, 140, 10.0, 2.5, 5.0)
    assert (made.images_per_second, made.crops_per_second, made.busy, made.wanted_cpus) == (7, 14, 0.25, 0.75)
    assert next(deliveries).images == 7 * (5 + 10 + 1)
    # A delivery that comes late ends the segment later.
    assert measure(deliveries, seconds=2.5, lead_in_s=0.5).seconds == 3


def test_between_segments_the_threads_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def polls(*cpu_s: float) -> int:
        """Returns how often is looked, with so much CPU time used in between."""
        used, slept = iter([time_s for each in cpu_s for time_s in (0, each)]), []
        fake = SimpleNamespace(process_time=lambda: next(used), sleep=slept.append)
        monkeypatch.setattr(engine, "time", fake)
        engine.wait_until_idle()
        assert set(slept) == {engine.IDLE_POLL_S}
        return len(slept)

    assert polls(0.05, 0.006, 0.004) == 3
    assert polls(*[1.0] * 100) == 60


def test_a_segment_goes_on_until_an_image_is_through() -> None:
    # Crops of one image may fill several batches.
    counts = iter([Count(1, 8), Count(1, 16), Count(1, 24), Count(2, 32), Count(3, 40)])
    made = measure(counts, seconds=0, lead_in_s=0)
    assert (made.images, made.crops) == (1, 24)


def test_a_stage_costs_what_it_adds() -> None:
    assert report(CPU_BOUND).costs == [
        StageCost(name, pytest.approx(us), pytest.approx(cpu_us))
        for name, us, cpu_us in (
            ("visit", 1, 1),
            ("read", 50, 100),
            ("crop", 600, 1100),
            ("batch", 20, 40),
            ("prefetch", -46, 9),
        )
    ]


def test_the_limit_is_one_thread_times_the_cpus() -> None:
    found = report(CPU_BOUND)
    read = as_json(found)
    assert read["limit_images_per_second"] == pytest.approx(2000)
    assert read["ratio_to_limit"] == pytest.approx(1600 / 2000)
    assert read["cpu_ratio_to_limit"] == pytest.approx(1000 / 1250)
    rows = [line.split() for line in render(found).splitlines()]
    assert ["limit", "2000", "2000", "to", "2000"] in [row[:5] for row in rows]
    assert ["pipeline", "/", "limit", "0.80", "0.80", "to", "0.80"] in rows


@pytest.mark.parametrize(
    ("chain", "data", "of", "said"),
    [
        (CPU_BOUND, {}, "cpu crop", "tfpipe index parses every XML once for all runs; or images stored smaller"),
        (CPU_BOUND, {}, "cpu crop", "88 % of an image's CPU time"),
        (SERIAL, {"num_parallel_readers": 1}, "cpu crop", "data.num_parallel_readers is 1, which is one thread of 2"),
        (SERIAL, {"threads": 1}, "cpu crop", "data.threads is 1, and this process may use 2 CPUs"),
        (
            CPU_BOUND,
            {"num_parallel_readers": 2, "threads": 4, "cpus": 4},
            "calls crop",
            "data.num_parallel_readers is 2: raise it to 4",
        ),
        (
            CPU_BOUND,
            {"parallel": {"decode": 2}, "threads": 3, "cpus": 4},
            "calls crop",
            'data.parallel.decode is 2: raise it to 3, or to "auto"',
        ),
        # Threads beyond the CPUs are for reads that wait: decoding gains nothing from them.
        (CPU_BOUND, {"parallel": {"decode": 2}, "threads": 8}, "cpu crop", "2.00 of 2 CPUs busy"),
        # A read takes 5 ms beyond 2 others', the 2 CPUs 0.625 ms an image: 16 reads at once keep up.
        (SLOW_READ, {"parallel": {"read": 2}}, "wait read", "data.parallel.read=16; or"),
        (SLOW_READ, {"parallel": {"read": 1}}, "wait read", "data.parallel.read=8; or"),
        (SLOW_READ, {}, "wait read", "data.parallel.read=256; or"),
        (SLOW_READ, {"num_parallel_readers": 1}, "wait read", 'set data.num_parallel_readers to "auto"'),
        (NO_BUFFER, {"prefetch_buffer_size": 0}, "wait batch", "data.prefetch_buffer_size is 0"),
        (SHARED_CPUS, {}, "cpu crop", "waiting for a CPU that other processes have"),
    ],
)
def test_what_bounds_is_named_with_the_key_to_change(chain: list, data: dict, of: str, said: str) -> None:
    found = bound(report(chain, **data))
    assert f"{found.kind} {found.stage}" == of
    assert said in f"{found.because}\n{found.advice}"


def test_without_stages_it_says_how_to_find_out() -> None:
    whole = report(CPU_BOUND)
    for each, kind in ((segment(625, 1250), "cpu"), (segment(5000, 1250), "wait")):
        segments = {"pipeline": [each], "limit": [segment(1000, 1000)]}
        found = replace(whole, segments=segments, stages=())
        assert bound(found)[:2] == (kind, "") and "--stages" in bound(found).advice
        assert "chain up to" not in render(found)


def test_the_text_ends_with_the_rate_and_the_json_has_it_too() -> None:
    found = report(CPU_BOUND)
    text = render(found)
    lines = text.splitlines()
    assert lines[-1] == "images_per_second: 1600.0"
    assert lines[:2] == ["machine   2 of 4 CPUs, 2 pipeline threads, TensorFlow 2.21.0", "decoder   x"]
    assert "memory    420 MB private to this rank, 120 MB more than before the list was read" in lines
    assert "AUTOTUNE  chose crop 2 at once, prefetch 4 buffered" in lines
    epoch = "an epoch of ImageNet, 1,281,167 images, in 13.3 min"
    assert f"feeds     {epoch}; 0.34 of an H200 that trains ResNet-50" in lines
    row = next(line for line in lines if line.startswith("crop ")).split()
    assert row == ["crop", "1536", "1536", "to", "1536", "1.84", "600.0", "1100.0"]
    assert all(len(line) <= 140 for line in lines if not line.startswith(" "))

    read = json.loads(json.dumps(as_json(found)))
    assert read["images_per_second"] == pytest.approx(1600) and read["ratio_to_limit"] == pytest.approx(0.8)
    assert read["segments"]["pipeline"][0]["images"] == 1000
    assert read["bound"]["stage"] == "crop"


def test_the_decoder_has_its_name_and_why_it_is_no_other() -> None:
    def name(stored: str = "images", **data: object) -> str:
        return Machine.here(DataConfig(train_filelist=Path("x"), **data), World(), stored).decoder

    assert name() == name(service=2) == name(resize="area") == name("crops", decoder="graph") == decoder_name()
    assert name("pixels") == "none: the packed crops are pixels"
    assert name(decoder="graph") == 'TensorFlow\'s ops; data.decoder is "graph"'


def test_a_machine_reads_at_most_as_many_at_once_by_autotune_as_it_has_threads() -> None:
    for data, reads in (({"parallel": {"read": "autotune"}}, 3), ({"parallel": {"read": 7}}, 7)):
        config = DataConfig.model_validate_json(json.dumps({"train_filelist": "/x", **data}))
        made = Machine.here(config, World(threads=3))
        assert (made.cpus, made.threads, made.reads) == (3, 3, reads)


def test_the_limit_goes_through_its_files_over_and_over_and_says_how_many_it_goes_without(
    sample: SampleData, tmp_path: Path
) -> None:
    from tfpipe.data.sources.registry import load_split

    good = list(read_filelist(sample.train))[:3]
    bad = Path(good[0]).with_name("bad.JPEG")
    bad.write_text("no image")
    (tmp_path / "list.txt").write_text("\n".join([*good, str(bad)]))
    config = sample.config(tmp_path / "c.json", data={"train_filelist": str(tmp_path / "list.txt")})
    data = load_config(config).data
    source, made = machine.limit(load_split(data, "train", World()))
    bad.unlink()
    assert (made.images, made.skipped) == (3, 1)
    assert [next(source).images for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_real_run(sample: SampleData, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = sample.config(tmp_path / "c.json"), tmp_path / "out.json"
    words = "--set data.threads=1 --seconds 0.1 --repeats 1 --stages --headspace --json".split()
    assert main(["bench", "-c", str(path), *words, str(out)]) == 0

    text = capfd.readouterr().out
    lines = text.splitlines()
    read = json.loads(out.read_text())
    assert lines[-1] == f"images_per_second: {read['images_per_second']:.1f}"
    assert read.keys() >= {"crops_per_second", "limit_images_per_second", "ratio_to_limit"}
    assert read.keys() >= {"costs", "bound", "tuned", "machine", "data", "first_batch_s"}
    names = {"pipeline", "limit", "visit", "read", "crop", "batch"}
    assert read["segments"].keys() == names | {TRAINING, REPLAY}
    for (each,) in read["segments"].values():
        assert each["seconds"] >= 0.1 and each["images"] > 0
    # Crops come in whole batches, and each image gives at least one; images at the ends may be cut.
    (each,) = read["segments"]["pipeline"]
    assert each["crops"] % 16 == 0 and each["crops"] >= each["images"] - 1
    assert {(each["stage"], each["parameter"]) for each in read["tuned"]} >= {
        ("visit", "parallelism"),
        ("prefetch", "buffer_size"),
    }
    assert [cost["name"] for cost in read["costs"]] == ["visit", "read", "crop", "batch", "prefetch"]

    rows = {line[:22].strip(): line[22:].split() for line in lines}
    found = read["headspace"]
    assert rows["fed by the pipeline"][0] == f"{found['step_ms']['median']:.1f}"
    assert rows["fed from memory"][0] == f"{found['replay_ms']['median']:.1f}"
    assert rows["headspace"][0] == f"{100 * found['share']['median']:.1f}"
    assert found["meaning"] in "\n".join(lines)
    assert found["step_ms"]["low"] <= found["step_ms"]["median"] <= found["step_ms"]["high"]


def test_what_is_compared_is_measured_in_turns(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[tuple[str, float]] = []

    class Unmeasured:
        first_batch_s, tuned = (0.5,), ()

        def __init__(self, pipelines: Pipelines, config: Config, *_: object) -> None:
            self.name = f"{config.data.num_parallel_readers} from {pipelines.next_start(config)}"

        def measure(self, seconds: float) -> Segment:
            turns.append((self.name, seconds))
            return segment(1000, 1000)

    monkeypatch.setattr(engine, "Pipeline", Unmeasured)
    monkeypatch.setattr(bench, "limit", lambda *_: (iter(()), DecodeLimit(96, 0)))
    monkeypatch.setattr(bench, "measure", lambda _, seconds: turns.append(("limit", seconds)) or segment(500, 500))
    monkeypatch.setattr(engine, "wait_until_idle", lambda: turns.append(("rest", 0)))
    config = load_config(sample.config(tmp_path / "c.json"))
    found = bench.run(config, World(), BenchPlan(seconds=6, repeats=3))
    names = [name for name, _ in turns]
    assert names == ["rest", "auto from 0", "rest", "limit"] * 3
    assert {seconds for name, seconds in turns if name != "rest"} == {2}
    assert {name: len(segments) for name, segments in found.segments.items()} == dict.fromkeys(["pipeline", "limit"], 3)
    assert (found.images, found.stages) == (96, ())


def test_a_transform_is_a_stage_of_its_own(sample: SampleData, tmp_path: Path) -> None:
    """Its cost would be that of prefetching: the difference between the batches and the whole pipeline."""
    path = sample.config(tmp_path / "c.json", data={"transform": "tests.support.own:centred"})
    chains = bench.prefixes(load_config(path), Pipelines(World(), 0.0))
    assert [chain.name for chain in chains] == ["visit", "read", "crop", "batch", "transform"]
    assert all(chain.measure(0.05, 0.0).images > 0 for chain in chains)
    stages = [StageCost("crop", 10.0, 10.0), StageCost("transform", 90.0, 90.0)]
    verdict = diagnose_chains(report(CPU_BOUND).figures._replace(stages=stages))
    assert verdict.stage == "transform" and "less work in data.transform" in verdict.advice
