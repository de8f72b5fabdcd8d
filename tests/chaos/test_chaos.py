"""Some of what `python -m tests.chaos` does at length."""

from pathlib import Path

import pytest

from tests.chaos.plan import draw
from tests.chaos.run import Story
from tests.support.sample import SampleData, make_sample


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    return make_sample(tmp_path_factory.mktemp("chaos"), images=48, val_images=12)


@pytest.mark.parametrize(
    "seed",
    [
        1005,
        *(pytest.param(seed, marks=pytest.mark.full("one random run is in make test")) for seed in (1002, 1004, 2004)),
    ],
)
def test_a_random_run_uses_every_crop_once_whatever_it_meets(small: SampleData, tmp_path: Path, seed: int) -> None:
    Story(draw(seed), small, tmp_path).carry_out()
