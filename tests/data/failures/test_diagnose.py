"""A file that stops the pipeline is named, wherever in the stream it is."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from PIL import Image

from tests.support.batches import elements
from tests.support.sample import SampleData
from tests.support.xmls import annotation
from tfpipe import Config, Cursor, Loader, Stream, World, build_dataset, load_config
from tfpipe.data.failures import diagnose
from tfpipe.data.failures.diagnose import find_failure, to_named_error
from tfpipe.data.pipeline import visit
from tfpipe.data.runtime.stage import NO_CROP
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.errors import TfpipeError


def spoilt(sample: SampleData, tmp_path: Path, content: bytes | None, **data: object) -> tuple[Config, Split, str]:
    """A config whose list has one more image, with this content or missing; the image's path."""
    bad = tmp_path / "Data/CLS-LOC/train/n01440764/bad.JPEG"
    bad.parent.mkdir(parents=True)
    if content is not None:
        bad.write_bytes(content)
    listed = sample.train.read_text().splitlines()
    (tmp_path / "list.txt").write_text("\n".join([*listed[:40], str(bad), *listed[40:]]))
    config = load_config(sample.config(tmp_path / "c.json", data={"train_filelist": "list.txt", **data}))
    return config, load_split(config.data, "train", World()), str(bad)


MISSING, EMPTY = (None, "No such file"), (b"", "(?i)unknown image|empty|invalid")
TEXT = (b"not an image", "it is no JPEG, ")
BY_BOX, BY_IMAGE, CENTRES = {"unit": "box"}, {}, {"crop": "center"}


@pytest.mark.parametrize(
    ("content", "reason", "world", "keys"),
    [
        (*MISSING, World(2, 3), CENTRES),
        (*EMPTY, World(), BY_IMAGE),
        (*TEXT, World(), BY_BOX),
        (*EMPTY, World(2, 3), BY_BOX),
    ],
)
def test_the_file_and_the_reason_are_found(
    sample: SampleData, tmp_path: Path, content: bytes | None, reason: str, world: World, keys: dict[str, str]
) -> None:
    config, split, bad = spoilt(sample, tmp_path, content, **keys)
    reached = None
    with pytest.raises(tf.errors.OpError) as caught:
        for *_, positions in build_dataset(config, "train", world, with_positions=True, data=split):
            reached = positions
    message = str(to_named_error(caught.value, replace(split, world=world), Stream.start(world.size), reached))
    assert message.startswith(f"rank {world.rank}: cannot use {bad} of the train data: ")
    assert message.endswith("; repair it or take it out of the filelist; tfpipe check finds all such files")
    assert re.search(reason, message)


def test_a_truncated_image_is_found_in_the_lists_own_order_too(sample: SampleData, tmp_path: Path) -> None:
    whole = Path(sample.train.read_text().split()[0]).read_bytes()
    _, split, bad = spoilt(sample, tmp_path, whole[: len(whole) // 2], shuffle_buffer=0)
    failure = find_failure(split, Stream.start(1))
    assert failure is not None and failure.path == bad


@pytest.mark.parametrize("keys", [{}, CENTRES, BY_BOX], ids=str)
def test_where_a_run_resumes_the_dataset_and_the_order_have_the_same_samples(
    sample: SampleData, tmp_path: Path, keys: dict
) -> None:
    """Or another file would be named: also those whose crops are all used, of one rank or dealt out to others."""
    split = load_split(load_config(sample.config(tmp_path / "c.json", data=keys)).data, "train", World())
    stream = Stream.start(2).at([Cursor(6, 1), Cursor(11, 1)]).over(1)
    visits = split.visits(stream, 20)
    found = [element.visit for element in elements(visit(split, stream).take(20))]
    assert [tuple(map(int, each)) for each in found] == list(zip(*(each.tolist() for each in visits), strict=True))
    assert 1 in visits.first_crop


def test_an_error_that_is_not_the_pipelines_blames_no_file(sample: SampleData, tmp_path: Path) -> None:
    _, split, _ = spoilt(sample, tmp_path, b"")
    error = tf.errors.ResourceExhaustedError(None, None, "{{function_node x}} out of memory\n\t [[{{node y}}]]")
    assert str(to_named_error(error, split, Stream.start(1), None)) == "rank 0: stopped: out of memory"


def test_a_stream_whose_images_all_fail_ends(sample: SampleData, tmp_path: Path) -> None:
    """It would go round and round without a batch, since each failure is left out."""
    bad = [tmp_path / f"n01440764/{number}.JPEG" for number in range(40)]
    bad[0].parent.mkdir()
    for path in bad[::2]:
        path.write_bytes(b"not an image")  # the others cannot be read
    (tmp_path / "list.txt").write_text("".join(f"{path}\n" for path in bad))
    data = {"train_filelist": "list.txt", "crop": "center", "on_error": "skip", "max_bad_fraction": 0.9}
    with (
        Loader(load_config(sample.config(tmp_path / "c.json", data=data)), timeout_s=math.inf) as loader,
        pytest.raises(TfpipeError, match=rf"^rank 0: {NO_CROP}: e\.g\. .*JPEG: (it is no JPEG|No such file)"),
    ):
        next(loader)


def test_a_stream_without_an_object_of_a_known_class_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "LOOK_AHEAD", 40)
    for folder in ("JPEGImages", "Annotations"):
        (tmp_path / folder).mkdir()
    text = annotation(("b", (1, 1, 9, 9)), size=None)
    for number in range(20):
        Image.new("RGB", (20, 20)).save(tmp_path / f"JPEGImages/{number}.jpg")
        (tmp_path / f"Annotations/{number}.xml").write_text(text)
    (tmp_path / "list.txt").write_text("".join(f"JPEGImages/{number}.jpg\n" for number in range(20)))
    data = {"train_filelist": str(tmp_path / "list.txt"), "label_source": "object", "classes": ["a"], "crop": "boxes"}
    (tmp_path / "c.json").write_text(json.dumps({"data": {**data, "annotations": "xml", "crop_image_size": [8, 8]}}))
    with (
        Loader(load_config(tmp_path / "c.json"), timeout_s=math.inf) as loader,
        pytest.raises(TfpipeError, match=f"^rank 0: {NO_CROP}: none has an object of a known class"),
    ):
        next(loader)
