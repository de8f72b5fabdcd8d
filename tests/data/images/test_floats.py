"""Floats of levels: the values of torchvision's steps."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.floats import float_table, to_floats

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
LEVELS = np.tile(np.arange(256, dtype=np.uint8).reshape(2, 8, 16, 1), 3)


def data(dtype: str, normalize: dict | None = None, channels: int = 3) -> DataConfig:
    sections = {"dtype": dtype, "normalize": normalize, "num_channels": channels}
    return DataConfig.model_validate({"train_filelist": Path("unused"), **sections})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("normalize", [None, IMAGENET], ids=["plain", "normalised"])
def test_they_are_the_same_in_a_pipeline(dtype: str, normalize: dict | None) -> None:
    """To the bit, also after what tf.data does to a graph: it may replace a division by a product."""
    config = data(dtype, normalize)
    floats = next(iter(tf.data.Dataset.from_tensors(LEVELS).map(lambda images: to_floats(images, config))))
    expected = LEVELS.astype(np.float32) / np.float32(255)
    if normalize is not None:
        mean, std = (np.array(normalize[name], np.float32) for name in ("mean", "std"))
        expected = (expected - mean) / std
    assert floats.dtype == dtype and floats.shape == LEVELS.shape
    assert floats.numpy().tobytes() == expected.astype(tf.as_dtype(dtype).as_numpy_dtype).tobytes()


def test_values_are_those_of_torchvisions_steps() -> None:
    torch = pytest.importorskip("torch")
    images = torch.from_numpy(LEVELS.transpose(0, 3, 1, 2)).to(torch.float32) / 255
    mean, std = (torch.tensor(IMAGENET[name])[:, None, None] for name in ("mean", "std"))
    expected = ((images - mean) / std).numpy().transpose(0, 2, 3, 1)
    assert (to_floats(tf.constant(LEVELS), data("float32", IMAGENET)).numpy() == expected).all()
    # Half precision is rounded once.
    half = to_floats(tf.constant(LEVELS), data("float16", IMAGENET))
    assert (half.numpy() == expected.astype(np.float16)).all()


def test_channels_have_their_own_values() -> None:
    table = float_table(data("float32", {"mean": [0.0, 0.5, 1.0], "std": [1.0, 0.5, 2.0]}))
    np.testing.assert_allclose(table[:, [0, 255]], [[0, 1], [-1, 1], [-0.5, 0]], atol=1e-7)
    gray = float_table(data("float32", {"mean": [0.5], "std": [0.25]}, channels=1))
    np.testing.assert_allclose(gray[:, [0, 255]], [[-2, 2]], atol=1e-6)
