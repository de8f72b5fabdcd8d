"""Packed coefficients: the batches of the loose files; what is no JPEG stays a file."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import assert_same, batches
from tests.support.images import decoded, encoded, picture
from tests.support.routes import CLASSES, Sample
from tests.support.sources import write_config, write_source
from tfpipe import Loader, World, load_config
from tfpipe.config import Config
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError

KINDS: tuple[dict[str, Any], ...] = ({}, {"subsampling": 0}, {"restart_marker_rows": 1}, {"progressive": True})


def mixed(count: int = 8) -> list[Sample]:
    """Pictures with boxes: JPEGs of several kinds, a gray one, and a PNG under a JPEG's name."""
    pictures = [encoded(picture(90, 120, number), **KINDS[number % len(KINDS)]) for number in range(count)]
    pictures[5] = encoded(picture(90, 120, 5).convert("L"))
    pictures[6] = encoded(picture(90, 120, 6), format="PNG")
    return [Sample(CLASSES[number % 2], f"{number:03}", file, [[2, 3, 28, 20]]) for number, file in enumerate(pictures)]


def written(kind: str, root: Path, **keys: Any) -> Config:
    root.mkdir()
    data = write_source(kind, root, mixed()) | keys
    return load_config(write_config(root / "config.json", data))


@pytest.mark.parametrize("keys", [{}, {"crop": "random_resized"}, {"crop": "full", "num_channels": 1}])
def test_the_batches_are_those_of_packed_files(tmp_path: Path, keys: dict[str, Any]) -> None:
    expected, stored = (written(kind, tmp_path / kind, **keys) for kind in ("packed", "coefficients"))
    assert_same(batches(stored, count=6), batches(expected, count=6))


def test_an_image_is_a_file_of_the_same_pixels(tmp_path: Path) -> None:
    split = load_split(written("coefficients", tmp_path / "packed").data, "train", World())
    raw = [split.shards.contents(item) for item in range(8)]
    assert [contents.startswith(b"\0tpc") for contents in raw] == [number != 6 for number in range(8)]
    for sample in mixed():
        item = next(item for item in range(8) if split.catalog.paths.name(item) == f"{sample.name}.jpg")
        assert (decoded(split.image(item)) == decoded(sample.file)).all()


def test_only_the_decoder_in_c_reads_them(tmp_path: Path) -> None:
    config = written("coefficients", tmp_path / "packed").data
    with pytest.raises(ConfigError, match=r"which only the decoder in C reads: set data\.decoder to"):
        load_split(config.model_copy(update={"decoder": "graph"}), "train", World())


def test_damage_ends_training_with_the_images_name(tmp_path: Path) -> None:
    config = written("coefficients", tmp_path / "packed")
    split = load_split(config.data, "train", World())
    item = next(item for item in range(8) if split.shards.contents(item).startswith(b"\0tpc"))
    path, offset = Path(split.shards.paths[split.shards.records.shard[item]]), int(split.shards.records.offset[item])
    with path.open("r+b") as file:
        file.seek(offset + 13)
        file.write(b"\xff")
    with pytest.raises(ValueError, match="no image from stored coefficients: they are damaged"):
        load_split(config.data, "train", World()).image(item)
    with pytest.raises(Exception, match=split.catalog.paths.name(item)):
        for _ in Loader(config):
            pass
