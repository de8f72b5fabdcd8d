"""Mixed batches in each framework: the same pixels and shares, with the types that their losses take."""

import numpy as np
import pytest
import torch  # before TensorFlow

import tfpipe
from tests.support.sample import SampleData
from tfpipe import Config, load_config

COUNT = 4


@pytest.fixture(scope="module")
def config(sample: SampleData, index: str, tmp_path_factory: pytest.TempPathFactory) -> Config:
    path = tmp_path_factory.mktemp("mix") / "config.json"
    return load_config(sample.config(path, data={"index": index, "mix": {"mixup": 0.8, "cutmix": 1.0}}))


@pytest.fixture(scope="module")
def expected(config: Config) -> list[tuple[np.ndarray, np.ndarray]]:
    with tfpipe.Loader(config) as loader:
        batches = [tuple(part.numpy() for part in next(loader)) for _ in range(COUNT)]
    assert all(labels.shape == (16, 8) and not np.isin(labels, (0, 1)).all() for _, labels in batches)
    return batches


def test_torch_gets_probabilities_of_classes(config: Config, expected: list[tuple]) -> None:
    with tfpipe.torch.Loader(config) as loader:
        state = None
        for number, (images, labels) in enumerate(expected):
            state = loader.state_dict() if number == 2 else state
            found, shares = next(loader)
            assert (found.permute(0, 2, 3, 1).numpy() == images).all()
            assert shares.dtype == torch.float32 and (shares.numpy() == labels).all()
        assert torch.nn.functional.cross_entropy(torch.zeros(16, 8), shares).isfinite()
    with tfpipe.torch.Loader(config) as resumed:
        resumed.load_state_dict(state)
        for images, labels in expected[2:]:
            found, shares = next(resumed)
            assert (found.permute(0, 2, 3, 1).numpy() == images).all() and (shares.numpy() == labels).all()


def test_jax_gets_floats(config: Config, expected: list[tuple]) -> None:
    pytest.importorskip("jax")
    import tfpipe.jax

    with tfpipe.jax.Loader(config) as loader:
        for images, labels in expected:
            found, shares = next(loader)
            assert (np.asarray(found) == images).all()
            assert shares.dtype == np.float32 and (np.asarray(shares) == labels).all()


def test_keras_gets_them_by_the_spec(config: Config, expected: list[tuple]) -> None:
    import tfpipe.keras

    with tfpipe.Loader(config) as loader:
        dataset = loader.dataset()
        images, labels = dataset.element_spec
        assert (labels.dtype, labels.shape) == ("float32", (16, 8)) and images.dtype == "uint8"
        for (found, shares), (images, labels) in zip(dataset.take(COUNT), expected, strict=True):
            assert (found.numpy() == images).all() and (shares.numpy() == labels).all()
