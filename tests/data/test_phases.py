"""Sizes by epoch: every crop once, of the size of its epoch, on all ranks alike, and the same after any resume."""

import hashlib
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tfpipe
from tests.support.configs import changed
from tests.support.gathers import loaders_of, on_all
from tests.support.models import tiny
from tests.support.sample import SampleData
from tfpipe import Config, ConfigError, Loader, World, build_dataset, load_config
from tfpipe.data.order.schedule import Phase, Schedule
from tfpipe.data.order.stream import Stream

SIDES = [[0, 16], [1, 24], [3, 32]]
BATCHES = [[0, 16], [2, 8]]
# 96 samples: 6, 6, 12, 12 steps of one rank, which begin at these, and the sizes of their batches.
FIRST, SHAPES = (0, 6, 12, 24, 36), ((16, 16), (16, 24), (8, 24), (8, 32))
Digest = tuple[int, int, str]


@pytest.fixture
def config(sample: SampleData, index: str, tmp_path: Path) -> Config:
    data = {"index": index, "crop": "random_resized", "crop_image_size": SIDES, "batch_size": BATCHES}
    return load_config(sample.config(tmp_path / "c.json", data=data))


def digests(batch: tuple[Any, ...]) -> list[Digest]:
    """(position, side, digest of the pixels) of each crop of a batch with positions."""
    images, labels, positions = (np.asarray(part) for part in batch)
    return [
        (int(position), image.shape[0], hashlib.sha256(image.tobytes() + label.tobytes()).hexdigest())
        for (position, _), image, label in zip(positions, images, labels, strict=True)
    ]


def take(loader: Loader, count: int) -> list[list[Digest]]:
    return [digests(next(loader)) for _ in range(count)]


def test_each_epoch_has_the_crops_that_a_config_of_its_size_has(config: Config) -> None:
    """The stream continues over the bounds of phases; the pixels are those of a fixed size at the same positions."""
    with Loader(config, world=World(), positions=True) as loader:
        seen = [take(loader, loader.schedule.phase(epoch).steps) for epoch in range(4)]
        assert loader.schedule.locate(loader.step) == (4, 0)
    assert [position for epoch in seen for batch in epoch for position, *_ in batch] == list(range(4 * 96))
    for epoch, batches in enumerate(seen):
        assert {(len(batch), side) for batch in batches for _, side, _ in batch} == {SHAPES[epoch]}
        fixed = config.at(epoch)
        assert (fixed.data.batch_size, fixed.data.crop_image_size[0]) == SHAPES[epoch]
        stream = Stream((tfpipe.Cursor(96 * epoch),))
        expected = build_dataset(fixed, with_positions=True, resume=stream).take(len(batches))
        assert batches == [digests(batch) for batch in expected]


@pytest.mark.parametrize("stop", [3, 6, 11, 12, 24])
def test_a_state_goes_on_inside_a_phase_and_at_its_bound(config: Config, stop: int) -> None:
    with Loader(config, world=World(), positions=True) as whole:
        expected = take(whole, FIRST[-1])
    with Loader(config, world=World(), positions=True) as first:
        assert take(first, stop) == expected[:stop]
        state = json.loads(json.dumps(first.state_dict()))
    with Loader(config, world=World(), positions=True) as resumed:
        resumed.load_state_dict(state)
        epoch, done = resumed.schedule.locate(resumed.step)
        assert (resumed.step, stop - FIRST[epoch]) == (stop, done)
        rest = [digests(batch) for batch in resumed.epoch(epoch)]
        assert rest == expected[stop : FIRST[epoch + 1]]
        if epoch < 3:
            assert take(resumed, 2) == expected[FIRST[epoch + 1] :][:2]


def test_ranks_change_sizes_at_the_same_step_and_leave_no_crop_out(config: Config) -> None:
    """3 steps of 2 x 16, and so on; then 3 ranks continue at the beginning of an epoch, and 1 in the middle of one."""
    two, three, (one,) = (loaders_of(config, size, positions=True) for size in (2, 3, 1))
    seen = [[digests(batch) for batch in loader.epoch(0)] for loader in two]
    assert [len(batches) for batches in seen] == [3, 3]
    state, _ = on_all(Loader.state_dict, two)
    for loader in three:
        loader.load_state_dict(state)
        assert loader.schedule.locate(loader.step) == (1, 0)
    seen += [[digests(batch) for batch in loader.epoch(1)] for loader in three]
    assert [len(batches) for batches in seen[2:]] == [2, 2, 2]
    seen += [take(loader, 3) for loader in three]
    state, *_ = on_all(Loader.state_dict, three)
    one.load_state_dict(state)
    # 3 of 4 steps of 3 x 8 crops are done: 72 of 96, and 9 of 12 steps of one rank.
    assert one.schedule.locate(one.step) == (2, 9)
    seen += [take(one, 4)]
    crops = [crop for batches in seen for batch in batches for crop in batch]
    assert sorted(position for position, *_ in crops) == list(range(len(crops)))
    assert {side for *_, side, _ in crops[: 2 * 48]} == {16} and {side for *_, side, _ in crops[96 : 96 * 3]} == {24}
    assert [side for _, side, _ in crops[-32:]] == [24] * 24 + [32] * 8
    for loader in (*two, *three, one):
        loader.close()


def test_a_resume_stays_in_the_epoch_also_if_its_steps_have_fewer_crops() -> None:
    """Epochs have 10 steps whatever the batch: 9 steps of 8 crops would be 18 steps of 4."""
    then, now = (Schedule((Phase(0, 10, 8), Phase(2, 10, size))) for size in (8, 4))
    assert [now.resume_step(then, step, 1, 1) for step in (19, 22, 25, 29)] == [19, 24, 29, 29]
    assert [now.resume_step(then, step, 1, 4) for step in (22, 29)] == [21, 24]


def test_the_same_batch_over_all_ranks_continues_step_for_step(config: Config) -> None:
    halves = changed(config, batch_size=load(config, [[0, 8], [2, 4]]))
    (one,), two = (loaders_of(each, size, positions=True) for each, size in ((config, 1), (halves, 2)))
    expected = take(one, 15)
    with Loader(config, world=World(), positions=True) as first:
        take(first, 11)
        state = first.state_dict()
    for loader in two:
        loader.load_state_dict(state)
        assert loader.step == 11
    parts = [take(loader, 4) for loader in two]
    for number, batches in enumerate(zip(*parts, strict=True)):
        assert sorted(crop for batch in batches for crop in batch) == sorted(expected[11 + number])
    for loader in (one, *two):
        loader.close()


def load(config: Config, batch_size: Any) -> Any:
    """The value of data.batch_size as a config has it."""
    raw = {"data": {"train_filelist": str(config.data.train_filelist), "batch_size": batch_size}}
    return tfpipe.make_config(raw).data.batch_size


def test_keras_fits_a_model_over_the_bound(config: Config) -> None:
    config = config.model_copy(update={"data": config.data.model_copy(update={"batch_size": 16})})
    with Loader(config, world=World()) as loader:
        assert loader.steps_per_epoch == 6
        images, labels = loader.dataset().element_spec
        assert images.shape.as_list() == [16, None, None, 3] and labels.shape.as_list() == [16]
        model = tiny((None, None, 3), 8)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        commit = tfpipe.keras.Commit(loader)
        model.fit(loader.dataset(), steps_per_epoch=6, epochs=2, shuffle=False, verbose=0, callbacks=[commit])
        assert loader.used == 12
        assert next(loader)[0].shape[1] == 24


def test_the_rate_is_that_of_the_phases_batch(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loader(config, world=World()) as loader:
        monkeypatch.setattr(loader.meter, "stats", lambda batch_size, *_: {"batch_size": batch_size})
        sizes = []
        for step in FIRST[:4]:
            loader.restart(step=step)
            sizes.append(loader.stats()["batch_size"])
    assert sizes == [16, 16, 8, 8]


def test_test_data_have_one_size(config: Config) -> None:
    for size, side in ((None, 32), ((40, 40), 40)):
        now = changed(config, test_crop_image_size=size)
        with Loader(now, "test", World()) as loader:
            shapes = [images.shape.as_list() for images, _ in loader]
            assert len(shapes) == len(loader) == 5 and shapes[0] == [8, side, side, 3]
        first, _ = next(iter(build_dataset(now, "test")))
        assert first.shape[1] == side
    plain = changed(config, crop_image_size=(16, 16), batch_size=4, test_crop_image_size=(24, 24))
    with Loader(plain, world=World()) as train, Loader(plain, "test", World()) as test:
        assert [next(loader)[0].shape[1] for loader in (train, test)] == [16, 24]
        state = train.state_dict()
    with Loader(changed(plain, test_crop_image_size=None), world=World()) as other:
        other.load_state_dict(state)
        assert other.step == 1


def test_what_has_one_size_refuses_several(config: Config, sample: SampleData, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"changes with the epochs, and a dataset has one size: .*config\.at\(epoch\)"
    ):
        build_dataset(config)
    with Loader(config, world=World()) as loader:
        state = loader.state_dict()
    with Loader(changed(config, crop_image_size=(32, 32)), world=World()) as loader:
        with pytest.raises(ConfigError, match=r"data\.crop_image_size: \[\[0, \[16, 16\]\], .*\] then, \[32, 32\] now"):
            loader.load_state_dict(state)
    other = changed(config, batch_size=load(config, [[0, 16], [2, 4]]))
    with Loader(other, world=World()) as loader:
        message = r"data\.batch_size \[\[0, 16\], \[2, 8\]\] on 1 rank then, \[\[0, 16\], \[2, 4\]\] on 1 now"
        with pytest.raises(ConfigError, match=message):
            loader.load_state_dict(state)


@pytest.mark.parametrize(("steps", "sizes"), [(None, (2, 1)), (3, (1, 2))], ids=str)
def test_sizes_that_change_leave_a_state_whole_on_other_ranks(
    config: Config, steps: int | None, sizes: tuple[int, ...]
) -> None:
    """Steps are rounded in each epoch, or set, so that batches say nothing of crops."""
    config = changed(config, batch_size=7)
    state: dict[str, Any] | None = None
    for size in sizes:
        loaders = loaders_of(config, size, state=state, steps_per_epoch=steps)
        for loader in loaders:
            epoch, done = loader.schedule.locate(loader.step)
            for _ in range(loader.schedule.phase(epoch).steps - done + 2):
                next(loader)
        state = on_all(Loader.state_dict, loaders)[0]
        for loader in loaders:
            loader.close()
    with Loader(config, world=World(), steps_per_epoch=steps) as last:
        last.load_state_dict(state)
        next(last)
