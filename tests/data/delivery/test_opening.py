"""Lengths of epochs and passes, and Loader.dataset(), of which Keras takes an iteration an epoch."""

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tqdm import tqdm

from tests.support.models import tiny
from tests.support.routes import samples, write_files
from tfpipe import ConfigError, Loader, World, load
from tfpipe.data.runtime.shutdown import NAME

SMALL: dict[str, Any] = {"image_size": 16, "batch_size": 4, "world": World()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """24 training images, six batches of four, and 10 test images of three classes."""
    write_files(tmp_path, samples(24), "train")
    write_files(tmp_path, samples(10), "val")
    return tmp_path


def pixels(batches: Any) -> list[int]:
    """A number for each batch."""
    return [int(images.numpy().astype(np.int64).sum()) for images, _ in batches]


def test_an_epoch_has_a_length_which_progress_bars_show(root: Path) -> None:
    with load(root, **SMALL) as loader:
        assert len(loader) == loader.steps_per_epoch == 6
        first, second = loader.epoch(0), loader.epoch(1)
        assert [len(first), len(second)] == [6, 6], "the second one is not begun"
        bar = tqdm(first, disable=None, file=open(os.devnull, "w"))
        assert bar.total == 6 and len(list(bar)) == 6 == len(list(second))
        next(loader)
        assert len(loader.epoch()) == len(loader.epoch(2)) == 5 == len(list(loader.epoch()))
        assert len(loader.epoch()) == 6 and loader.step == 18, "the next one"
        with pytest.raises(ValueError, match="epoch 1 begins at step 6, and done are 18 steps"):
            next(loader.epoch(1))
    with load(root, "test", **SMALL) as test:
        assert len(test) == len(test.epoch()) == len(list(test.epoch())) == 3
        next(iter(test))
        with load(root, "test", **SMALL) as rest:
            rest.load_state_dict(test.state_dict())
            assert len(rest.epoch()) == len(list(rest.epoch())) == 2 and len(rest.epoch()) == 3
    with load(root, **SMALL, steps_per_epoch=4) as loader:
        assert len(loader) == len(list(loader.epoch())) == int(loader.dataset().cardinality()) == 4


def test_a_dataset_states_its_length_if_all_epochs_have_it(root: Path) -> None:
    phases = {"image_size": [[0, 16], [1, 24]]}, {"batch_size": [[0, 4], [1, 8]]}
    for sizes, cardinality in zip(phases, (6, tf.data.UNKNOWN_CARDINALITY), strict=True):
        with load(root, **SMALL | sizes) as loader:
            assert int(loader.dataset().cardinality()) == cardinality


def test_an_iteration_over_the_dataset_is_an_epoch(root: Path) -> None:
    with load(root, **SMALL) as loader:
        expected = [pixels(loader.epoch(number)) for number in range(3)]
    with load(root, **SMALL) as loader:
        dataset = loader.dataset()
        assert int(dataset.cardinality()) == 6
        assert [pixels(dataset), pixels(dataset)] == expected[:2] and loader.used == 12
        assert pixels(dataset.take(2)) == expected[2][:2], "and one that is left continues where it was"
        assert pixels(dataset)[:4] == expected[2][loader.used - 6 - 12 :][:4]
    with load(root, "test", **SMALL) as test:
        dataset = test.dataset()
        assert int(dataset.cardinality()) == 3
        assert pixels(dataset.take(1)) + pixels(dataset)[1:] == pixels(dataset) == pixels(test)
    with load(root, "test", **SMALL, on_error="skip") as test:
        assert int(test.dataset().cardinality()) == -2, "how many are left out is not known before"


def test_fit_needs_no_number_of_steps(root: Path) -> None:
    """And counts each batch that it has trained, without a callback: it takes none of the next epoch's ahead."""
    steps: list[Any] = []

    class Note(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            steps.append((self.params["steps"], train.used, sorted(logs or {})))

    model = tiny((16, 16, 3), 3)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with load(root, **SMALL) as train, load(root, "test", **SMALL) as test:
        given = {"epochs": 2, "validation_data": test.dataset(), "shuffle": False, "verbose": 0}
        model.fit(train.dataset(), callbacks=[Note()], **given)
        assert steps == [(6, 6, ["loss", "val_loss"]), (6, 12, ["loss", "val_loss"])]
        assert train.state_dict()["crops"] == 48
        assert model.predict(test.dataset(), verbose=0).shape == (10, 3)


def test_what_cannot_be_built_is_an_error_wherever_it_is_asked_for_and_is_built_again(root: Path) -> None:
    (root / "cache").write_text("a file")
    with load(root, **SMALL, cache=str(root / "cache")) as loader:
        loader.start()
        for ask in (loader.dataset, lambda: next(loader), lambda: loader.iterator):
            with pytest.raises(ConfigError, match=r"data\.cache: cannot use the folder"):
                ask()
        (root / "cache").unlink()
        assert len(pixels([next(loader)])) == 1 and loader.step == 1


def test_an_error_names_the_file(root: Path) -> None:
    path = next((root / "train/cat").iterdir())
    path.write_bytes(path.read_bytes()[:200])
    with load(root, **SMALL) as loader, pytest.raises(tf.errors.OpError, match=f"cannot use {path} of the train data"):
        list(loader.dataset())


def python_threads() -> list[threading.Thread]:
    """The threads that run, without TensorFlow's: one of these that has run Python stays in the list as a dummy.

    And without those that end a pipeline, which TensorFlow may hold for a minute (runtime/shutdown.py).
    """
    return [thread for thread in threading.enumerate() if not thread.name.startswith(("Dummy-", NAME))]


def test_a_dataset_ends_at_once_and_leaves_no_thread(root: Path) -> None:
    """After a break, Ctrl-C in a step, and an iterator in a cycle of references, as Keras leaves one."""
    loader = Loader(root, **SMALL)
    dataset = loader.dataset()
    next(iter(dataset))
    before = len(python_threads())
    for _ in range(3):
        for _ in dataset:
            break
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        with pytest.raises(KeyboardInterrupt):
            for _ in dataset:
                signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, handler)
        cycle: list[Any] = [iter(dataset)]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        gc.collect()
    assert len(python_threads()) <= before
    ends = [thread for thread in threading.enumerate() if thread.name in ("batches", NAME)]
    loader.close()
    del dataset, loader
    gc.collect()
    for thread in ends:
        thread.join(90)
        assert not thread.is_alive()
