"""Mixed batches through the whole pipeline: what they hold, from any source, after any resume, on each rank."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tfpipe
from tests.support.batches import assert_same, batches, elements
from tests.support.configs import changed
from tests.support.gathers import loaders_of, on_all
from tests.support.packs import LOOSE, packed
from tests.support.sample import SampleData
from tfpipe import Config, ConfigError, Loader, World, build_dataset, load_config
from tfpipe.config.data_sections import Mix, Normalize
from tfpipe.data.pipeline import stage_names
from tfpipe.data.runtime.autotune import stages
from tfpipe.data.sources.registry import load_split

BOTH = Mix(mixup=0.8, cutmix=1.0, prob=0.9)
COUNT = 12


@pytest.fixture(scope="module")
def plain(sample: SampleData, index: str, tmp_path_factory: pytest.TempPathFactory) -> Config:
    data = {"index": index, "batch_size": 8, "crop": "random_resized"}
    return load_config(sample.config(tmp_path_factory.mktemp("mix") / "config.json", data=data))


@pytest.fixture(scope="module")
def config(plain: Config) -> Config:
    return changed(plain, mix=BOTH)


@pytest.fixture(scope="module")
def expected(config: Config) -> list[tuple]:
    return batches(config, count=COUNT)


def test_elements_are_as_documented(config: Config, sample: SampleData) -> None:
    images, labels = build_dataset(config).element_spec
    assert images == tf.TensorSpec([8, 32, 32, 3], tf.uint8)
    assert labels == tf.TensorSpec([8, len(sample.classes)], tf.float32)
    assert build_dataset(changed(config, num_classes=50)).element_spec[1].shape == (8, 50)


def test_test_batches_stay_as_they_are(config: Config, plain: Config) -> None:
    assert_same(batches(config, "test"), batches(plain, "test"))


def test_crops_are_mixed_with_those_before_them_and_labels_by_the_same_shares(
    plain: Config, expected: list[tuple], sample: SampleData
) -> None:
    kinds = set()
    for (images, numbers, positions), (mixed, labels, places) in zip(
        batches(plain, count=COUNT), expected, strict=True
    ):
        assert (positions == places).all()
        partners, one_hot = np.roll(images, 1, 0), np.eye(len(sample.classes))
        others = np.roll(numbers, 1)
        (first,) = np.flatnonzero(numbers != others)[:1]
        share = labels[first, numbers[first]]
        np.testing.assert_allclose(labels, share * one_hot[numbers] + (1 - share) * one_hot[others], atol=1e-6)
        mean = np.floor(share * images.astype(float) + (1 - share) * partners + 0.5)
        if (mixed == images).all():
            assert share == 1
            kinds.add("none")
        elif (abs(mixed - mean) <= 1).all():  # a share is rounded, as is a level
            kinds.add("mixup")
        else:
            changed_pixels = (mixed != images).any((0, 3))
            rows, columns = (np.flatnonzero(changed_pixels.any(axis)) for axis in (1, 0))
            box = np.s_[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            pasted = images.copy()
            pasted[box] = partners[box]
            assert (mixed == pasted).all()
            assert 1 - share == pytest.approx(pasted[0, ..., 0][box[1:]].size / 32**2, abs=1e-6)
            kinds.add("cutmix")
    assert kinds == {"none", "mixup", "cutmix"}


def test_packed_crops_are_mixed_alike(config: Config, sample: SampleData, tmp_path: Path) -> None:
    loose = changed(config, crop="boxes", flip=True)
    pack = packed(changed(loose, mix=None), tmp_path / "raw", "raw", shards=2)
    data = {**LOOSE, "source": {"kind": "packed", "path": str(pack)}, "batch_size": 8, "flip": True}
    raw = changed(load_config(sample.config(tmp_path / "c.json", data=data)), mix=BOTH)
    assert_same(batches(raw, count=COUNT), batches(loose, count=COUNT))


def test_batches_of_the_other_decoder_are_mixed_alike(config: Config, expected: list[tuple]) -> None:
    assert_same(batches(changed(config, decoder="graph"), count=4), expected[:4])


def test_floats_are_made_of_mixed_levels(config: Config, expected: list[tuple]) -> None:
    normalize = Normalize(mean=[0.5, 0.4, 0.3], std=[0.25, 0.5, 1.0])
    floats = batches(changed(config, dtype="float32", normalize=normalize), count=COUNT)
    for (images, labels, positions), (levels, *others) in zip(floats, expected, strict=True):
        values = (levels / np.float32(255) - np.float32(normalize.mean)) / np.float32(normalize.std)
        assert images.dtype == np.float32 and (images == values).all()
        assert (labels == others[0]).all() and (positions == others[1]).all()


def of(batch: Any) -> tuple[np.ndarray, ...]:
    return tuple(part.numpy() for part in batch)


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_resumed_anywhere_has_the_same_batches_bit_for_bit(config: Config, size: int) -> None:
    worlds = [World(rank, size) for rank in range(size)]
    whole = []
    for world in worlds:
        with Loader(config, world=world, positions=True) as loader:
            whole.append([of(batch) for batch in islice(loader, COUNT)])
    for stop in (1, 7):
        loaders = loaders_of(config, size, positions=True)
        for loader in loaders:
            list(islice(loader, stop))
        states = on_all(Loader.state_dict, loaders)
        for loader in loaders:
            loader.close()
        for world, state, batches_of_rank in zip(worlds, states, whole, strict=True):
            with Loader(config, world=world, positions=True) as resumed:
                resumed.load_state_dict(state)
                assert_same([of(next(resumed)) for _ in range(COUNT - stop)], batches_of_rank[stop:])


def test_another_mix_is_another_contract(config: Config, plain: Config) -> None:
    with Loader(config, world=World()) as loader:
        next(loader)
        state = loader.state_dict()
    with pytest.raises(ConfigError, match=r"data\.mix: .*mixup.* then, null now"):
        Loader(plain, world=World()).load_state_dict(state)


def halved(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    assert labels.dtype == tf.float32 and labels.shape.rank == 2
    return images[:, ::2, ::2], labels


def test_a_transform_gets_mixed_batches(config: Config, expected: list[tuple]) -> None:
    found = batches(changed(config, transform=f"{__name__}:halved"), count=3)
    for (images, labels, _), (levels, shares, _) in zip(found, expected, strict=False):
        assert (images == levels[:, ::2, ::2]).all() and (labels == shares).all()


def test_class_weights_draw_the_samples_that_are_mixed(plain: Config, sample: SampleData) -> None:
    weights = {name: float(number == 1) for number, name in enumerate(sample.classes)}
    _, labels, _ = batches(changed(plain, class_weights=weights, mix=BOTH), count=1)[0]
    assert (labels == np.eye(len(sample.classes))[[1] * 8]).all()


def test_the_stage_has_a_name(config: Config) -> None:
    split = load_split(config.data, "train", World())
    assert stage_names(split) == ("visit", "read", "crop", "mix", "finish")
    assert stage_names(load_split(config.data, "test", World())) == ("visit", "read", "crop", "finish")
    iterator = iter(build_dataset(config))
    for _ in range(4):
        next(iterator)
    (found,) = (stage for stage in stages(iterator, stage_names(split)) if stage.stage == "mix")
    assert found.elements >= 4 and found.busy_ms > 0


def test_one_class_cannot_be_mixed(config: Config, tmp_path: Path, sample: SampleData) -> None:
    one = [line for line in sample.train.read_text().splitlines() if f"/{sample.classes[0]}/" in line]
    (tmp_path / "one.txt").write_text("\n".join(one) + "\n")
    single = changed(config, train_filelist=tmp_path / "one.txt", index=None, annotations="none", test_filelist=None)
    with pytest.raises(ConfigError, match=r"data\.mix makes shares of classes, and .*one\.txt has one, "):
        next(elements(build_dataset(single)))


def numbered(sample: SampleData, columns: dict[str, str] | None = None, **keys: Any) -> Loader:
    """A Loader of images, each with its number for a label."""
    paths = sample.train.read_text().splitlines()[:32]
    table = pd.DataFrame({"path": paths, "label": np.arange(32.0), "id": range(32)})
    options = {"image_size": 16, "batch_size": 8, "crop": "full", "world": World(), **keys}
    return tfpipe.load(table, **options, **({"columns": columns} if columns else {}))


def test_numbers_are_mixed_as_their_crops_are(sample: SampleData) -> None:
    with numbered(sample, targets="number", positions=True) as plain:
        _, numbers, positions = (part.numpy() for part in next(plain))
    mix = {"mixup": 0.8}
    with numbered(sample, targets="number", mix=mix) as mixed, numbered(sample, mix=mix, num_classes=32) as shares:
        found, (_, weights) = next(mixed)[1].numpy(), next(shares)
        share = weights.numpy()[0].max()
        assert len(positions) == 8 and 0.5 <= share < 1
        either = [part * numbers + (1 - part) * np.roll(numbers, 1) for part in (share, 1 - share)]
        assert min(abs(found - each).max() for each in either) < 1e-5


def test_further_columns_are_not_mixed(sample: SampleData) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.mix mixes labels, and data\.source\.columns\.extra adds id, of which"
    ):
        next(numbered(sample, columns={"extra": ["id"]}, mix={"mixup": 0.8}, targets="number"))
