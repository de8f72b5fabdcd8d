"""Results of `data.transform`: passed on as Keras understands them, with the right positions, or refused by name."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.support.sample import SampleData
from tfpipe import Config, ConfigError, Loader, TfpipeError, build_dataset, load_config
from tfpipe.data.batch import split_weights

Transform = Callable[[Any, Any], Any]


@pytest.fixture
def given(sample: SampleData, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """Returns a function that makes configs with a transform."""
    path = sample.config(tmp_path / "c.json", data={"index": index, "batch_size": 8})

    def with_transform(transform: Transform) -> Config:
        module = ModuleType("user")
        module.f = transform
        monkeypatch.setitem(sys.modules, "user", module)
        return load_config(path, ["data.transform=user:f"])

    return with_transform


def image_and_flipped(images: Any, labels: Any) -> Any:
    return {"views": (images, tf.reverse(images, [2])), "labels": labels}


def one_hot_and_weights(images: Any, labels: Any) -> Any:
    return images, tf.one_hot(labels, 8), tf.cast(labels, tf.float32)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "transform", [image_and_flipped, one_hot_and_weights, lambda images, labels: images, lambda *both: list(both)]
)
def test_structures_arrive_as_they_are_and_the_state_is_exact(
    given: Callable[..., Config], transform: Transform, split: str
) -> None:
    config = given(transform)
    with Loader(config, split, positions=True) as loader:
        batches = [next(loader) for _ in range(3)]
        state = loader.state_dict()
        assert state["crops"] == 24
        more = next(loader)
    with Loader(config, split, positions=True) as resumed:
        resumed.load_state_dict(state)
        again = next(resumed)
    tf.nest.map_structure(np.testing.assert_array_equal, numpy(again), numpy(more))
    for batch, positioned in zip(batches, build_dataset(config, split, with_positions=True), strict=False):
        tf.nest.map_structure(np.testing.assert_array_equal, numpy(batch), numpy(positioned))
    *data, positions = batches[0]
    assert positions.shape == (8, 2) and positions.dtype == tf.int64
    spec = build_dataset(config, split).element_spec
    assert tf.nest.assert_same_structure(spec, tuple(data) if isinstance(spec, tuple) else data[0]) is None


def numpy(structure: Any) -> Any:
    return tf.nest.map_structure(np.asarray, structure)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_other_frameworks_get_the_structure(given: Callable[..., Config], framework: str) -> None:
    config = given(image_and_flipped)
    with Loader(config) as loader:
        expected = numpy(next(loader))
    package = {"torch": tfpipe.torch, "jax": tfpipe.jax}[framework]
    with package.Loader(config, positions=True) as loader:
        data, positions = next(loader)
    first, second = (np.asarray(view) for view in data["views"])
    if framework == "torch":
        first, second = first.transpose(0, 2, 3, 1), second.transpose(0, 2, 3, 1)
        assert str(data["labels"].dtype) == "torch.int64"
    np.testing.assert_array_equal(first, expected["views"][0])
    np.testing.assert_array_equal(second, expected["views"][1])
    np.testing.assert_array_equal(np.asarray(data["labels"]), expected["labels"])
    assert np.asarray(positions).shape == (8, 2)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (lambda images, labels: (images, images, images, labels), "a tuple of 4"),
        (lambda images, labels: (images, images, labels), r"its part \[2\] would weigh the samples, and is no float"),
        (lambda images, labels: ([images, images], labels), r"its part \[0\] is no tensor but \[uint8"),
        (lambda images, labels: (images, tf.strings.as_string(labels)), r"its part \[1\] has the type string"),
        (lambda images, labels: {"x": images, "n": 3}, r"its part \['n'\] is no tensor but int"),
        (lambda images, labels: None, "it is no tensor but NoneType"),
        (lambda images, labels: (images, tf.reduce_mean(labels)), r"its part \[1\] has no batch dimension"),
        (lambda images, labels: (images[:3], labels), r"its part \[0\] has 3 rows, and the batch has 8 crops"),
    ],
)
def test_what_no_framework_takes_is_refused(given: Callable[..., Config], transform: Transform, reason: str) -> None:
    message = rf'^data.transform "user:f" returned .*: {reason}.*; accepted: images and labels, or \(x, y, sample'
    with pytest.raises(ConfigError, match=message):
        build_dataset(given(transform))


def test_rows_that_only_a_batch_tells_are_counted_then(given: Callable[..., Config]) -> None:
    config = given(lambda images, labels: (images, tf.boolean_mask(labels, labels > 2)))
    message = r'rank 0: data.transform: "user:f" gave a first dimension \[\d\] for a batch of \[8\]$'
    with Loader(config) as loader, pytest.raises(TfpipeError, match=message):
        next(loader)


def test_training_takes_weights_and_says_what_it_does_not_take() -> None:
    images, labels, weights = tf.zeros([2, 1, 1, 3]), tf.zeros([2]), tf.ones([2])
    assert split_weights((images, labels), "x") == (images, labels, None)
    assert split_weights((images, labels, weights), "x") == (images, labels, weights)
    for data in (images, {"images": images}, ((images, images), labels), (images,)):
        with pytest.raises(ConfigError, match=r"tfpipe train needs a tensor of images and one of labels, and data\.tr"):
            split_weights(data, "tfpipe train")
