"""Entry points of a whole split: from any source, in parts, by any number of ranks; training takes them as they are."""

import errno
import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import run_ranks
from tests.support.images import encoded, picture
from tests.support.routes import CLASSES, Sample
from tests.support.sample import SampleData
from tests.support.sources import write_config, write_source
from tfpipe import World, build_dataset, load_config
from tfpipe.cli import main
from tfpipe.config import Config
from tfpipe.data.catalog import table
from tfpipe.data.catalog.entries import entries_folder, find_entries
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.native import Core, core
from tfpipe.prepare import entries as build
from tfpipe.prepare import parts
from tfpipe.prepare.entries import EVERY, build_entries

KINDS = ("filelist", "folders", "csv", "parquet", "coco", "tar", "tfrecord", "packed")
SIDE = 160


def large(count: int = 6) -> list[Sample]:
    """Pictures of several MCUs a row; one that has restart intervals, one that the decoder in C refuses."""
    options = [{}] * (count - 2) + [{"restart_marker_rows": 1}, {"progressive": True}]
    pictures = [encoded(picture(SIDE, 2 * SIDE, number), **options[number]) for number in range(count)]
    return [Sample(CLASSES[number % 2], f"{number:03}", file, [[8, 8, 90, 90]]) for number, file in enumerate(pictures)]


def written(kind: str, root: Path, **keys: object) -> Config:
    data = write_source(kind, root, large()) | {"crop": "random_resized", "annotations": "none", **keys}
    return load_config(write_config(root / "config.json", data))


def batches(config: Config, count: int = 4) -> list[np.ndarray]:
    return [images.numpy() for images, _ in build_dataset(config, "train").take(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_of_images_has_them_and_the_same_batches(kind: str, tmp_path: Path) -> None:
    config = written(kind, tmp_path)
    plain = batches(config)
    summary = build_entries(config.data, "train", World())
    split = load_split(config.data, "train", World())
    table = find_entries(config.data, split.catalog, show=False)
    assert table is not None
    assert (summary.images, summary.with_entries) == (6, 4)
    text, starts = table.columns["text"], table.columns["starts"]
    for item in range(6):
        entries = text[starts[item] : starts[item + 1] - 1].tobytes()
        assert entries == core().entries(split.image(item), EVERY)
    assert summary.images_bytes == sum(len(split.image(item)) for item in range(6))
    for one, other in zip(plain, batches(config), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("unit", ["image", "box"])
def test_training_starts_at_them(unit: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The codes above a box are damaged after they were found: only with them is the crop what it was."""
    boxes = [[20, 18, 30, 24]]  # of the 32 x 24 pixels that the XML states: the lowest quarter
    samples = [sample._replace(boxes=boxes) for sample in large()[:4]]
    data = write_source("filelist", tmp_path, samples) | {"unit": unit, "shuffle_buffer": 1}
    config = load_config(write_config(tmp_path / "config.json", data))
    plain = batches(config, 1)[0]
    table = build_entries(config.data, "train", World()).path
    for path in (tmp_path / "images").rglob("*.jpg"):
        file = path.read_bytes()
        at = file.index(b"\xff\xda") + 2000
        damage = bytes(byte ^ 1 if 1 < byte < 254 else byte for byte in file[at : at + 100])
        path.write_bytes(file[:at] + damage + file[at + 100 :])
    with caplog.at_level(logging.INFO):
        assert (batches(config, 1)[0] == plain).all()
    assert f"by the entry points in {table}" in caplog.text
    shutil.rmtree(table)
    assert (batches(config, 1)[0] != plain).any()


def test_those_of_another_list_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = written("filelist", tmp_path)
    table = build_entries(config.data, "train", World()).path
    with (tmp_path / "train.txt").open("a") as file:
        file.write("images/bird/000.jpg\n")
    split = load_split(config.data, "train", World())
    assert find_entries(config.data, split.catalog, show=True) is None
    assert f"{table} are of another list of images, or damaged; renew them with: tfpipe index" in caplog.text


def test_a_table_of_another_number_of_images_is_not_used(tmp_path: Path) -> None:
    config = written("filelist", tmp_path)
    table = build_entries(config.data, "train", World()).path
    np.save(table / "starts.npy", np.arange(6))
    assert find_entries(config.data, load_split(config.data, "train", World()).catalog, show=False) is None


def test_a_file_that_has_changed_since_is_decoded_as_it_is(tmp_path: Path) -> None:
    config = written("filelist", tmp_path)
    build_entries(config.data, "train", World())
    (tmp_path / "images/bird/000.jpg").write_bytes(encoded(picture(SIDE, 2 * SIDE, 77)))
    changed = batches(config)
    shutil.rmtree(tmp_path / "train.catalog")
    assert all((one == other).all() for one, other in zip(changed, batches(config), strict=True))


def test_what_an_interrupted_run_has_finished_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART", 2)
    config = written("filelist", tmp_path)
    path = build_entries(config.data, "train", World()).path
    expected = [(path / name).read_bytes() for name in ("text.npy", "starts.npy")]
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name]
    shutil.rmtree(path)
    find, seen = Core.entries, []

    def some(self: Core, jpeg: bytes, every: int) -> bytes:
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(len(jpeg))
        return find(self, jpeg, every)

    monkeypatch.setattr(Core, "entries", some)
    monkeypatch.setattr(build, "IMAGES_PER_TASK", 1)
    with pytest.raises(KeyboardInterrupt):
        build_entries(config.data, "train", World(threads=1))
    monkeypatch.setattr(Core, "entries", lambda self, jpeg, every: seen.append(0) or find(self, jpeg, every))
    seen.clear()
    assert build_entries(config.data, "train", World()).path == path and seen == [0, 0]
    assert [(path / name).read_bytes() for name in ("text.npy", "starts.npy")] == expected


def test_those_that_are_there_stay_if_new_ones_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written("filelist", tmp_path)
    path = build_entries(config.data, "train", World()).path
    expected = (path / "text.npy").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(table, "_write_column", full)
        with pytest.raises(ConfigError, match=r"No space left on device; set data\.index"):
            build_entries(config.data, "train", World())
    assert (path / "text.npy").read_bytes() == expected
    assert build_entries(config.data, "train", World(), threads=1).path == path
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_images_that_cannot_be_read_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    config = written("filelist", tmp_path)
    for name in ("bird/000", "cat/001"):
        (tmp_path / f"images/{name}.jpg").unlink()
    with pytest.raises(ConfigError, match=r"2 problems.*\n.*bird/000.jpg: .*No such file.*\n.*cat/001.jpg"):
        build_entries(config.data, "train", World())
    assert not list((tmp_path / "train.catalog").glob("entries-*[0-9a-f]"))


def test_data_behind_urls_needs_a_folder_for_them(tmp_path: Path) -> None:
    data = written("tar", tmp_path).data
    assert data.source is not None
    remote = data.model_copy(update={"source": data.source.model_copy(update={"path": "s3://bucket/train"})})
    assert entries_folder(remote, "train") is None
    stored = entries_folder(remote.model_copy(update={"index": tmp_path}), "train")
    assert stored is not None and stored.parent == tmp_path


def test_ranks_share_the_work(sample: SampleData, tmp_path: Path) -> None:
    config = sample.config(tmp_path / "config.json", data={"index": str(tmp_path / "index")})
    data = load_config(config).data
    alone = build_entries(data, "train", World())
    expected = (alone.path / "text.npy").read_bytes()
    shutil.rmtree(alone.path)
    command = "from tfpipe.prepare import parts; parts.PART = 10; from tfpipe.cli import main; main()"
    ranks = run_ranks(3, sys.executable, "-c", command, "index", "-c", config, "--entry-points")
    assert ranks.out.count("entry points of 96 of 96 images") == 1
    assert (alone.path / "text.npy").read_bytes() == expected


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written("filelist", tmp_path)
    main(["index", "-c", str(tmp_path / "config.json"), "--entry-points"])
    assert "entry points of 4 of 6 images, " in capsys.readouterr().out
