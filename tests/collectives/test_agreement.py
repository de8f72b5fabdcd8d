"""The agreement of ranks, with one thread a rank: each single difference is named on all of them."""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.gathers import Gather, on_all
from tfpipe.collectives.agreement import check_equal, name_ranks, spans
from tfpipe.config import Config, make_config
from tfpipe.config.model import OWN, shared_settings
from tfpipe.errors import ConfigError

DATA = {"train_filelist": "train.txt"}


def together(facts: Sequence[dict[str, Any]]) -> list[str]:
    """Returns each rank's error, "" for none, when the ranks compare these facts."""
    gather = Gather(len(facts))

    def compare(rank: int) -> str:
        try:
            check_equal(facts[rank], gather.of(rank))
        except ConfigError as error:
            return str(error)
        return ""

    return on_all(compare, range(len(facts)))


# Another value of each key that changes what ranks do. A dictionary stands for its keys.
OTHERS: dict[str, Any] = {
    "data": {
        "batch_size": 32, "seed": 1, "flip": True, "crop": "center", "shuffle_buffer": 0, "scope": "shard",
        "unit": "box", "reshuffle_each_iteration": False, "repeats": 2, "crop_image_size": [32, 32], "resize": "area",
        "dtype": "float32", "augment": [{"name": "ColorJitter", "brightness": 0.4}], "classes": ["a", "b"],
        "on_error": "skip", "num_channels": 1, "transform": "mine:function", "decoder": "graph", "layout": "voc",
        "class_weights": "balanced", "max_bad_fraction": 0.5, "annotations": "none", "center_fraction": 0.5,
        "test_filelist": "test.txt",
    },
    "model": {"name": "resnet50", "args": {"width": 8}, "freeze": -1, "weights": "imagenet"},
    "optimizer": {"name": "SGD", "learning_rate": 0.5, "args": {"use_ema": True}},
    "lr_schedule": {"scale_by_ranks": True, "warmup_epochs": 1.0, "name": "CosineDecay"},
    "loss": {"args": {"label_smoothing": 0.1}, "name": "mine:loss"},
    "training": {
        "epochs": 3, "seed": 4, "interval": 7, "steps_per_epoch": 5, "precision": "mixed_float16", "test_every": 2,
        "compression": "fp16", "checkpoint": {"every_steps": 3}, "xla": True,
    },
}  # fmt: skip


def config_of(**sections: dict[str, Any]) -> Config:
    return make_config({**sections, "data": {**DATA, **sections.get("data", {})}})


@pytest.mark.parametrize(("section", "key"), [(name, key) for name, keys in OTHERS.items() for key in keys])
def test_each_setting_that_differs_on_a_rank_is_named_with_values_and_ranks_on_all(section: str, key: str) -> None:
    other = config_of(**{section: {key: OTHERS[section][key]}})
    usual, other = map(shared_settings, (config_of(), other))
    errors = together([usual, usual, other])
    assert len(set(errors)) == 1
    lines = [line for line in errors[0].splitlines() if line.startswith(f"  {section}.{key}")]
    assert lines, errors[0]
    for line in lines:
        name = line.strip().partition(":")[0]
        here, there = (json.dumps(settings.get(name), sort_keys=True) for settings in (usual, other))
        assert line.startswith(f"  {name}: {here} on ranks 0, 1, {there[:80]}") and line.endswith(" on rank 2")


def test_what_a_rank_may_have_for_itself_is_not_compared() -> None:
    """Threads, caches, and folders of copies; a path in the place of none is compared."""
    own = {"threads": 3, "cache": "cache", "parallel": {"read": 5}, "remote": {"cache": "here"}}
    here = config_of(data={"test_filelist": "test.txt"}, model={"weights": "w.keras"})
    there = config_of(
        data={"train_filelist": "/local/1/a.txt", "test_filelist": "/local/1/b.txt", **own},
        model={"weights": "/l/w.keras"},
    )
    assert together([shared_settings(here), shared_settings(there)]) == ["", ""]
    alone = shared_settings(config_of(model={"weights": "w.keras"}))
    (error,) = {*together([shared_settings(here), alone])}
    assert '  data.test_filelist: "(a path)" on rank 0, null on rank 1\n' in error
    fields = {f"data.{name}" for name in type(here.data).model_fields}
    assert fields.issuperset(OWN), "each is a key"


def test_a_difference_within_long_values_is_shown() -> None:
    names = [f"n{number:08}" for number in range(1000)]
    errors = together([{"data.classes": names, "epochs": 1}, {"data.classes": [*names[:-1], "cat"], "epochs": 1}])
    assert '"n00000999"] on rank 0' in errors[0] and '"cat"] on rank 1' in errors[0] and "epochs" not in errors[0]
    assert max(map(len, errors[0].splitlines())) < 300


def test_many_differences_are_counted_and_a_password_is_masked() -> None:
    facts = [{f"key{number:02}": f"s3://me:secret{rank}@host/{rank}" for number in range(12)} for rank in range(2)]
    (error,) = {*together(facts)}
    assert "secret" not in error and "and 2 more" in error


def test_ranks_are_named_in_spans() -> None:
    assert [name_ranks([3]), name_ranks([0, 1, 2, 5]), name_ranks([1, 2])] == [
        "rank 3",
        "ranks 0 to 2, 5",
        "ranks 1, 2",
    ]


def test_versions_are_compared_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["0.2.0", "0.2.1"])

    class Package:
        @property
        def __version__(self) -> str:
            return next(versions)

    monkeypatch.setitem(sys.modules, "tfpipe", Package())
    (error,) = {*together([{}, {}])}
    assert re.search(r'differ:\n  the version of tfpipe: "0\.2\.[01]" on rank 0, "0\.2\.[01]" on rank 1\n', error), (
        error
    )


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([5], "5"),
        ([5, 5, 9], "5, 9"),
        ([4, 6, 8, 9, 10, 11], "4 to 8 in steps of 2, 9 to 11"),
        ([12, 3, 1, 2], "1 to 3, 12"),
    ],
)
def test_numbers_are_written_in_spans(numbers: list[int], text: str) -> None:
    assert ", ".join(spans(numbers)) == text
