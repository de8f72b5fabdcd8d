"""A whole recipe after random interruptions: pixels and labels of the run that was never interrupted.

From files, packed files, tar shards and a worker, in every framework, on 1 to 3 ranks; `make test-full` makes 90 runs.
"""

import hashlib
import os
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.support.consumers import Consumer, Jax, Sharded, Stateful, Torch
from tests.support.routes import SMALL, samples, write_files, write_tars
from tfpipe import Config, Cursor, Stream, World, build_dataset
from tfpipe.config import make_config
from tfpipe.prepare.pack import PackPlan, pack

# timm's A3 for crops of 16x16: Wightman, Touvron and Jegou 2021.
RECIPE = {
    **SMALL,
    "crop": "random_resized",
    "resize": "bicubic",
    "repeats": 2,
    "augment": [{"name": "RandAugment", "magnitude": 6}, {"name": "RandomErasing", "p": 0.25, "value": "random"}],
    "mix": {"mixup": 0.1, "cutmix": 1.0},
}
BATCHES = 24  # of a run; an epoch has 12
RUNS = 4 if os.environ.get("TFPIPE_TESTS") == "full" else 1  # of each of the nine ways: all sizes, and all sources
CONSUMERS = {"for": Consumer, "torch": Torch, "StatefulDataLoader": Stateful, "JAX": Jax, "JAX, sharded": Sharded}
SOURCES = ("files", "packed", "tar")


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Config]:
    """Configs of the same pictures, by source."""
    root, chosen = tmp_path_factory.mktemp("recipe"), samples(24)
    images = write_files(root, chosen)
    (root / "train.txt").write_text("".join(f"{images}/{each.label}/{each.name}.jpg\n" for each in chosen))
    listed = {"train_filelist": str(root / "train.txt"), "annotations": "none"}
    pack(make_config({"data": {**SMALL, **listed}}).data, "train", root / "packed", PackPlan("original", 3), World())
    tars = write_tars(root / "tars", chosen)
    data = {
        "files": listed,
        "packed": {"source": {"kind": "packed", "path": str(root / "packed")}, "annotations": "none"},
        "tar": {"source": {"kind": "webdataset", "path": str(tars)}, "annotations": "none"},
        "service": {**listed, "service": 1},
    }
    return {name: make_config({"data": {**RECIPE, **each}}) for name, each in data.items()}


def digest(images: Any, labels: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(images).tobytes() + np.asarray(labels, np.float32).tobytes()).hexdigest()


def on_rank(config: Config, rank: int, rest: Stream) -> Iterator[tuple[str, Cursor]]:
    """Yields the digest of each batch of a rank, and the cursor after it."""
    for batch in build_dataset(config, "train", World(rank, rest.size), with_positions=True, resume=rest):
        images, labels, positions = (part.numpy() for part in batch)
        yield digest(images, labels), Cursor.after(positions[-1])


@pytest.fixture(scope="module")
def whole(configs: dict[str, Config]) -> dict[int, list[list[str]]]:
    """The digests of a run that nothing interrupts, by number of ranks and by rank: from files, by build_dataset."""
    return {
        size: [
            [text for text, _ in islice(on_rank(configs["files"], rank, Stream.start(size)), BATCHES // size)]
            for rank in range(size)
        ]
        for size in (1, 2, 3)
    }


def pieces(draw: random.Random, total: int) -> list[int]:
    """Returns how many batches each start of a run takes: between two and five numbers that sum to `total`."""
    ends = sorted(draw.sample(range(1, total), draw.randint(1, 4)))
    return [end - start for start, end in zip([0, *ends], [*ends, total], strict=True)]


@pytest.mark.parametrize("source", [*SOURCES, "service"])
def test_a_source_gives_the_batches_of_a_run_without_interruptions(
    configs: dict[str, Config], whole: dict[int, list[list[str]]], source: str
) -> None:
    draw = random.Random(source)
    for run in range(RUNS):
        size = 1 + run % 3 if source != "service" else 1
        seen, rest = [[] for _ in range(size)], Stream.start(size)
        for count in pieces(draw, BATCHES // size):
            cursors = []
            for rank in range(size):
                taken = list(islice(on_rank(configs[source], rank, rest), count))
                seen[rank] += [text for text, _ in taken]
                cursors.append(taken[-1][1])
            rest = rest.at(cursors)
        assert seen == whole[size], (source, run, size)


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_framework_gets_the_batches_of_a_run_without_interruptions(
    configs: dict[str, Config], whole: dict[int, list[list[str]]], name: str
) -> None:
    draw = random.Random(name)
    for run in range(RUNS):
        source = SOURCES[run % len(SOURCES)]
        consumer, seen = CONSUMERS[name](configs[source], "train"), []
        for number, count in enumerate(pieces(draw, BATCHES)):
            consumer = consumer.again() if number else consumer
            for images, labels in islice(consumer.batches(), count):
                pixels = np.asarray(images)
                pixels = pixels if pixels.shape[-1] == 3 else pixels.transpose(0, 2, 3, 1)  # torch's channels first
                seen.append(digest(pixels, labels))
        assert seen == whole[1][0], (name, run, source)
