"""The sweep: what is asked for, what is found in the segments, and a real run."""

import json
from pathlib import Path

import pytest

from tests.support.sample import SampleData
from tfpipe import World
from tfpipe.config import load_config
from tfpipe.errors import ConfigError
from tfpipe.tools.bench import sweep as module
from tfpipe.tools.bench.axes import Axis, settings_of
from tfpipe.tools.bench.bench import BenchPlan
from tfpipe.tools.bench.sweep import MEMORY, Sweep, as_json, render, run
from tfpipe.tools.measure import Pipelines, Segment


def segments(*rates: float, work: float = 0.0) -> list[Segment]:
    """A second of so many crops each, of which the batches were used for a share."""
    return [Segment(int(rate), int(rate), 1.0, 1.0, 0.0, work) for rate in rates]


def swept(rates: dict[tuple[str, ...], list[Segment]], keys: tuple[str, ...] = ("data.parallel.read",)) -> Sweep:
    return Sweep(keys, dict.fromkeys(rates, 2), rates, 64)


def sweep_of(rates: dict[str, list[Segment]], memory: list[Segment]) -> Sweep:
    """A sweep of a training step over shares of 4 CPUs, with batches of 10."""
    threads = {(share,): round(4 * float(share)) for share in rates}
    by_setting = {(share,): each for share, each in rates.items()}
    return Sweep(("data.threads",), threads, {**by_setting, MEMORY: memory}, 10)


READS = {
    ("2",): segments(50, 60),
    ("16",): segments(400, 500),
    ("64",): segments(980, 1180),
    ("128",): segments(1000, 1200),
}


def test_the_knee_is_the_first_that_is_as_good_as_the_best() -> None:
    found = swept(READS)
    assert (found.best, found.knee) == (("128",), ("64",))
    assert found.ratio(("16",), found.best).median == pytest.approx((0.4 + 500 / 1200) / 2)
    assert swept({**READS, ("64",): segments(900, 1100)}).knee == ("128",)


def test_of_two_keys_the_knee_is_where_both_are_small() -> None:
    rates = {(a, b): segments(rate) for a, b, rate in (("1", "1", 10), ("1", "8", 98), ("4", "1", 50), ("4", "8", 100))}
    found = swept(rates, ("data.parallel.read", "data.prefetch_buffer_size"))
    assert (found.best, found.knee) == (("4", "8"), ("1", "8"))
    assert "--set data.parallel.read=1 --set data.prefetch_buffer_size=8" in render(found)


def test_the_text_has_a_line_for_each_setting_and_the_knee() -> None:
    text = render(swept(READS))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("data.")}
    assert rows["data.parallel.read=64"] == ["1080", "980", "to", "1180", "0.98", "2", "<-", "knee"]
    assert rows["data.parallel.read=2"][-2:] == ["0.05", "2"]
    assert "knee      --set data.parallel.read=64: 0.98 of the best, data.parallel.read=128" in text
    assert "NOISY" not in text
    read = json.loads(json.dumps(as_json(swept(READS))))
    assert (read["best"], read["knee"], read["unit"], read["memory"]) == (["128"], ["64"], "crops/s", None)
    assert [each["rate"]["median"] for each in read["settings"]] == [55, 450, 1080, 1100]


@pytest.mark.parametrize(
    ("full", "work", "noisy"),
    [
        (700, 0.99, True),  # It does not wait, and yet takes 1000 / 700 of the time from memory.
        (980, 0.99, False),  # As fast as from memory.
        (700, 0.70, False),  # It waits for its batches.
    ],
)
def test_a_noisy_neighbour_takes_time_from_a_step_that_does_not_wait(full: int, work: float, noisy: bool) -> None:
    rates = {
        "0.25": segments(500, 500, work=0.5),
        "0.5": segments(900, 900, work=0.97),
        "1": segments(full, full, work=work),
    }
    found = sweep_of(rates, segments(1000, 1000))
    text = render(found)
    assert ("NOISY NEIGHBOUR: at data.threads=1 a step waits 1 % of its time" in text) == noisy
    assert ("data.threads=0.5 gives x 1.29" in text) == noisy
    row = next(line for line in text.splitlines() if line.startswith("data.threads=0.5")).split()
    assert row[1:3] == ["90.00", "90.00"] and row[6:10] == ["2", "3", "%", "0.90"]


def test_settings_that_differ_in_their_threads_share_a_split(sample: SampleData, tmp_path: Path) -> None:
    path, pipelines = sample.config(tmp_path / "c.json"), Pipelines(World(), 0)
    first, *others = (
        pipelines.split(load_config(path, [override])).catalog
        for override in ("data.parallel.read=2", "data.threads=3", "data.annotations=none")
    )
    assert others[0] is first and others[1] is not first
    assert first.annotated.any() and not others[1].annotated.any()


def test_a_key_that_divides_the_cpus_is_swept_against_a_training_step(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trained_on = sample.config(tmp_path / "c.json", data={"batch_size": 8, "annotations": "none"}), []
    monkeypatch.setattr(module, "training_step", lambda *_: lambda batch: trained_on.append(batch.data[0].shape))
    axes = [Axis.parse("data.threads=0.5,4")]
    settings = settings_of(axes, lambda sets: load_config(path, sets))
    found = run(axes, settings, World(threads=4), BenchPlan(seconds=0.1, repeats=1))
    assert found.has_training and found.threads == {("0.5",): 2, ("4",): 4}
    assert set(trained_on) == {(8, 32, 32, 3)}
    for setting in found.threads:
        (segment,) = found.segments[setting]
        assert 0 < segment.work_seconds < segment.seconds and 0 < segment.wait_share < 1
    sizes = [Axis.parse("data.batch_size=8,16"), *axes]
    with pytest.raises(ConfigError, match="batches of one shape"):
        run(sizes, settings_of(sizes, lambda sets: load_config(path, sets)), World(), BenchPlan(0.1, 1))
