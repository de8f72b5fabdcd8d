"""docs/augmentation.md and the recipes: each config loads, and trains as the page's command has it."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.documents import lines
from tests.support.runs import read_metrics
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.config.augment import NAMES
from tfpipe.training.loop import train

PAGE = ROOT / "docs/augmentation.md"
CONFIGS = sorted((ROOT / "configs").rglob("*.json"))
RECIPES = sorted((ROOT / "configs/recipes").glob("*.json"))


def by_name(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def overrides(folder: Path) -> list[str]:
    """The settings of the page's command on the sample of `make train`, for the sample in `folder`."""
    (command,) = (line for line in lines(PAGE) if "configs/recipes/" in line and "data/sample" in line)
    words = shlex.split(command)
    settings = [word for flag, word in pairwise(words) if flag == "--set"]
    return [setting.replace("$PWD/data/sample", str(folder)) for setting in settings]


@by_name(CONFIGS)
def test_a_config_of_the_repository_loads(path: Path) -> None:
    """None has a key twice or without effect, and its data lie where `make train` or ImageNet's user puts them."""
    data = load_config(path).data
    assert all(filelist.is_relative_to(ROOT / "data") for filelist in data.train_lists)


@by_name(RECIPES)
def test_a_recipe_trains_on_the_sample(path: Path, sample: SampleData, tmp_path: Path) -> None:
    """With the page's settings; a small network and three steps in place of the page's."""
    for name, filelist in (("train", sample.train), ("val", sample.val)):
        (tmp_path / "lists").mkdir(exist_ok=True)
        (tmp_path / f"lists/{name}.txt").write_text(filelist.read_text())
    for name in ("LOC_val_solution.csv", "LOC_synset_mapping.txt"):
        (tmp_path / name).symlink_to(sample.root / name)
    small = ["data.batch_size=16", "model.args={}", "model.name=tests.support.models:tiny", "training.epochs=1"]
    config = load_config(path, [*overrides(tmp_path), *small, "training.steps_per_epoch=3"])
    (tmp_path / "run").mkdir()
    train(config, World(), tmp_path / "run")
    (metrics,) = read_metrics(tmp_path / "run")
    assert metrics["step"] == 3 and metrics["test_images"] == 37
    # The settings keep what makes it this recipe.
    whole = load_config(path)
    for key in ("augment", "mix", "resize", "crop"):
        assert getattr(config.data, key) == getattr(whole.data, key)
    assert (config.loss, config.optimizer) == (whole.loss, whole.optimizer)


def test_the_page_has_every_step() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert tuple(rows) == NAMES
