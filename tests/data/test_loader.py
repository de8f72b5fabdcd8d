"""The Loader: batches in the pipeline's order, a state that resumes exactly, failures by name and in time."""

import copy
import itertools
import json
import math
import os
import pickle
import re
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support.configs import changed
from tests.support.gathers import Gather, loaders_of, on_all
from tests.support.sample import SampleData
from tfpipe import ConfigError, Loader, TfpipeError, World, build_dataset, load_config
from tfpipe.config import Config
from tfpipe.data.failures.missing import DroppedSample
from tfpipe.data.sources.described import NUMBERS, check_numbers
from tfpipe.data.split import Failure


@pytest.fixture
def config(sample: SampleData, index: str, tmp_path: Path) -> Config:
    return load_config(sample.config(tmp_path / "c.json", data={"index": index, "batch_size": 8}))


def positions(batches: list[Any]) -> list[list[int]]:
    return [place for *_, places in batches for place in places.numpy().tolist()]


def take(loader: Loader, count: int) -> list[list[int]]:
    return positions([next(loader) for _ in range(count)])


def test_ranks_that_were_launched_are_never_loaders_of_the_same_share(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "detect", lambda: World(1, 2))
    assert take(Loader(config, positions=True), 2) == take(Loader(config, world=World(1, 2), positions=True), 2)


@pytest.mark.parametrize("key", ["seed", "train_filelist"])
def test_ranks_that_only_a_gather_connects_are_compared_where_they_meet(
    config: Config, sample: SampleData, tmp_path: Path, key: str
) -> None:
    """Another seed, and the same images in another order."""
    (tmp_path / "list.txt").write_text("\n".join(reversed(sample.train.read_text().splitlines())))
    value = {"seed": 7, "train_filelist": tmp_path / "list.txt"}[key]
    other = config.model_copy(update={"data": config.data.model_copy(update={key: value, "index": None})})
    gather = Gather(2)
    loaders = [Loader(each, world=World(n, 2), gather=gather.of(n)) for n, each in enumerate([config, other])]

    def message(loader: Loader) -> str:
        with pytest.raises(ConfigError) as caught:
            loader.state_dict()
        return str(caught.value)

    (said,) = {*on_all(message, loaders)}
    assert "data.seed: 0 on rank 0, 7 on rank 1" in said if key == "seed" else "the train data's file names: " in said


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((2, 3), marks=pytest.mark.full("delivery/test_states.py has it with simulated pipelines")),
        pytest.param((8, 4, 16), marks=pytest.mark.full("more ranks, the same way")),
    ],
)
def test_a_state_goes_on_with_the_very_next_crop_on_any_number_of_ranks(config: Config, sizes: tuple[int, ...]) -> None:
    """Each time within the epoch; what they had prefetched is not lost."""
    config = config.model_copy(update={"data": config.data.model_copy(update={"batch_size": 2})})
    with Loader(config, positions=True) as whole:
        expected = take(whole, 96)
    seen: list[list[int]] = []
    state = None
    for size in sizes:
        loaders = loaders_of(config, size, state=state, positions=True)
        for rank, loader in enumerate(loaders):
            seen += take(loader, 2 + rank % 2)
        state, *others = on_all(lambda loader: json.loads(json.dumps(loader.state_dict())), loaders)
        assert all(other == state for other in others) and state["crops"] == len(seen)
        for loader in loaders:
            loader.close()
    assert len(set(map(tuple, seen))) == len(seen), "none comes twice"
    first = sorted(map(tuple, expected))[: len(seen) // 2]
    assert set(first) <= set(map(tuple, seen)), "none is left out"


def test_start_decodes_before_a_batch_is_taken_and_changes_no_state(config: Config) -> None:
    with Loader(config, positions=True) as first:
        next(first)
        state = first.state_dict()
        expected = take(first, 2)
    with Loader(config, positions=True) as loader:
        loader.load_state_dict(state)
        loader.start()
        deadline_s = time.monotonic() + 60
        while loader.stats()["stages"].get("crop", {"elements": 0})["elements"] == 0:
            assert time.monotonic() < deadline_s, "nothing is decoded"
            time.sleep(0.01)
        assert loader.state_dict() == state and loader.step == first.step - 2
        assert take(loader, 2) == expected


def test_stats_say_what_each_stage_has_done(config: Config) -> None:
    """While the pipeline runs; a batch that was ready early has a delay."""
    with Loader(config, ready=True) as loader:
        assert loader.stats()["stages"] == {}
        for _ in range(20):
            next(loader)
        stats = loader.stats()
        assert list(stats["stages"]) == ["visit", "read", "crop", "finish"]
        assert stats["batches"] == 20 <= stats["stages"]["finish"]["elements"]
        assert stats["stages"]["read"]["elements"] >= 60  # images of 160 crops
        assert stats["stages"]["crop"]["busy"] > 0 and stats["images_per_second"] > 0
        assert 0 <= stats["wait_s"] <= stats["seconds"] and stats["delay_s"] > 0
    assert loader.stats()["stages"] == {}


def test_batches_are_on_the_device_before_they_are_asked_for(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not handed out do not count as used. The CPU is the device; the batches put on it are counted."""
    expected = take(Loader(config, positions=True), 6)
    put: list[int] = []
    fourth = threading.Event()
    identity = tf.identity

    def counted(tensor: tf.Tensor) -> tf.Tensor:
        if tensor.shape.rank == 4:
            put.append(len(put))
            if len(put) == 4:
                fourth.set()
        return identity(tensor)

    monkeypatch.setattr("tfpipe.data.delivery.taker.tf.identity", counted)
    with Loader(config, device="CPU:0", positions=True) as loader:
        found = take(loader, 2)
        # No caller has asked for the third and the fourth batch.
        assert fourth.wait(60) and len(put) == 4
        state = loader.state_dict()
    assert loader.step == 2 and found == expected[:16]
    with Loader(config, device="CPU:0", positions=True) as loader:
        loader.load_state_dict(state)
        batch = next(loader)
        assert batch[0].device.endswith("CPU:0") and positions([batch]) + take(loader, 3) == expected[16:]


def test_a_state_of_other_data_is_refused(config: Config, sample: SampleData, tmp_path: Path) -> None:
    other = load_config(sample.config(tmp_path / "other.json", data={"seed": 5}))
    with pytest.raises(ConfigError, match=r"the state belongs to other data:\n  data\.seed: 0 then, 5 now"):
        Loader(other).load_state_dict(Loader(config).state_dict())
    with pytest.raises(ConfigError, match="reaches no other rank: give the Loader a `gather`"):
        Loader(config, world=World(0, 2)).state_dict()


def test_what_is_left_out_counts_with_the_batches_that_are_used(sample: SampleData, tree: Path, tmp_path: Path) -> None:
    data = {"train_filelist": "train.txt", "test_filelist": "val.txt", "batch_size": 8, "crop": "full"}
    config = load_config(
        sample.config(tmp_path / "c.json", data={**data, "on_error": "skip", "max_bad_fraction": 0.04})
    )
    image = Path(Loader(config, "test").catalog.paths[12])
    image.write_bytes(b"")
    with Loader(config, "test") as loader:
        iterator = iter(loader)
        next(iterator)
        loader.commit()
        next(iterator)  # its batch leaves out position 12, and is not used
        assert loader.dropped() == []
        loader.close()  # it comes again, and is left out again
        next(iterator)
        assert loader.dropped() == []
        loader.commit()
        assert [sample.position for sample in loader.dropped()] == [12]
        assert list(loader.this_pass()) and loader.dropped() == []


def test_storage_that_hangs_ends_the_wait_and_the_program(sample: SampleData, tree: Path, tmp_path: Path) -> None:
    from tests.support.commands import WARM, run

    config = sample.config(tmp_path / "c.json", data={"train_filelist": "train.txt", "crop": "full"})
    image = sorted((tree / "Data/CLS-LOC/train").rglob("*.JPEG"))[5]
    image.unlink()
    os.mkfifo(image)
    program = """
import sys, tfpipe
with tfpipe.Loader(tfpipe.load_config(sys.argv[1]), timeout_s=2) as loader:
    try:
        for _ in loader:
            pass
    except tfpipe.TfpipeError as error:
        print(error)
"""
    ended = run(*WARM, "-c", program, config)
    assert ended.code == 0, ended.err
    assert "rank 0: no batch within 2 s: 1 of the next " in ended.out and f"{image}: no answer in 10 s" in ended.out


def test_each_for_is_a_whole_pass_however_the_one_before_ended(config: Config) -> None:
    with Loader(config, "test", positions=True) as loader:
        whole = positions(list(loader))
        assert len(whole) > 37
        for _ in loader:
            break
        assert positions(list(loader)) == whole
        assert positions(list(islice(loader, len(loader)))) == whole
        assert positions(list(loader)) == whole
        assert [positions(list(loader.epoch(number))) for number in (0, 0, 1)] == [whole] * 3
        next(iter(loader))
        loader.close()
        assert positions(list(loader)) == whole, "closing it ends a pass"


def test_a_commit_of_a_batch_that_is_not_remembered_is_refused(config: Config) -> None:
    with Loader(config) as loader:
        for _ in range(105):
            next(loader)
        state = loader.state_dict()
        for step in (4, 106, -1):
            with pytest.raises(ValueError, match=rf"commit\({step}\): the last batch that counts can be 5 to 105; "):
                loader.commit(step)
        assert loader.state_dict() == state
        loader.commit(5)
        assert loader.state_dict()["crops"] == 40
        loader.commit()
        with pytest.raises(ValueError, match=r"can be 105 to 105"):
            loader.commit(104)


def test_the_state_counts_crops_also_over_other_numbers_of_ranks(config: Config) -> None:
    """Five batches of one rank are two steps of two, and still 40 crops."""
    with Loader(config) as loader:
        for _ in range(5):
            next(loader)
        state = loader.state_dict()
        assert state["crops"] == 40
    ranks = loaders_of(config, 2, state=state)
    for rank in ranks:
        assert rank.step == 2
        next(rank)
    states = on_all(Loader.state_dict, ranks)
    assert states[0] == states[1] and states[0]["crops"] == 56 and states[0]["batches"] == [3, 3]
    for rank in ranks:
        rank.close()


def test_another_batch_size_is_refused_unless_it_is_the_same_over_all_ranks(config: Config) -> None:
    with Loader(config) as loader:
        next(loader)
        state = loader.state_dict()
    other = Config.model_validate({**config.model_dump(), "data": {**config.data.model_dump(), "batch_size": 4}})
    with pytest.raises(ConfigError, match=r"data.batch_size 8 on 1 rank then, 4 on 1 now; accepted: the same per rank"):
        Loader(other).load_state_dict(state)
    halves = Loader(other, world=World(1, 2))
    halves.load_state_dict(state)
    assert halves.step == 1


def test_threads_share_the_batches(config: Config) -> None:
    with Loader(config, positions=True) as loader:
        expected = take(loader, 24)
    with Loader(config, positions=True) as loader:
        seen = on_all(lambda _: take(loader, 6), range(4))
    assert sorted(place for part in seen for place in part) == sorted(expected)


def test_a_thread_of_an_earlier_pass_gets_no_batch_of_the_next(config: Config) -> None:
    with Loader(config, "test", positions=True) as loader:
        whole = positions(list(loader))
        earlier = loader.this_pass()
        next(earlier)
        later = loader.this_pass()
        first = next(later)
        with pytest.raises(RuntimeError, match="another pass over the test data of this Loader has begun"):
            next(earlier)
        assert positions([first, *later]) == whole
        closed = loader.this_pass()
        next(closed)
        loader.close()
        assert list(closed) == []


def test_of_two_passes_at_once_the_earlier_one_ends_with_an_error_and_the_later_one_is_whole(config: Config) -> None:
    """However they begin, from loops within each other, zip or threads; an ended pass stays ended."""
    with Loader(config, "test") as loader:
        whole = [labels.numpy().tolist() for _, labels in loader]
        for begin, begin_other in ((iter, Loader.epoch), (Loader.this_pass, lambda loader: iter(loader.dataset()))):
            earlier = begin(loader)
            next(earlier)
            later = begin_other(loader)
            found = [next(later)]
            with pytest.raises((RuntimeError, tf.errors.UnknownError), match="another pass over the test data of this"):
                next(earlier)
            assert [labels.numpy().tolist() for _, labels in [*found, *later]] == whole
        ended = later
        next(iter(loader))
        assert list(ended) == []
        with pytest.raises(RuntimeError, match="threads that share a pass take the batches of one iterator"):
            list(zip(loader, loader, strict=True))
        shared = iter(loader)
        parts = on_all(lambda _: [labels.numpy().tolist() for _, labels in shared], range(3))
        assert sorted(itertools.chain(*parts)) == sorted(whole)


def test_threads_share_an_epoch_of_training_and_take_none_of_the_next(config: Config) -> None:
    with Loader(config, positions=True, steps_per_epoch=7) as loader:
        parts = on_all(lambda _: positions(list(loader.epoch(0))), range(3))
        assert loader.step == 7 and len(set(map(tuple, itertools.chain(*parts)))) == 56


def test_closing_ends_the_thread_also_while_an_error_is_kept(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traceback of an error that is kept refers to the Taker, which is then not collected."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Loader(config, timeout_s=60) as loader:
        loader.start()
        thread = loader._delivery.taker._thread
        monkeypatch.setattr(loader.meter, "take", interrupt)
        with pytest.raises(KeyboardInterrupt) as kept:
            next(loader)
        loader.close()
    thread.join(10)
    assert kept.tb is not None and not thread.is_alive()


def test_an_own_limit_of_bad_files_takes_the_place_of_the_configs(config: Config) -> None:
    """Half of 96 samples may be left out; the config lets none be."""
    bad = [DroppedSample(number, Failure(f"/{number}.jpg", "the file is empty")) for number in range(49)]
    with Loader(config, max_bad_fraction=0.5) as loader:
        dropped = loader._delivery.dropped
        dropped._open = {sample.position: sample for sample in bad[:48]}
        dropped.check()
        dropped._open |= {bad[48].position: bad[48]}
        with pytest.raises(TfpipeError, match=r"49 of 96 train samples cannot be used, .* 0\.5 allows 48;"):
            dropped.check()


def test_what_keras_would_take_for_labels_or_weights_is_not_in_a_dataset(config: Config) -> None:
    for name in ("ready", "positions", "named"):
        with pytest.raises(
            ConfigError, match=rf"the Loader was made with {name}=True, and Keras would take .*: leave it"
        ):
            Loader(config, "test", **{name: True}).dataset()


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda take: take.__name__)
def test_a_copy_is_refused_with_what_to_do_instead(config: Config, take: Any) -> None:
    with pytest.raises(
        TypeError, match=r"tfpipe\.data\.loader\.Loader has a pipeline .*: make another Loader of the same"
    ):
        take(Loader(config))


def test_a_state_whose_counts_do_not_belong_to_each_other_is_refused(config: Config) -> None:
    with Loader(config) as loader:
        next(loader)
        state = loader.state_dict()
        start = Loader(config).state_dict()
        for changes in ({"crops": 80}, {"batches": [7]}, {"frontiers": start["frontiers"]}, {"ended": True}):
            with pytest.raises(ConfigError, match="this is no whole state of a Loader: "):
                loader.load_state_dict({**state, **changes})
        loader.load_state_dict(state)
        assert loader.step == 1


@given(st.one_of(st.none(), st.integers(), st.floats(), st.booleans(), st.text(), st.integers(-3, 3).map(np.int64)))
def test_each_number_among_the_arguments_is_accepted_in_its_range_alone(value: Any) -> None:
    is_number = isinstance(value, int | float | np.integer) and not isinstance(value, bool)
    accepted = {
        "timeout_s": is_number and value > 0,
        "max_bad_fraction": is_number and (0 <= value <= 1 or value == math.inf),
        "steps_per_epoch": is_number and not isinstance(value, float) and value >= 1,
    }
    assert accepted.keys() == NUMBERS.keys()
    for name, is_accepted in accepted.items():
        if is_accepted or value is None:
            check_numbers(**{name: value})
        else:
            with pytest.raises(ValueError, match=rf"^{name} must be .*; received {re.escape(repr(value))}$"):
                check_numbers(**{name: value})


@pytest.mark.parametrize("split", ["train", "test"])
def test_numbers_that_make_no_sense_are_refused(config: Config, split: str) -> None:
    with pytest.raises(ValueError, match=r"steps_per_epoch must be a whole number above 0; received -3"):
        Loader(config, split, steps_per_epoch=-3)
    with Loader(config, split, timeout_s=9, max_bad_fraction=math.inf, steps_per_epoch=2) as loader:
        assert split == "test" or len(loader) == 2


def test_a_loader_is_true_without_its_length(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of training data every rank must ask for it, and that of test data is not always known."""
    monkeypatch.setattr(Loader, "__len__", lambda _: pytest.fail("it asks the other ranks"))
    assert Loader(config) and Loader(config, "test")


@pytest.mark.parametrize("split", ["train", "test"])
def test_more_bad_files_than_allowed_end_it(sample: SampleData, tree: Path, tmp_path: Path, split: str) -> None:
    data = {"train_filelist": "train.txt", "test_filelist": "val.txt", "batch_size": 8, "crop": "full"}
    config = load_config(
        sample.config(tmp_path / "c.json", data={**data, "on_error": "skip"}), ["data.max_bad_fraction=0.1"]
    )
    catalog = Loader(config, split).catalog
    bad = [Path(catalog.paths[number]) for number in range(1 + len(catalog) // 10)]
    for image in bad[1:]:
        image.write_bytes(b"")
    with Loader(config, split) as loader:
        list(loader) if split == "test" else take_images(loader, len(catalog))
        assert sum(sample.position < len(catalog) for sample in loader.dropped()) == len(bad) - 1
    bad[0].write_bytes(b"")
    message = f"rank 0: {len(bad)} of {len(catalog)} {split} samples cannot be used, .* 0.1 allows {len(bad) - 1};"
    with Loader(config, split) as loader, pytest.raises(TfpipeError, match=f"{message} .*: the file is empty"):
        list(loader) if split == "test" else take_images(loader, len(catalog))


def test_bad_files_of_all_ranks_count_together_where_they_meet(sample: SampleData, tree: Path, tmp_path: Path) -> None:
    data = {"train_filelist": "train.txt", "test_filelist": "val.txt", "crop": "full", "on_error": "skip"}
    config = load_config(sample.config(tmp_path / "c.json", data={**data, "max_bad_fraction": 0.05}))
    ranks = loaders_of(config, 2, "test")
    for item in (3, 8):
        Path(ranks[0].catalog.paths[item]).write_bytes(b"")
    assert [len(loader.dropped()) for loader in ranks if list(loader)] == [1, 1], "37 samples: one is allowed"

    def message(loader: Loader) -> str:
        with pytest.raises(TfpipeError) as caught:
            loader.state_dict()
        return str(caught.value)

    for rank, text in enumerate(on_all(message, ranks)):
        assert text.startswith(
            f"rank {rank}: 2 of 37 test samples cannot be used, and data.max_bad_fraction 0.05 allows 1;"
        ), text
        ranks[rank].close()


def take_images(loader: Loader, images: int) -> None:
    """Takes an epoch of images with one crop each; asks in between for what was left out."""
    for number in range(images // loader.config.data.batch_size + 1):
        next(loader)
        if number % 4 == 3:
            loader._delivery.dropped.find_dropped()


def test_class_folders_without_xmls_have_a_length(sample: SampleData, tmp_path: Path) -> None:
    for number, line in enumerate(sample.train.read_text().splitlines()[:20]):
        image = tmp_path / "train" / f"class{number % 2}" / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(Path(line).read_bytes())
    from tfpipe import make_config

    root = str(tmp_path / "train")
    data = {"train_filelist": root, "test_filelist": root, "batch_size": 8, "crop_image_size": [16, 16]}
    config = make_config({"data": data})
    with Loader(config, "test") as loader:
        assert len(loader) == len(list(loader)) == 3
    assert int(build_dataset(config, "test").cardinality()) == 3


def test_a_dataset_has_the_length_of_a_whole_pass_or_none(config: Config) -> None:
    """A state of less than a batch of all ranks is one, too."""
    with Loader(config, "test", World()) as first:
        next(iter(first))
        state = first.state_dict()
    with Loader(config, "test", World(0, 2)) as loader:
        whole = int(loader.dataset().cardinality())
        assert whole == len(list(loader.dataset())) == len(loader)
        loader.load_state_dict(state)
        assert loader.step == 0
        data = loader.dataset()
        assert int(data.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        assert len(list(data)) < whole == len(list(data))


def test_a_test_pass_goes_on_with_the_same_crops_alone(config: Config) -> None:
    states = {}
    for crop in ("center", "full"):
        with Loader(changed(config, test_crop=crop), "test", World()) as loader:
            next(iter(loader))
            states[crop] = loader.state_dict()
            if crop == "full":
                with pytest.raises(ConfigError, match=r"data\.test_crop: .*then, .*now"):
                    loader.load_state_dict(states["center"])
            loader.load_state_dict(states[crop])


@pytest.mark.parametrize("move", ["close", "load"])
def test_an_interrupted_move_leaves_a_loader_that_goes_on(
    config: Config, monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    with Loader(config, world=World(), positions=True) as loader:
        expected = take(loader, 2)
    with Loader(config, world=World(), positions=True) as loader:
        first, state = take(loader, 1), loader.state_dict()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(loader._delivery, "confirm_dropped", Mock(side_effect=KeyboardInterrupt))
            loader.close() if move == "close" else loader.load_state_dict(state)
        assert first + take(loader, 1) == expected


def test_stats_ask_no_other_rank(sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape comes in a thread of one rank, before the first batch too."""
    data = {"crop_image_size": [[0, 16], [1, 24]], "annotations": "xml", "crop": "boxes"}
    with Loader(load_config(sample.config(tmp_path / "c.json", data=data)), world=World()) as loader:
        monkeypatch.setattr(World, "from_rank0", lambda *_: pytest.fail("a collective"))
        assert loader.stats()["images"] == 0
