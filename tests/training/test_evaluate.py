"""The test pass: exact means, whatever the batches and ranks."""

import math
import os
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.sample import SampleData
from tfpipe import Loader, load_config, make_config
from tfpipe.data import loader
from tfpipe.data.runtime.meter import Meter
from tfpipe.errors import TfpipeError
from tfpipe.training.backends import ParallelModel
from tfpipe.training.compile import build_loss
from tfpipe.training.evaluate import Evaluator, summarise
from tfpipe.training.models import build_model

IGNORING = {"args": {"ignore_class": 3}}


def test_means_are_over_crops_and_recall_over_the_classes_there() -> None:
    # loss, crops that it counts, top-1, top-5, images, crops; crops of 3 classes, the last without any; hits of them.
    sums = np.array([8.0, 5, 5, 9, 4, 10, 8, 2, 0, 4, 1, 0])
    scores = summarise(sums, 3)
    assert scores == (1.6, 0.5, 0.9, 0.5, 4, 10)


def test_a_test_pass_without_crops_is_an_error() -> None:
    with pytest.raises(TfpipeError, match="saw no crop"):
        summarise(np.zeros(12), 3)


def test_scores_equal_a_plain_count_over_all_crops(sample: SampleData, tmp_path: Path) -> None:
    """The last batch is cut."""
    config = load_config(sample.config(tmp_path / "c.json", data={"batch_size": 7}))
    loader = Loader(config, "test", named=True)
    keras.utils.set_random_seed(3)
    model = build_model(config, 8)
    scores = Evaluator(loader, 8, tmp_path).run(model)

    images, labels = (np.concatenate(parts) for parts in zip(*(batch.data for batch in loader), strict=True))
    logits = np.asarray(model(images))
    order = logits.argsort(axis=1)[:, ::-1]
    log_sum = np.log(np.exp(logits).sum(axis=1))
    hit = order[:, 0] == labels
    assert scores.images == 37
    assert scores.crops == len(labels) > 37
    losses = log_sum - logits[np.arange(len(labels)), labels]
    assert math.isclose(scores.loss, losses.mean(), rel_tol=1e-4)
    evaluator = Evaluator(loader, 8, tmp_path)
    evaluator.loss = build_loss(make_config({"data": {"train_filelist": "x"}, "loss": IGNORING}), 8, "none")
    ignoring = evaluator.run(model)
    assert math.isclose(ignoring.loss, losses[labels != 3].mean(), rel_tol=1e-4)
    assert ignoring[1:] == scores[1:]
    assert scores.top1 == pytest.approx(hit.mean())
    assert scores.top5 == pytest.approx((order[:, :5] == labels[:, None]).any(axis=1).mean())
    assert scores.macro_recall == pytest.approx(np.mean([hit[labels == each].mean() for each in np.unique(labels)]))


def test_labels_may_be_shares_of_the_classes(sample: SampleData, tmp_path: Path) -> None:
    """As data.transform makes them, also of test data: the class with the largest share counts."""
    scores = []
    for more in ({}, {"transform": "tests.support.own:one_hot"}):
        path = sample.config(tmp_path / "c.json", data=more, loss={"name": "CategoricalCrossentropy"} if more else {})
        loader = Loader(load_config(path), "test", named=True)
        keras.utils.set_random_seed(3)
        scores.append(Evaluator(loader, 8, tmp_path).run(build_model(load_config(path), 8)))
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_a_pass_that_misses_an_image_is_an_error(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(sample.config(tmp_path / "c.json"))
    build = loader.build_batches
    monkeypatch.setattr(loader, "build_batches", lambda *args, **keys: build(*args, **keys).skip(1))
    evaluator = Evaluator(Loader(config, "test", named=True), 8, tmp_path)
    with pytest.raises(TfpipeError, match=r"saw \d+ of 37 images"):
        evaluator.run(build_model(config, 8))


def test_an_image_left_out_is_listed_with_the_runs_steps(tree: Path, tmp_path: Path) -> None:
    """A resume removes lines by the run's steps; the optimizer's differ if an earlier one had another batch."""
    next((tree / "Data/CLS-LOC/val").rglob("*.JPEG")).write_bytes(b"")
    sample = SampleData(tree, tmp_path / "train.txt", tmp_path / "val.txt")
    config = load_config(sample.config(tmp_path / "c.json", data={"on_error": "skip", "max_bad_fraction": 0.1}))
    network = build_model(config, 8)
    model = ParallelModel(network.input, network.output)
    model.compile("sgd")
    model.meter = Meter()
    model.meter.steps = 7
    evaluator = Evaluator(Loader(config, "test", named=True), 8, tmp_path)
    assert evaluator.run(model).images == 36
    heading, line = (tmp_path / "bad_files.txt").read_text().splitlines()
    assert dict(zip(heading.split("\t"), line.split("\t"), strict=True))["step"] == "7"


def test_a_pass_that_hangs_is_ended_with_the_file_that_it_waits_for(tree: Path, tmp_path: Path) -> None:
    """A pipe, whose content nobody writes until then, stands for a file of a server that does not answer."""
    pipe = min((tree / "Data/CLS-LOC/val").rglob("*.JPEG"))  # the first: no batch comes before it
    pipe.unlink()
    os.mkfifo(pipe)
    sample = SampleData(tree, tmp_path / "train.txt", tmp_path / "val.txt")
    config = load_config(sample.config(tmp_path / "c.json", data={"stall_timeout_s": 1}))
    ended: list[str] = []

    def end(message: str) -> None:
        ended.append(message)
        pipe.open("wb").close()

    evaluator = Evaluator(Loader(config, "test", named=True), 8, tmp_path, end=end)
    with pytest.raises(TfpipeError, match=pipe.name):
        evaluator.run(build_model(config, 8))
    (message,) = ended
    assert message.startswith("rank 0: test batch ") and pipe.name in message
