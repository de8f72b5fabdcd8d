"""The figures of a running pipeline."""

import json
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.packs import LOOSE
from tests.support.sample import SampleData
from tfpipe import World, build_dataset, load_config
from tfpipe.data.pipeline import stage_names
from tfpipe.data.runtime.autotune import Stage, since, stages, tuned_values
from tfpipe.data.runtime.clock import DELAY_MS
from tfpipe.data.sources.registry import load_split
from tfpipe.prepare.index import build_index
from tfpipe.prepare.pack import PackPlan, pack


def test_between_two_accounts_a_stage_has_done_the_difference() -> None:
    before = [Stage("read", 10, 4.0, 1.0)]
    now = [Stage("read", 30, 14.0, 2.0), Stage("crop", 3, 6.0, 1.0)]
    assert since(before, now) == [Stage("read", 20, 10.0, 2.0), Stage("crop", 3, 6.0, 1.0)]


@pytest.mark.parametrize(("dtype", "annotations"), [("uint8", "xml"), ("float32", "xml"), ("uint8", "index")])
def test_every_stage_is_counted_under_its_own_name(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, annotations: str
) -> None:
    """Also when a map that does nothing is left out, and when another follows that has the clock."""
    monkeypatch.setenv(DELAY_MS, "3")
    given = {"dtype": dtype, "annotations": annotations, "index": str(tmp_path)}
    config = load_config(sample.config(tmp_path / "c.json", data=given))
    if annotations == "index":
        build_index(config.data, "train", World(), 1)
    iterator = iter(build_dataset(config, with_positions=True, with_ready=True))
    for _ in range(3):
        next(iterator)
    first = stages(iterator)
    for _ in range(8):
        next(iterator)
    last = stages(iterator)
    done = {each.stage: each for each in since(first, last)}
    assert list(done) == ["visit", "read", "crop", "finish"]
    # The buffer after it may be filled meanwhile.
    assert 6 <= done["finish"].elements <= 16
    assert done["crop"].busy_ms > 0
    # The delay of storage is in the time of reading; what was made since `first` may have been read before.
    reads = {each.stage: each for each in last}["read"]
    assert reads.busy_ms >= 3 * reads.elements > 0
    assert json.dumps([vars(each) for each in done.values()])
    assert {each.stage for each in tuned_values(iterator)} >= {"visit", "prefetch"}


@pytest.mark.parametrize("kind", ["crops", "raw"])
def test_packed_crops_are_gathered(sample: SampleData, tmp_path: Path, kind: str) -> None:
    """Also where a transform of the user's own follows, which is not counted."""
    given = load_config(sample.config(tmp_path / "c.json"))
    pack(given.data, "train", tmp_path / "packed", PackPlan(kind), World())
    source = {**LOOSE, "source": {"kind": "packed", "path": str(tmp_path / "packed")}}
    config = load_config(sample.config(tmp_path / "c.json", data=source))
    split = load_split(config.data, "train", World())
    iterator = iter(build_dataset(config, with_positions=True, with_ready=True, data=split))
    for _ in range(3):
        next(iterator)
    names = stage_names(split)
    done = {each.stage: each for each in stages(iterator, names)}
    assert list(done) == ["visit", "gather", "finish"]
    # A block of visits gives many batches.
    assert done["gather"].elements >= done["finish"].elements >= 3 > done["visit"].elements - 2


def test_a_pipeline_that_is_not_tuned_keeps_no_account() -> None:
    untuned = tf.data.Options()
    untuned.autotune.enabled = False
    iterator = iter(tf.data.Dataset.range(5).map(lambda x: x + 1).with_options(untuned))
    next(iterator)
    assert stages(iterator) == tuned_values(iterator) == []
