"""Tune: what is kept of what is tried, that it is never slower and never another batch, and what it prints."""

import json
import random
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.pages import read_page, titles_of
from tests.support.sample import SampleData
from tfpipe import Config, World, load_config
from tfpipe.cli import main
from tfpipe.errors import TfpipeError
from tfpipe.tools import measure as engine
from tfpipe.tools.measure import Pipelines, Segment
from tfpipe.tools.page.page import Given, write
from tfpipe.tools.tune import tune
from tfpipe.tools.tune.page import page
from tfpipe.tools.tune.search import Move, Search, Setting, contest, fractions, moves, put
from tfpipe.tools.tune.tune import render

# Those that change neither pixels nor order.
ALLOWED = {
    "data.num_parallel_readers",
    "data.parallel.read",
    "data.parallel.decode",
    "data.prefetch_buffer_size",
    "data.threads",
    "data.cpu_fraction",
    "data.remote.concurrency",
}
SERIAL = {"num_parallel_readers": 1, "prefetch_buffer_size": 0}


def read(reads: int) -> Setting:
    """A change of the number of reads."""
    return (("data.parallel.read", str(reads)),)


def storage(delay_s: float, noise: float = 0.0) -> Callable[[Config], float]:
    """The rate of a machine that decodes 1,700 images/s on two CPUs, reading from slow storage."""
    drawn = random.Random(0)

    def rate(config: Config) -> float:
        data = config.data
        serial = data.num_parallel_readers == 1
        reads = data.parallel.read if isinstance(data.parallel.read, int) else 1 if serial else 64
        reads = 2 if data.parallel.read == "autotune" else reads
        threads = 1 if serial or data.parallel.decode == 1 else 2
        cpu_s = 1 / (850 * threads)
        each_s = cpu_s + delay_s if serial else max(cpu_s, delay_s / reads)
        return drawn.uniform(1 - noise, 1 + noise) / each_s

    return rate


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Config], float]], list[Config]]:
    """Gives `tune` a machine whose rates are computed, and equal batches; returns the configs that it measures."""

    def make(rate: Callable[[Config], float]) -> list[Config]:
        measured = []

        class Computed:
            def __init__(self, _: Pipelines, config: Config, *__: object) -> None:
                self.config = config

            def measure(self, seconds: float) -> Segment:
                measured.append(self.config)
                return Segment(1, round(1e6 * rate(self.config)), 1e6, 1.0, 0.0)

        monkeypatch.setattr(engine, "Pipeline", Computed)
        monkeypatch.setattr(engine, "wait_until_idle", lambda: None)
        monkeypatch.setattr(tune, "_check_same_batches", lambda *_: None)
        return measured

    return make


def tuned(sample: SampleData, tmp_path: Path, minutes: float = 60, **data: object) -> tune.Tuning:
    """Tunes the pipeline alone of the sample, as a list of files without XMLs unless `data` says otherwise."""
    path = sample.config(tmp_path / "c.json", data={"annotations": "none", **data})
    return tune.run(lambda sets: load_config(path, sets), World(threads=2), minutes, with_step=False)


@pytest.mark.parametrize(("delay_s", "best"), [(0.02, 1700), (0.003, 1700), (0.0, 1700)])
def test_from_one_reader_it_comes_within_5_percent_of_the_best(
    sample: SampleData, tmp_path: Path, machine, delay_s: float, best: float
) -> None:
    rate = storage(delay_s, noise=0.02)
    machine(rate)
    found = tuned(sample, tmp_path, **SERIAL, cache="memory")
    assert not found.rejected and found.in_time
    chosen = load_config(tmp_path / "c.json", [f"{key}={value}" for key, value in found.setting])
    assert storage(delay_s)(chosen) >= 0.95 * best
    assert dict(found.setting)["data.num_parallel_readers"] == "auto"
    last = render(found, tmp_path / "c.json").splitlines()[-1]
    assert last == " ".join(f"--set {key}={value}" for key, value in found.setting)
    assert found.gain.median == pytest.approx(
        storage(delay_s)(chosen) / storage(delay_s)(load_config(tmp_path / "c.json")), rel=0.05
    )


def test_the_page_shows_every_trial_and_the_arguments(sample: SampleData, tmp_path: Path, machine) -> None:
    machine(storage(0.02))
    found = tuned(sample, tmp_path, **SERIAL, cache="memory")
    write(page(found, Given("tune", tmp_path / "c.json", [])), tmp_path / "out.html")
    shown = read_page(tmp_path / "out.html")
    last = render(found, tmp_path / "c.json").splitlines()[-1]
    assert shown.xpath("string(//section[@class='verdict']//strong)") == last != "change nothing"
    rows = shown.xpath("//figure[@id='trials']//tbody/tr")
    assert len(rows) == sum(len(trials) for _, trials in found.trials) + len(found.besides) > 5
    (kept,) = [trial for _, trials in found.trials for trial in trials if trial.kept][:1]
    name = " ".join(f"{key}={value}" for key, value in kept.change)
    assert any(title.startswith(f"{name}: {kept.ratio:.4g} times, ") for title in titles_of(shown))
    assert float(rows[0][1].text.replace(",", "")) == pytest.approx(found.trials[0][1][0].ratio, rel=1e-3)
    assert shown.xpath("//figure[@id='gain']//tbody/tr/td[1]/text()") == ["at the start", "at the end"]


def test_what_is_as_fast_as_it_can_be_is_left_alone(sample: SampleData, tmp_path: Path, machine) -> None:
    machine(storage(0.0, noise=0.02))
    found = tuned(sample, tmp_path, cache="memory")
    assert found.setting == () and not found.rejected
    assert [name for name, _ in found.trials] == [
        "data.parallel.read",
        "data.parallel.decode",
        "data.threads",
        "data.prefetch_buffer_size",
    ]
    assert render(found, Path("c.json")).endswith("\nchange nothing")


def test_a_gain_that_does_not_last_changes_nothing(sample: SampleData, tmp_path: Path, machine) -> None:
    calls = count()
    # A host on which everything but the start is fast, until the search is over.
    machine(lambda config: 200.0 if config.data.parallel.read == 128 and next(calls) < 3 else 100.0)
    found = tuned(sample, tmp_path, cache="memory")
    assert any(trial.kept for _, trials in found.trials for trial in trials)
    assert found.setting == () and found.rejected
    assert "nothing is changed" in render(found, Path("c.json"))


@pytest.mark.parametrize(("steps_per_s", "kept"), [(90.0, False), (99.0, True), (None, True)])
def test_a_training_step_that_becomes_slower_changes_nothing(
    sample: SampleData, tmp_path: Path, machine, monkeypatch: pytest.MonkeyPatch, steps_per_s: float | None, kept: bool
) -> None:
    machine(storage(0.1))
    compared: list[Setting] = []
    monkeypatch.setattr(tune, "_check_same_batches", lambda load, setting, world: compared.append(setting))
    path = sample.config(tmp_path / "c.json")
    races = tune.Races(load := lambda sets: load_config(path, sets), Pipelines(World(), 0))
    training = None if steps_per_s is None else SimpleNamespace(turn=lambda _: [100.0, steps_per_s])
    search = Search(races.turn, lambda _: True, setting=read(256))
    found = tune._confirmed(search, training, load, World(), {})
    assert (found.setting, found.rejected) == ((read(256), False) if kept else ((), True))
    assert found.gain.median == pytest.approx(1700 / 640, rel=0.01) and compared == [read(256)]


def test_no_time_is_told(sample: SampleData, tmp_path: Path, machine) -> None:
    measured = machine(storage(0.02))
    found = tuned(sample, tmp_path, minutes=1e-6, **SERIAL)
    assert not measured and not found.in_time and found.setting == () and found.besides == {}
    assert "the time was up" in render(found, Path("c.json"))


def test_an_index_and_a_cache_are_tried_on_a_part_of_the_list(sample: SampleData, tmp_path: Path, machine) -> None:
    def rate(config: Config) -> float:
        data = config.data
        return 100.0 * (1.5 if data.annotations == "index" else 1) * (1.01 if data.cache else 1)

    measured = machine(rate)
    found = tuned(sample, tmp_path, annotations="auto")
    assert found.besides == {"index": pytest.approx([1.5] * 3), "cache": pytest.approx([1.01] * 3)}
    assert found.setting == ()
    on_part = [config for config in measured if config.data.train_filelist.name == "part.txt"]
    assert len(on_part) == 12 and not on_part[0].data.train_filelist.exists()
    text = render(found, Path("c.json"))
    assert "tfpipe index -c c.json, once: no XML is opened or parsed any more: x 1.50" in text
    assert "epochs after the first: x 1.01, no gain" in text


def test_an_index_that_cannot_be_built_is_not_tried(
    sample: SampleData, tmp_path: Path, machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise TfpipeError("bad.xml is not XML")

    machine(lambda _: 100.0)
    monkeypatch.setattr(tune, "build_index", refuse)
    found = tuned(sample, tmp_path, annotations="xml", cache="memory")
    assert found.besides == {} and found.in_time
    assert "the index is not tried: bad.xml is not XML" in caplog.text


def test_what_changes_a_batch_is_refused(sample: SampleData, tmp_path: Path) -> None:
    path = sample.config(tmp_path / "c.json", data={"batch_size": 8, "annotations": "none"})

    def load(sets: list[str]) -> Config:
        return load_config(path, sets)

    tune._check_same_batches(load, (("data.parallel.read", "2"), ("data.threads", "1")), World())
    for change in (("data.resize", "area"), ("data.seed", "3")):
        with pytest.raises(TfpipeError, match="changes the batches"):
            tune._check_same_batches(load, (change,), World())


@pytest.mark.parametrize("data", [{}, SERIAL, {"parallel": {"read": 3, "decode": "autotune"}, "threads": 2}])
def test_the_moves_touch_only_keys_that_change_no_batch(sample: SampleData, tmp_path: Path, data: dict) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data={"annotations": "none", **data}))
    loose = moves(config.data, World(threads=4), loose=True, remote=False)
    made = [*loose, fractions(config.data, World(threads=4))]
    keys = {key for move in made for change in move.candidates for key, _ in change}
    assert keys <= ALLOWED
    assert (made[0].name == "defaults") == bool(data)
    # Every candidate is a valid config on top of the start.
    for move in made[1:] if data else made:
        for change in move.candidates:
            load_config(tmp_path / "c.json", [f"{key}={value}" for key, value in put(made[0].candidates[0], change)])


@pytest.mark.parametrize(
    ("cpus", "given", "shares"),
    [(2, 1.0, ["0.25"]), (8, 1.0, ["0.25", "0.5", "0.75"]), (8, 0.5, ["0.25", "0.75", "1"])],
)
def test_shares_that_are_as_many_threads_are_tried_once(cpus: int, given: float, shares: list[str]) -> None:
    data = SimpleNamespace(threads=None, cpu_fraction=given, num_parallel_readers="auto")
    assert [change[0][1] for change in fractions(data, World(threads=cpus)).candidates] == shares


def test_a_share_is_not_overridden_by_the_threads_of_the_config() -> None:
    changes = fractions(
        SimpleNamespace(threads=2, cpu_fraction=1.0, num_parallel_readers="auto"), World(threads=4)
    ).candidates
    assert changes[-1] == (("data.threads", "null"), ("data.cpu_fraction", "1")) and len(changes) == 3


def race(rates: dict[Setting, list[float]], turns: list[list[Setting]]) -> Callable[[Sequence[Setting]], list[float]]:
    """Turns with given rates; appends what is measured to `turns`."""

    def turn(settings: Sequence[Setting]) -> list[float]:
        turns.append(list(settings))
        return [rates[setting][len(turns) - 1] for setting in settings]

    return turn


def test_a_contest_keeps_the_first_that_is_as_good_as_the_best() -> None:
    turns: list[list[Setting]] = []
    rates = {(): [100, 50, 200], read(16): [20, 0, 0], read(64): [130, 66, 260], read(128): [132, 66, 264]}
    trials = contest(race(rates, turns), (), [read(16), read(64), read(128)], 3)
    assert [trial.kept for trial in trials] == [False, True, False]
    assert [trial.ratio for trial in trials] == pytest.approx([0.2, 1.3, 1.32])
    # The hopeless one was measured once.
    assert [read(16) in turn for turn in turns] == [True, False, False]


@pytest.mark.parametrize("rates", [[102, 102, 102], [90, 180, 95], [99, 101, 120]])
def test_a_gain_within_chance_is_not_kept(rates: list[float]) -> None:
    trials = contest(race({(): [100] * 3, read(64): rates}, []), (), [read(64)], 3)
    assert [trial.kept for trial in trials] == [False]


def test_what_is_kept_is_the_ground_of_the_next_move() -> None:
    seen: list[list[Setting]] = []

    def turn(settings: Sequence[Setting]) -> list[float]:
        seen.append(list(settings))
        return [100.0 + 50 * sum(value == "64" for _, value in setting) for setting in settings]

    search = Search(turn, lambda _: True)
    assert search.climb([Move("a", (read(64),)), Move("b", ((("data.threads", "4"),),))])
    assert search.setting == read(64) and seen[-1] == [read(64), (*read(64), ("data.threads", "4"))]
    assert not search.climb([Move("a", (read(64),))])  # nothing is left to try


def test_several_ranks_and_no_time_are_refused(
    sample: SampleData, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sample.config(tmp_path / "c.json")
    with monkeypatch.context() as launched:
        launched.setenv("OMPI_COMM_WORLD_RANK", "0")
        launched.setenv("OMPI_COMM_WORLD_SIZE", "2")
        assert main(["tune", "-c", str(path)]) == 2
    assert "tfpipe tune measures one rank: leave out the launcher" in capfd.readouterr().err
    assert main(["tune", "-c", str(path), "--minutes", "0"]) == 2
    assert "--minutes must be above 0, received 0" in capfd.readouterr().err


@pytest.mark.parametrize(
    "flags_",
    [
        ["--pipeline-only"],
        pytest.param([], marks=pytest.mark.full("trains; test_a_training_step_that_becomes_slower has computed steps")),
    ],
)
def test_a_real_run(
    sample: SampleData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    flags_: list[str],
) -> None:
    for name, value in (("SEGMENT_S", 0.05), ("WARM_UP_S", 0.0), ("LAST_TURNS", 1), ("COMPARED_BATCHES", 1)):
        monkeypatch.setattr(tune, name, value)
    monkeypatch.setattr(tune, "moves", lambda *_, **__: [Move("defaults", ((("data.num_parallel_readers", "auto"),),))])
    data = {**SERIAL, "batch_size": 8, "cache": "memory", "annotations": "none"}
    path, out = sample.config(tmp_path / "c.json", data=data), tmp_path / "out.json"
    html = tmp_path / "out.html"
    assert main(["tune", "-c", str(path), "--json", str(out), "--html", str(html), *flags_]) == 0
    found = json.loads(out.read_text())
    lines = capfd.readouterr().out.splitlines()
    # Whether it wins depends on what else runs on this machine.
    sets = " ".join(f"--set {key}={value}" for key, value in found["setting"].items())
    assert lines[-1] == (sets or "change nothing")
    assert "\n".join(lines) in read_page(html).xpath("string(//section[@aria-labelledby='printed'])")
    (trial,) = [trial for trial in found["trials"] if trial["key"] == "defaults"][:1]
    assert len(trial["ratios"]) in (1, 2, 3, 7) and found["gain"]["median"] > 0
