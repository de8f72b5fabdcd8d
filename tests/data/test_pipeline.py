"""The whole chain: what batches hold, whose shard they are, and that they are the same however they are made."""

import itertools
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.annotations import read_annotation
from tests.support.batches import crops, crops_in, elements, known_crops
from tests.support.configs import changed
from tests.support.images import encoded
from tests.support.sample import SampleData
from tfpipe import Config, Cursor, Stream, World, build_dataset, load_config
from tfpipe.config import Parallel, make_config
from tfpipe.config.augment import RandAugment
from tfpipe.config.targets import TargetsConfig
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.images.decode import MOST_OF_A_CALL
from tfpipe.data.pipeline import MOST_IMAGES, calls_of_a_batch, load, stage_names, transform
from tfpipe.data.runtime import clock as late
from tfpipe.data.runtime.autotune import tuned_values
from tfpipe.data.runtime.parallelism import READS, options
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError

RESIZED = {"crop": "random_resized"}
REPEATED = pytest.mark.full("the branches of the other cells, in other combinations")


@pytest.fixture(scope="module")
def config(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load_config(sample.config(tmp_path_factory.mktemp("pipeline") / "config.json"))


def pixels_of(seen: list[tuple]) -> np.ndarray:
    """The images of crops, as uint8 [crop, 32, 32, 3]."""
    return np.stack([np.frombuffer(pixels, np.uint8).reshape(32, 32, 3) for *_, pixels in seen])


def test_elements_are_as_documented(config: Config) -> None:
    dataset = build_dataset(config, world=World(threads=7))
    images, labels = dataset.element_spec
    assert images == tf.TensorSpec([16, 32, 32, 3], tf.uint8)
    assert labels == tf.TensorSpec([16], tf.int32)
    assert dataset.options() == options(config.data, World(threads=7)) != options(config.data, World(threads=6))
    positions = build_dataset(config, "test", with_positions=True).element_spec[2]
    assert positions == tf.TensorSpec([None, 2], tf.int64)


def test_batches_say_when_they_were_ready(config: Config) -> None:
    began_s = time.time()
    dataset = build_dataset(config, with_positions=True, with_ready=True)
    assert dataset.element_spec[3] == tf.TensorSpec([], tf.float64)
    with_ready = list(dataset.take(4).as_numpy_iterator())
    times_s = [float(ready) for *_, ready in with_ready]
    assert began_s < times_s[0] < times_s[-1] < time.time() and times_s == sorted(times_s)
    places, labels, pixels = zip(*((each[:2], each[2], each[3]) for each in known_crops(config)[:64]), strict=True)
    images, got, positions = (np.concatenate(parts) for parts in list(zip(*with_ready, strict=True))[:3])
    assert list(map(tuple, positions.tolist())) == list(places) and got.tolist() == list(labels)
    assert [image.tobytes() for image in images] == list(pixels)


@pytest.mark.parametrize("size", [1, 2, pytest.param(5, marks=REPEATED)])
def test_the_test_pass_sees_every_image_once_over_the_ranks(config: Config, size: int) -> None:
    catalog = load_split(config.data, "test", World()).catalog
    boxes = [len(read_annotation(path).names) for path in map(catalog.annotation, range(len(catalog)))]
    seen = [known_crops(config, "test", World(rank, size)) for rank in range(size)]
    places = Counter((position, crop) for share in seen for position, crop, *_ in share)
    assert places == Counter((image, crop) for image, count in enumerate(boxes) for crop in range(count))
    for position, _, label, _ in itertools.chain(*seen):
        assert label == catalog.labels[position]


def test_a_rank_without_a_share_of_the_test_data_sees_none(config: Config, sample: SampleData, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("".join(sample.val.read_text().splitlines(True)[:2]))
    config = changed(config, test_filelist=tmp_path / "two.txt")
    assert [{place for place, *_ in crops(config, "test", World(rank, 3))} for rank in (1, 2)] == [{1}, set()]


def test_a_training_epoch_sees_every_image_once(config: Config) -> None:
    split = load_split(config.data, "train", World())
    expected = count_crops(split)
    assert expected.exact
    first = Counter(label for position, _, label, _ in known_crops(config) if position < len(split.catalog))
    boxes = [
        len(read_annotation(path).names) if path else 1
        for path in map(split.catalog.annotation, range(len(split.catalog)))
    ]
    wanted = Counter()
    for label, count in zip(split.catalog.labels, boxes, strict=True):
        wanted[int(label)] += count
    assert first == wanted
    assert expected.crops == sum(boxes)


def test_a_crop_is_its_box_of_its_image(config: Config) -> None:
    """Against Pillow: roughly, since its bilinear antialiases; a wrong box or image is far off."""
    catalog = load_split(config.data, "test", World()).catalog
    for position, crop, _, pixels in known_crops(config, "test")[:32]:
        with Image.open(catalog.paths[position]) as image:
            ymin, xmin, ymax, xmax = read_annotation(catalog.annotation(position)).boxes[crop]
            expected = image.convert("RGB").crop((xmin, ymin, xmax, ymax)).resize((32, 32), Image.Resampling.BILINEAR)
        got = np.frombuffer(pixels, np.uint8).reshape(32, 32, 3).astype(int)
        assert np.abs(got - np.asarray(expected, int)).mean() < 25
        assert np.corrcoef(got.ravel(), np.asarray(expected).ravel())[0, 1] > 0.8


MORE_CROPS = itertools.product([2, 3], [("full", "image"), ("center", "image"), ("boxes", "box")])


@pytest.mark.parametrize(
    ("size", "crop", "unit"),
    [
        (2, "random_resized", "image"),
        (3, "random_resized", "box"),
        pytest.param(2, "random_resized", "box", marks=REPEATED),
        pytest.param(3, "random_resized", "image", marks=REPEATED),
        *(pytest.param(size, *how, marks=REPEATED) for size, how in MORE_CROPS),
    ],
)
def test_ranks_see_the_global_batches_of_one_process(config: Config, size: int, crop: str, unit: str) -> None:
    """N ranks of batch B = one process of batch N * B, pixel by pixel, augmentation and all: one crop a sample."""
    config = changed(config, crop=crop, unit=unit)
    alone = known_crops(config)
    config = changed(config, batch_size=5)
    split = load_split(config.data, "train", World())
    ranks = [crops(config, "train", World(rank, size), steps=30, data=split) for rank in range(size)]
    assert [each for visit in zip(*ranks, strict=True) for each in visit] == alone[: 30 * 5 * size]


@pytest.mark.parametrize(
    ("readers", "prefetch"),
    [(1, 0), *(pytest.param(*each, marks=REPEATED) for each in itertools.product([3, "auto", 1], [2, "auto", 0]))],
)
def test_order_and_pixels_do_not_depend_on_parallelism(config: Config, readers: object, prefetch: object) -> None:
    how = {"num_parallel_readers": readers, "prefetch_buffer_size": prefetch}
    assert crops(changed(config, **RESIZED, **how), "train", steps=4) == known_crops(changed(config, **RESIZED))[:64]


def test_a_rank_sees_all_crops_of_its_images(config: Config) -> None:
    ranks = known_crops(config, world=World(1, 2))
    alone = [each for each in known_crops(config) if each[0] % 2 == 1]
    assert ranks[: len(alone)] == alone


@pytest.mark.parametrize("taken", [7, 150, *(pytest.param(taken, marks=REPEATED) for taken in (0, 1, 63))])
def test_a_resumed_dataset_goes_on_with_the_next_crop(config: Config, taken: int) -> None:
    """Also in the middle of an image of several crops, and in a later epoch."""
    whole = known_crops(config, world=World(1, 2))
    taken = next(taken for taken in range(taken, len(whole)) if whole[taken][1] or taken < 2)
    position, crop, *_ = whole[taken]
    stream = Stream.start(2).at([Cursor(0), Cursor(position, crop)])
    rest = crops(config, "train", World(1, 2), steps=2, resume=stream)
    assert rest == whole[taken : taken + 32]


def test_boxes_as_samples_are_the_crops_of_the_images_in_another_order(config: Config) -> None:
    """An epoch holds the same pixels, each once; the crops of an image are spread over it."""
    split = load_split(config.data, "train", World())
    count = count_crops(split).crops
    by_image = [each for each in known_crops(config) if each[0] < len(split.catalog)]
    boxes = changed(config, unit="box")
    by_box = known_crops(boxes)[:count]
    assert [position for position, *_ in by_box] == list(range(count))
    assert {crop for _, crop, *_ in by_box} == {0}
    assert Counter(each[2:] for each in by_box) == Counter(each[2:] for each in by_image)
    of_box = load_split(boxes.data, "train", World())
    assert count_crops(of_box) == (count, True)
    order = of_box.order
    images = of_box.catalog.boxes.images[order.items(np.arange(count))]
    several = [np.flatnonzero(images == image) for image in np.unique(images)]
    apart = np.concatenate([np.diff(places) for places in several if len(places) > 1])
    assert len(apart) > 10 and np.mean(apart) > 10


def test_test_data_goes_by_image_whatever_the_unit_and_the_scope(config: Config) -> None:
    other = changed(config, unit="box", scope="shard")
    assert crops(other, "test", World(1, 2)) == known_crops(config, "test", World(1, 2))


def test_in_the_scope_shard_a_rank_keeps_its_images(config: Config) -> None:
    config = changed(config, scope="shard", crop="full")
    labels = load_split(config.data, "train", World()).catalog.labels
    for rank in (0, 3):
        seen = crops(config, "train", World(rank, 4), steps=3)
        for epoch in (seen[:24], seen[24:48]):
            assert sorted(label for _, _, label, _ in epoch) == sorted(labels[rank::4].tolist())
        assert [label for _, _, label, _ in seen[:24]] != [label for _, _, label, _ in seen[24:48]]


def test_another_number_of_ranks_goes_on_with_what_is_left(config: Config) -> None:
    """Three ranks, whose images give different numbers of crops; then two, which train the rest, pixel by pixel."""
    alone = {each[:2]: each for each in known_crops(config)}
    ranks = [[each for each in alone.values() if each[0] % 3 == rank][:32] for rank in range(3)]
    stream = Stream.start(3).at([Cursor.after(seen[-1]) for seen in ranks]).over(2)
    rest = [crops(config, "train", World(rank, 2), steps=4, resume=stream) for rank in range(2)]
    seen = [each for share in (*ranks, *rest) for each in share]
    assert len({each[:2] for each in seen}) == len(seen)
    reached = min(share[-1][0] for share in rest)
    wanted = {place for place in alone if place[0] < reached}
    assert wanted <= {each[:2] for each in seen}
    assert all(alone[each[:2]] == each for each in seen if each[:2] in wanted)


def test_a_stream_of_other_ranks_is_refused(config: Config) -> None:
    with pytest.raises(ValueError, match=r"the stream has 3 ranks, and the world 2: use stream.over\(2\)"):
        build_dataset(config, world=World(0, 2), resume=Stream.start(3))


def test_without_shuffling_the_order_is_the_lists(config: Config) -> None:
    labels = load_split(config.data, "train", World()).catalog.labels.tolist()
    in_order = crops(changed(config, shuffle_buffer=1, crop="full"), "train", steps=12)
    assert [label for _, _, label, _ in in_order] == labels * 2
    shuffled = [label for _, _, label, _ in known_crops(changed(config, **RESIZED))[:96]]
    assert shuffled != labels
    assert sorted(shuffled) == sorted(labels)


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ({}, 3),
        ({"annotations": "xml"}, 3),
        ({"batch_size": MOST_OF_A_CALL}, 1),
        ({"batch_size": 97}, 4),
        ({"batch_size": MOST_IMAGES + 1}, 1),
        ({"on_error": "skip"}, 1),
        ({"decoder": "graph"}, 1),
        ({"num_parallel_readers": 1}, 1),
        ({"service": 1}, 1),
        ({"crop": "boxes", "annotations": "xml"}, 1),
        ({"targets": TargetsConfig(kind="mask")}, 1),
    ],
    ids=str,
)
def test_calls_that_write_a_batch_together(config: Config, how: dict, parts: int) -> None:
    chosen = changed(config, **{**RESIZED, "annotations": "none", "batch_size": 65, **how}).data
    loaded = load_split(changed(config, annotations=chosen.annotations).data, "train", World())
    split = replace(loaded, config=chosen)
    assert calls_of_a_batch(split) == parts
    assert stage_names(split).count("crop") == (2 if parts > 1 else "service" not in how)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "data", [{}, {"flip": True, "augment": [RandAugment(name="RandAugment")]}], ids=["plain", "augmented"]
)
def test_a_batch_that_several_calls_write_holds_the_crops_of_its_images(config: Config, split: str, data: dict) -> None:
    """Whatever the size of batches, also where tf.data may change the order of images."""
    chosen = {**RESIZED, "test_crop": "center", "annotations": "none", **data}
    expected = crops(changed(config, **chosen), split, World(1, 2), 20)
    pixels, any_order = {crop[:2]: crop for crop in expected}, tf.data.Options()
    any_order.deterministic = False
    for size in (65, 70, 97):
        dataset = build_dataset(changed(config, **chosen, batch_size=size), split, World(1, 2), with_positions=True)
        found = crops_in(dataset.take(2))
        assert len(found) >= min(130, len(expected)) and found == expected[: len(found)]
        rest = Stream.start(2).moved(1, Cursor.after(found[size - 1][:2])) if len(found) > size else Stream.start(2)
        begun = crops(changed(config, **chosen, batch_size=size), split, World(1, 2), 1, resume=rest)
        assert begun == expected[size : size + len(begun)] if len(found) > size else begun == found
        moved = [crop for crop in crops_in(dataset.take(2).with_options(any_order)) if crop[:2] in pixels]
        assert len(moved) >= min(size, len(expected)) and all(crop == pixels[crop[:2]] for crop in moved)


def test_where_a_run_resumes_batches_are_written_whole(config: Config) -> None:
    """The sample whose crop is used is not visited."""
    split = load_split(changed(config, **RESIZED, annotations="none", batch_size=65).data, "train", World())
    written = [crops.positions[:, 0] for crops in elements(load(split, Stream.start(1).at([Cursor(64, 1)])).take(2))]
    assert [positions.tolist() for positions in written] == [[*range(65, 130)], [*range(130, 195)]]


@pytest.mark.parametrize("damaged", [3, 50, 119])
def test_who_goes_on_after_an_error_misses_a_batch_and_gets_no_crop_that_was_not_written(
    tmp_path: Path, damaged: int
) -> None:
    """The batch of the damaged image: each image has a gray of its own."""
    (tmp_path / "n1").mkdir()
    for gray in range(128):
        contents = encoded(Image.new("L", (32, 32), 2 * gray), quality=100)
        (tmp_path / f"n1/{gray:03}.JPEG").write_bytes(contents[:-9] if gray == damaged else contents)
    (tmp_path / "list.txt").write_text("".join(f"n1/{gray:03}.JPEG\n" for gray in range(128)))
    data = {"train_filelist": tmp_path / "list.txt", "shuffle_buffer": 0, "classes": ["n1"], "crop": "full"}
    config = make_config({"data": {**data, "annotations": "none", "batch_size": 96, "crop_image_size": [8, 8]}})
    dataset = build_dataset(config, with_positions=True).ignore_errors().take(10)
    found = [(images, positions[:, 0]) for images, _, positions in elements(dataset)]
    whole = [np.arange(start, start + 96) for start in range(0, 96 * 99, 96)]
    wanted = [positions for positions in whole if damaged not in positions % 128][:10]
    assert [positions.tolist() for _, positions in found] == [positions.tolist() for positions in wanted]
    for images, positions in found:
        assert np.abs(images - 2.0 * (positions % 128)[:, None, None, None]).max() <= 1


@pytest.mark.parametrize(("parallel", "calls"), [({}, [3, 3]), ({"read": 5}, [5, 3]), ({"decode": 4}, [3, 4])])
def test_stages_have_a_parallelism_of_their_own(config: Config, parallel: dict[str, int], calls: list[int]) -> None:
    chosen = changed(config, **RESIZED, num_parallel_readers=3, prefetch_buffer_size=2, parallel=Parallel(**parallel))
    iterator = iter(build_dataset(chosen))
    seen = np.concatenate([next(iterator)[0] for _ in range(4)])
    assert np.array_equal(seen, pixels_of(known_crops(changed(config, **RESIZED))[:64]))
    nodes = tf.data.experimental.get_model_proto(iterator).nodes.values()
    stages = sorted((node for node in nodes if "Map" in node.name), key=lambda node: -node.id)
    used = [int(each.value) for node in stages for each in node.parameters if each.name == "parallelism"]
    assert used[1:3] == calls  # after that of the visits, which tf.data makes parallel by itself


def test_autotune_chooses_the_calls_and_changes_no_pixel(config: Config) -> None:
    chosen = changed(config, **RESIZED, parallel=Parallel(read="autotune", decode="autotune"), threads=3)
    iterator = iter(build_dataset(chosen))
    seen = np.concatenate([next(iterator)[0] for _ in range(4)])
    assert np.array_equal(seen, pixels_of(known_crops(changed(config, **RESIZED))[:64]))
    knobs = {each.stage: each.value for each in tuned_values(iterator) if each.parameter == "parallelism"}
    # Reads have an unbounded pool, for which TensorFlow allows 10 times as many.
    assert 1 <= knobs["read"] <= 30 and 1 <= knobs["crop"] <= 3
    nodes = tf.data.experimental.get_model_proto(iterator).nodes.values()
    limits = sorted(each.max for node in nodes for each in node.parameters if each.name == "parallelism")
    assert limits[-2:] == [3, 30]
    assert not {"read", "crop"} & {each.stage for each in tuned_values(iter(build_dataset(changed(config, **RESIZED))))}


@pytest.mark.parametrize(
    ("how", "threads", "budget"),
    [({}, 8, 8), ({"threads": 0.4}, 8, 3), ({"threads": 0.1}, 2, 1), ({"threads": 5}, 2, 5)],
)
def test_the_pipeline_keeps_to_its_ranks_cpus(config: Config, how: dict, threads: int, budget: int) -> None:
    found = options(changed(config, **how).data, World(threads=threads))
    assert found.threading.private_threadpool_size == found.autotune.cpu_budget == budget


def test_reads_that_wait_wait_at_the_same_time(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read returns before READS wait, in a pipeline of one thread."""
    waits, all_wait = itertools.count(1), threading.Barrier(READS)
    delays_s = set()

    class Clock:
        @staticmethod
        def sleep(delay_s: float) -> None:
            delays_s.add(delay_s)
            if next(waits) <= READS:
                all_wait.wait(timeout=120)

    monkeypatch.setattr(late, "time", Clock)
    monkeypatch.setenv(late.DELAY_MS, "50")
    assert len(crops(changed(config, threads=1, crop="full"), "train", steps=5)) == 80
    assert delays_s == {0.05}


def test_a_transform_of_the_users_own_ends_the_pipeline(config: Config, tmp_path: Path, monkeypatch) -> None:
    code = "def last(images, labels):\n    return 1 - images, labels + 100\n"
    (tmp_path / "users_own.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    chosen = changed(config, transform="users_own:last", dtype="float32")
    images, labels, positions = next(iter(build_dataset(chosen, with_positions=True)))
    before = known_crops(config)[:16]
    assert np.allclose(images, 1 - pixels_of(before) / 255, atol=1e-6)
    assert labels.numpy().tolist() == [label + 100 for _, _, label, _ in before]
    assert list(map(tuple, positions.numpy().tolist())) == [each[:2] for each in before]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests", 'must be "package.module:function", received "tests"'),
        ("tests.no_such:last", "cannot import tests.no_such"),
        ("tests.conftest:no_such", "conftest.py has no function no_such"),
    ],
)
def test_a_transform_that_is_not_there_is_named(config: Config, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        transform(tf.data.Dataset.range(1), changed(config, transform=name).data)


def test_the_serial_pipeline_is_not_made_parallel_by_tf_data(config: Config) -> None:
    found = options(changed(config, num_parallel_readers=1, prefetch_buffer_size=0).data, World())
    assert found.threading.private_threadpool_size == 1
    assert found.autotune.enabled is False
    assert found.experimental_optimization.map_parallelization is False
    assert found.experimental_optimization.inject_prefetch is False
