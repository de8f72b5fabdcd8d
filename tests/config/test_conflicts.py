"""Settings that contradict each other: each row of the table is refused, and each of its sides alone is accepted."""

import itertools
from copy import deepcopy
from typing import Any

import pytest

from tfpipe.config import make_config
from tfpipe.config.conflicts import DATA, OTHERS, Conflict
from tfpipe.errors import ConfigError

FULL = [{"crop": "full"}]
KINDS = ["folders", "table", "archive", "webdataset", "packed", "package.module:Own"]
# Values of each key that rows have; the key is also left out.
VALUES: dict[str, list[Any]] = {
    "annotations": ["none", "xml"],
    "augment[].name": ["RandAugment", "RandomInvert"],
    "batch_size": [1, [[0, 4], [2, 1]]],
    "cache": ["memory", None],
    "exif": ["apply", "ignore"],
    "class_level": [1],
    "classes": [None],
    "crop": ["boxes", "random_resized", "center", "full"],
    "crop_image_size": [[[0, 32], [2, 48]], [20_000, 20_000], [40_000, 40_000]],
    "dtype": ["uint8"],
    "label_source": ["object", "directory"],
    "lr_schedule.args": [{"decay_steps": 5}],
    "lr_schedule.name": ["CosineDecay"],
    "mix": [{"mixup": 0.2}],
    "mix.cutmix": [None],
    "mix.mixup": [None],
    "mix.switch_prob": [0.3],
    "model.args.weights": ["imagenet"],
    "model.weights": ["imagenet"],
    "normalize": [{"mean": [0.5] * 3, "std": [0.5] * 3}],
    "normalize.mean": [[0.5], [0.5] * 3],
    "normalize.std": [[0.5], [0.5] * 3],
    "num_channels": [1, 3],
    "num_classes": [1],
    "num_parallel_readers": [1],
    "on_error": ["skip"],
    "parallel.decode": ["autotune"],
    "parallel.read": ["autotune"],
    "service": [1],
    "source": [{"kind": "folders", "path": "/tree"}],
    "source.args": [{"a": 1}],
    "source.columns": [{"label": "name"}],
    "source.columns.path_format": ["{}.jpg"],
    "source.columns.weight": ["often"],
    "source.images": ["/i"],
    "source.kind": KINDS,
    "source.path": [None, "https://host/data"],
    "source.test_images": ["/i"],
    "source.test_path": ["/t", "https://host/test"],
    "source.test_seed": [3],
    "source.test_share": [0.1],
    "source.where": [{"split": "train"}, {"split": {"train": "a", "test": "b"}}],
    "targets.box_unit": ["relative"],
    "targets.kind": ["boxes", "labels", "mask", "number"],
    "targets.masks": [{"images": "a", "annotations": "b"}],
    "targets.max_boxes": [3],
    "targets.min_visible": [0.5],
    "test_box_file": ["/b.csv"],
    "test_crop": ["boxes", "center", "full"],
    "test_crop_image_size": [[20_000, 20_000], [40_000, 40_000]],
    "test_filelist": ["/t.txt"],
    "test_label_file": ["/l.csv"],
    "train_box_file": ["/b.csv"],
    "train_filelist": ["/l.txt"],
    "train_label_file": ["/l.csv"],
    "unit": ["box"],
    "views": [FULL],
    "views[].crop": [None, "full", "random_resized"],
    "views[].size": [20_000, 40_000],
}
# Keys without which those that begin so are no config, or are refused for another reason.
BASE: dict[str, dict[str, Any]] = {
    "mix.": {"mix.mixup": 0.2, "mix.cutmix": 1},
    "normalize": {"dtype": "float32"},
    "normalize.": {"normalize.mean": [0.5] * 3, "normalize.std": [0.5] * 3},
    "source.": {"source.kind": "folders", "source.path": "/tree"},
    "source.where": {"source.kind": "table"},
    "targets.m": {"targets.kind": "boxes"},
    "views[].crop": {"crop": "random_resized"},
    "views[].size": {"views[].crop": "full"},
}
LEFT_OUT = object()


def config_of(keys: dict[str, Any]) -> dict[str, Any]:
    """Returns a config of `data` with the keys that are not left out, and with the others that they need."""
    given = {"train_filelist": "/x.txt", "classes": ["a", "b"]}
    for key, needed in itertools.product(keys, BASE):
        given |= deepcopy(BASE[needed]) if key.startswith(needed) else {}
    given |= {key: value for key, value in keys.items() if value is not LEFT_OUT}
    # One channel needs one mean and one deviation.
    if "normalize.mean" in keys or "normalize.std" in keys:
        values = given["normalize.mean" if "normalize.mean" in keys else "normalize.std"]
        given |= {"normalize.mean": values, "normalize.std": values}
    if any(key.startswith("source") for key in given) and keys.get("train_filelist", LEFT_OUT) is LEFT_OUT:
        del given["train_filelist"]
    data: dict[str, Any] = {}
    for key, value in given.items():
        *outer, last = key.split(".")
        node = data
        for part in outer:
            node = node.setdefault(part.removesuffix("[]"), [{}] if part.endswith("[]") else {})
            node = node[0] if isinstance(node, list) else node
        node[last] = value
    return data


def said(keys: dict[str, Any]) -> str:
    """Returns the error of a config; "" if it is accepted."""
    data = config_of(keys)
    others = {name: data.pop(name) for name in ("model", "lr_schedule") if name in data}
    try:
        make_config({"data": data, **others})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("row", [*DATA, *OTHERS], ids=lambda row: f"{row.key}, {row.other}")
def test_two_settings_are_refused_and_each_alone_is_not(row: Conflict) -> None:
    prefix = "data." if row in DATA else ""
    values = [[LEFT_OUT, *VALUES[key]] for key in (row.key, row.other)]
    errors = {
        (one, other): said({row.key: values[0][one], row.other: values[1][other]})
        for one, other in itertools.product(range(len(values[0])), range(len(values[1])))
    }
    refused = [pair for pair, error in errors.items() if f": {row.reason}: {row.remedy}" in error]
    accepted = [pair for pair, error in errors.items() if not error]
    both = [
        (one, other)
        for one, other in refused
        # A size that is too large for one channel is too large for three.
        if any(pair[0] == one for pair in accepted) or (row.other, row.other_refused) == ("num_channels", 1)
        if any(pair[1] == other for pair in accepted)
    ]
    assert both, "some values are refused together, and neither alone"
    for key in (row.key, row.other):
        assert f"{prefix}{key} ".replace("[]", "[0]") in errors[both[0]]


def test_all_conflicts_are_named_with_what_was_received() -> None:
    assert said({"service": 1, "cache": "/disk", "num_parallel_readers": 1, "parallel.read": "autotune"}) == (
        "2 errors in the config:\n"
        '  data.num_parallel_readers 1 and data.parallel.read "autotune": 1 makes the pipeline serial, without '
        'AUTOTUNE: use "auto", or leave parallel.read out\n'
        '  data.service 1 and data.cache "/disk": the processes of the service have neither Python nor '
        "the memory of this one: set cache to null, or set service to null"
    )
