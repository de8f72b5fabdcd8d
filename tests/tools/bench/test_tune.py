"""Tune: which values of a few keys are kept, that the end is never slower than the start, and what it prints."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.support.sample import SampleData
from tfpipe import Config, World, load_config
from tfpipe.cli import main
from tfpipe.config import DataConfig
from tfpipe.tools import measure as engine
from tfpipe.tools.bench import sweep
from tfpipe.tools.bench.sweep import Tuning, render_tuning, tuned_axis, tuned_keys
from tfpipe.tools.measure import Pipelines, Segment

# Those that change neither pixels nor order.
ALLOWED = {
    "data.num_parallel_readers",
    "data.parallel.read",
    "data.prefetch_buffer_size",
    "data.threads",
    "data.remote.concurrency",
}
SERIAL = {"num_parallel_readers": 1, "prefetch_buffer_size": 0}


def storage(delay_s: float) -> Callable[[Config], float]:
    """The rate of a machine that decodes 1,700 images/s on two CPUs, reading from slow storage."""

    def rate(config: Config) -> float:
        data = config.data
        serial = data.num_parallel_readers == 1
        reads = data.parallel.read or (1 if serial else 64)
        cpu_s = 1 / (850 if serial else 1700)
        return 1 / (cpu_s + delay_s if serial else max(cpu_s, delay_s / reads))

    return rate


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Config], float]], list[Config]]:
    """Gives `tune` a machine whose rates are computed; returns the configs that it measures."""

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
        return measured

    return make


def tuned(sample: SampleData, tmp_path: Path, with_step: bool = False, **data: object) -> Tuning:
    """Tunes the sample's pipeline, as a list of files without XMLs unless `data` says otherwise."""
    path = sample.config(tmp_path / "c.json", data={"annotations": "none", **data})
    return sweep.tune(lambda sets: load_config(path, sets), World(threads=4), 1, with_step)


def swept_keys(found: Tuning) -> list[str]:
    return [key for swept in found.sweeps for key in swept.keys]


@pytest.mark.parametrize("delay_s", [0.1, 0.02, 0.0])
def test_from_one_reader_it_finds_the_best(sample: SampleData, tmp_path: Path, machine, delay_s: float) -> None:
    machine(storage(delay_s))
    found = tuned(sample, tmp_path, **SERIAL)
    assert found.changes["data.num_parallel_readers"] == "auto"
    assert ("data.parallel.read" in found.changes) == (delay_s == 0.1)
    flags = [f"{key}={value}" for key, value in found.changes.items()]
    chosen, start = (load_config(tmp_path / "c.json", sets) for sets in (flags, []))
    assert storage(delay_s)(chosen) >= (1 - sweep.AS_GOOD) * 1700
    assert found.gain.median == pytest.approx(storage(delay_s)(chosen) / storage(delay_s)(start))
    assert render_tuning(found).splitlines()[-1] == " ".join(f"--set {flag}" for flag in flags)
    assert "in 3 turns" in render_tuning(found) and "not faster" not in render_tuning(found)


def test_what_is_as_fast_as_it_can_be_is_left_alone(sample: SampleData, tmp_path: Path, machine) -> None:
    machine(storage(0.0))
    found = tuned(sample, tmp_path)
    assert (found.changes, found.together, found.gain) == ({}, None, None)
    assert swept_keys(found) == ["data.parallel.read", "data.prefetch_buffer_size"]
    assert render_tuning(found).endswith("no value is faster than the one at hand\n\nchange nothing")


def test_a_gain_that_does_not_last_changes_nothing(sample: SampleData, tmp_path: Path, machine) -> None:
    calls = count()
    machine(lambda config: 200.0 if config.data.parallel.read == 128 and next(calls) < sweep.TURNS else 100.0)
    found = tuned(sample, tmp_path)
    assert found.changes == {} and found.gain.median == 1
    text = render_tuning(found)
    assert "x 1.00 (1.00 to 1.00), in 3 turns: not faster than at the start, so nothing is changed" in text
    assert text.endswith("\nchange nothing")


def test_what_is_kept_is_the_ground_of_the_next_sweep(sample: SampleData, tmp_path: Path, machine) -> None:
    measured = machine(lambda config: 200.0 if config.data.parallel.read == 128 else 100.0)
    assert tuned(sample, tmp_path).changes == {"data.parallel.read": "128"}
    assert [config.data.parallel.read for config in measured if config.data.prefetch_buffer_size == 8] == [128] * 3


def test_shares_of_the_cpus_are_measured_with_a_training_step(
    sample: SampleData, tmp_path: Path, machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(lambda config: 100 * (2 - (config.data.threads or 1)))
    memory = Segment(1, 10**9, 1e6, 1.0, 0.0)
    monkeypatch.setattr(sweep, "training_step", lambda *_: lambda batch: None)
    monkeypatch.setattr(sweep, "from_memory", lambda *_: (lambda seconds: memory, 0.0))
    found = tuned(sample, tmp_path, with_step=True)
    assert found.changes == {"data.threads": "0.25"} and found.gain.median == pytest.approx(1.75)
    assert found.sweeps[-1].has_training and found.together.has_training and not found.sweeps[0].has_training
    assert "data.threads" not in swept_keys(tuned(sample, tmp_path))


@pytest.mark.parametrize(
    ("cpus", "data", "shares"),
    [
        (2, {}, ("null", "0.5")),
        (8, {}, ("null", "0.75", "0.5", "0.25")),
        (8, {"threads": 0.5}, ("0.5", "null", "0.75", "0.25")),
        (8, {"threads": 2}, ("2", "null", "0.75", "0.5")),
        (1, {}, None),
        (8, {"num_parallel_readers": 1}, None),
    ],
)
def test_shares_that_are_as_many_threads_are_tried_once(cpus: int, data: dict, shares: tuple[str, ...] | None) -> None:
    found = tuned_axis("data.threads", DataConfig(train_filelist=Path("x"), **data), World(threads=cpus))
    assert (found and found.values) == shares


@pytest.mark.parametrize("data", [{}, SERIAL, {"parallel": {"read": 3, "decode": "autotune"}, "threads": 2}])
def test_the_keys_change_no_batch_and_their_values_are_valid(sample: SampleData, tmp_path: Path, data: dict) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data={"annotations": "none", **data}))
    split = Pipelines(World(), 0).split(config)
    assert set(tuned_keys(split, with_step=True)) <= ALLOWED
    for key in tuned_keys(split, with_step=True):
        axis = tuned_axis(key, config.data, World(threads=4))
        for value in axis.values if axis else ():
            load_config(tmp_path / "c.json", [f"{key}={value}"])


def test_several_ranks_are_refused(
    sample: SampleData, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sample.config(tmp_path / "c.json")
    with monkeypatch.context() as launched:
        launched.setenv("OMPI_COMM_WORLD_RANK", "0")
        launched.setenv("OMPI_COMM_WORLD_SIZE", "2")
        assert main(["tune", "-c", str(path)]) == 2
    assert "tfpipe tune measures one rank: leave out the launcher" in capfd.readouterr().err


def test_a_real_run(sample: SampleData, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = sample.config(tmp_path / "c.json", data={**SERIAL, "batch_size": 8, "annotations": "none"})
    out = tmp_path / "out.json"
    assert main(["tune", "-c", str(path), "--minutes", "0.01", "--json", str(out), "--pipeline-only"]) == 0
    found, printed = json.loads(out.read_text()), capfd.readouterr().out
    # Whether a value wins depends on what else runs on this machine.
    swept = [key for each in found["sweeps"] for key in each["keys"]]
    assert swept == ["data.num_parallel_readers", "data.parallel.read", "data.prefetch_buffer_size"]
    assert all(key in printed for key in swept)
    expected = " ".join(f"--set {key}={value}" for key, value in found["changes"].items()) or "change nothing"
    assert printed.splitlines()[-1] == expected
