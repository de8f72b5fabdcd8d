"""Real pipelines: a pass over test data that resumes on other ranks, and interrupts, lose no crop and repeat none."""

import itertools
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe.jax
import tfpipe.torch
from tests.support.examples import examples
from tests.support.gathers import loaders_of, on_all
from tests.support.images import encoded, picture
from tests.support.interrupts import interrupted
from tfpipe import Config, Loader, make_config

COUNT = 100
LOADERS: dict[str, Callable[..., Loader]] = {
    "tensorflow": tfpipe.Loader,
    "torch": tfpipe.torch.Loader,
    "jax": tfpipe.jax.Loader,
}
Crop = tuple[int, int]
ONE = [pytest.param(name, marks=[] if name == "tensorflow" else pytest.mark.full("the same code")) for name in LOADERS]
FULL = pytest.mark.full("test_states.py has it with simulated pipelines")
KINDS: list[dict[str, Any]] = [
    {},
    {"test_crop": "boxes"},
    {"on_error": "skip"},
    {"views": [{}, {}]},
    {"class_weights": {"a": 2, "b": 1}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of one or two boxes, in a table with weights."""
    folder = tmp_path_factory.mktemp("exact")
    lines = ["path,label,xmin,ymin,xmax,ymax"]
    for number in range(COUNT):
        (folder / f"{number}.jpg").write_bytes(encoded(picture(24, 32, number)))
        boxes = ["1,2,20,20", "8,3,31,23"][: 1 + number % 2]
        lines += [f"{folder}/{number}.jpg,{'ab'[number % 2]},{box}" for box in boxes]
    (folder / "boxes.csv").write_text("\n".join(lines) + "\n")
    return folder


def config_of(folder: Path, **data: Any) -> Config:
    table = str(folder / "boxes.csv")
    source = {"kind": "table", "path": table, "test_path": table}
    keys = {"crop_image_size": [8, 8], "batch_size": 4, "test_crop": "center", "crop": "random_resized"}
    return make_config({"data": {"source": source, **keys, **data}})


def crops_of(batch: Any) -> list[Crop]:
    return [tuple(crop) for crop in np.asarray(batch[-1]).tolist()]


@pytest.mark.parametrize(
    ("size", "data"),
    [
        (size, data) if (size, index) in ((3, 0), (1, 2)) else pytest.param(size, data, marks=FULL)
        for size in (1, 3, 4)
        for index, data in enumerate(KINDS)
    ],
)
def test_a_test_pass_that_resumes_on_other_ranks_has_each_crop_once(
    folder: Path, size: int, data: dict[str, Any]
) -> None:
    config = config_of(folder, **data)
    first = loaders_of(config, 2, "test", positions=True)
    crops = [
        crop
        for rank, loader in enumerate(first)
        for batch in itertools.islice(loader, 6 + rank)
        for crop in crops_of(batch)
    ]
    state, *_ = (json.loads(json.dumps(each)) for each in on_all(Loader.state_dict, first))
    then = loaders_of(config, size, "test", state, positions=True)
    lengths = [len(loader.epoch()) for loader in then]
    for loader, length in zip(then, lengths, strict=True):
        batches = [crops_of(batch) for batch in loader]
        assert len(batches) == length
        crops += itertools.chain(*batches)
    boxes = data.get("test_crop") == "boxes"
    expected = {(number, crop) for number in range(COUNT) for crop in range(1 + number % 2 if boxes else 1)}
    assert Counter(crops) == Counter(expected)
    over, *_ = on_all(Loader.state_dict, then)
    assert over["ended"] and over["crops"] == len(crops)
    for loader in (*first, *then):
        loader.load_state_dict(over)
        loader.close()


@pytest.mark.parametrize("framework", ONE)
@pytest.mark.parametrize("split", ["train", pytest.param("test", marks=FULL)])
def test_an_interrupt_at_any_line_leaves_the_batch_for_the_next_call(folder: Path, framework: str, split: str) -> None:
    config = config_of(folder)
    with Loader(config, split, positions=True) as whole:
        expected = [crops_of(next(whole)) for _ in range(20)]
    with LOADERS[framework](config, split, positions=True) as loader:
        iterator = iter(loader)
        found = [crops_of(next(iterator))]
        for line in itertools.count(1):
            state = loader.state_dict()
            try:
                found.append(crops_of(interrupted(lambda: next(iterator), line)))
                break
            except KeyboardInterrupt:
                assert loader.state_dict() == state
        assert line > 30, "lines of several modules"
        found += [crops_of(next(iterator)) for _ in range(3)]
        state = loader.state_dict()
    assert found == expected[: len(found)]
    with LOADERS[framework](config, split, positions=True) as resumed:
        resumed.load_state_dict(state)
        assert [crops_of(next(resumed)) for _ in range(3)] == expected[len(found) :][:3]


class Interrupts:
    """Signals that raise KeyboardInterrupt in the main thread at random moments, once for each `begin`."""

    def __init__(self) -> None:
        self.count, self.waits, self.over = 0, False, threading.Event()

    def handle(self, *_: object) -> None:
        if self.waits:
            self.waits, self.count = False, self.count + 1
            raise KeyboardInterrupt

    def send(self) -> None:
        generator = np.random.default_rng(7)
        while not self.over.wait(float(generator.uniform(1e-4, 4e-3))):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    interrupts = Interrupts()
    before = signal.signal(signal.SIGUSR2, interrupts.handle)
    thread = threading.Thread(target=interrupts.send)
    thread.start()
    yield interrupts
    interrupts.over.set()
    thread.join()
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("limit_s", [None, pytest.param(float("inf"), marks=FULL)])
@pytest.mark.parametrize("framework", ONE)
def test_interrupts_at_random_moments_lose_nothing(
    folder: Path, framework: str, limit_s: float | None, interrupts: Interrupts
) -> None:
    """In a tight loop: most come while `next` waits, or in its own lines. Python ignores those within callbacks."""
    config, count, seen = config_of(folder), examples(1000), list[Any]()
    with LOADERS[framework](config, positions=True, timeout_s=limit_s) as loader:
        while interrupts.count < count:
            interrupts.waits = True
            try:
                for batch in loader:
                    seen.append(batch)  # the next line of Python after `next`: nothing comes between
                    if not interrupts.waits:
                        break
            except KeyboardInterrupt:
                pass
        state = loader.state_dict()
    crops = [crop for batch in seen for crop in crops_of(batch)]
    with Loader(config, positions=True) as whole:
        expected = [crop for _ in seen for crop in crops_of(next(whole))]
    assert crops == expected and state["crops"] == len(crops)
    with LOADERS[framework](config, positions=True) as resumed:
        resumed.load_state_dict(state)
        assert resumed.step == len(seen) and crops_of(next(resumed))[0] == (len(crops), 0)
