"""Class folders in an object store: the samples of local ones, listed once."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support.batches import crops
from tests.support.bucket import s3
from tests.support.images import encoded, picture
from tfpipe import Config, Loader, World, make_config
from tfpipe.data.sources import folders as module
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.sources.remote import fetcher
from tfpipe.errors import ConfigError

BUCKET = "class-folders"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """6 training and 2 test images of each of three classes, one of them two folders deep, and files to leave out."""
    root = tmp_path / "data"
    for split, count in (("train", 6), ("val", 2)):
        for place, name in enumerate(("cat", "wild/fox", "a dog")):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                (root / split / name / f"{number}.jpg").write_bytes(encoded(picture(24, 32, 100 * place + number)))
    (root / "train/cat/notes.txt").write_text("no image")
    (root / "train/.hidden").mkdir()
    (root / "train/.hidden/0.jpg").write_bytes(b"")
    return root


@pytest.fixture
def url(root: Path) -> Iterator[str]:
    """The same in fsspec's memory."""
    system = fsspec.filesystem("memory")
    for file in filter(Path.is_file, root.rglob("*")):
        system.pipe_file(f"/{BUCKET}/{file.relative_to(root)}", file.read_bytes())
    yield f"memory://{BUCKET}"
    system.rm(f"/{BUCKET}", recursive=True)


def config_of(path: Path | str, index: Path | None = None, remote: dict | None = None, **source: object) -> Config:
    data = {"crop_image_size": [16, 16], "batch_size": 4, "index": index and str(index), "remote": remote or {}}
    return make_config({"data": {**data, "source": {"kind": "folders", "path": str(path), **source}}})


def assert_alike(here: Config, there: Config) -> None:
    for split, steps in (("train", 12), ("test", -1)):
        assert crops(there, split, steps=steps) == crops(here, split, steps=steps)
    assert load_split(there.data, "train", World()).catalog.classes == ("a dog", "cat", "wild")
    Loader(there).load_state_dict(Loader(here).state_dict())


def test_they_give_what_local_folders_give(root: Path, url: str, tmp_path: Path) -> None:
    assert_alike(config_of(root), config_of(url, tmp_path / "index"))
    apart = {"test_path": f"{url}/val"}
    assert_alike(config_of(root), config_of(f"{url}/train", tmp_path / "index", **apart))


def test_a_share_of_test_data_is_that_of_local_folders(root: Path, url: str, tmp_path: Path) -> None:
    share = {"test_share": 0.34, "test_seed": 3}
    here, there = config_of(root, **share), config_of(url, tmp_path / "index", **share)
    names = {}
    for split in ("train", "test"):
        near, far = (load_split(config.data, split, World()).catalog.paths for config in (here, there))
        names[split] = [path.removeprefix(f"{url}/") for path in far]
        assert names[split] == [str(Path(path).relative_to(root)) for path in near]
    assert len(names["test"]) == 6 and not set(names["train"]) & set(names["test"])
    other = load_split(config_of(url, tmp_path / "index", **{**share, "test_seed": 4}).data, "test", World())
    assert names["test"] != [path.removeprefix(f"{url}/") for path in other.catalog.paths], "not the stored list"


def test_a_bucket_is_listed_once_until_a_class_is_added(
    root: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listed, list_images = [], module.images_at
    monkeypatch.setattr(
        module, "images_at", lambda folder, *a, **k: listed.append(folder) or list_images(folder, *a, **k)
    )
    config = config_of(url, tmp_path / "index").data
    with caplog.at_level(logging.INFO):
        first, again = (load_split(config, "train", World()).catalog for _ in range(2))
    assert len(listed) == 1 and again.paths == first.paths and len(first.paths) == 18
    assert (
        f"{url} was listed 0.0 hours ago; new images of classes that are there come after deleting {tmp_path}/index/tr"
        in caplog.text
    )
    # Without labels other images are chosen, which is another list.
    unlabelled = config.model_copy(update={"targets": config.targets.model_copy(update={"kind": "none"})})
    assert len(load_split(unlabelled, "train", World()).catalog) >= 18 and len(listed) == 2
    file = (root / "val/cat/0.jpg").read_bytes()
    fsspec.filesystem("memory").pipe_file(f"/{BUCKET}/train/bird/0.jpg", file)
    assert load_split(config, "train", World()).catalog.classes == ("a dog", "bird", "cat", "wild") and len(listed) == 3


def test_what_cannot_be_used_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for config, problem in (
        (config_of(url), "data.index must name a local folder"),
        (config_of(f"{url}/nothing", tmp_path), f"data.source.path: there is no folder {url}/nothing"),
        (config_of("https://host/train", tmp_path), "received https://host/train; .*web servers list no folders"),
        (config_of(url, tmp_path, test_path="http://host/val"), "data.source.test_path: received http://host/val"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load_split(config.data, "train", World())
    monkeypatch.setattr(fetcher, "PAUSE_S", 0.01)
    away = config_of("s3://none/train", tmp_path, {"retries": 1, "options": options("http://127.0.0.1:1")})
    with pytest.raises(ConfigError, match="cannot list folders: cannot fetch s3://none/train: the server cannot be"):
        open_source(away.data).check()


def options(endpoint: str) -> dict:
    keys = {"key": "testing", "secret": "testing", "client_kwargs": {"region_name": "us-east-1"}}
    return {"endpoint_url": endpoint, **keys}


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, Any]]:
    """The address of an S3 with an empty bucket, and a client."""
    with s3(BUCKET) as made:
        yield made


def test_a_bucket_of_s3(root: Path, tmp_path: Path, store: tuple[str, Any]) -> None:
    """And with empty objects that stand for the folders, as its console writes them."""
    endpoint, client = store
    for file in filter(Path.is_file, root.rglob("*")):
        client.put_object(Bucket=BUCKET, Key=str(file.relative_to(root)), Body=file.read_bytes())
    for folder in ("train/", "train/cat/", "val/"):
        client.put_object(Bucket=BUCKET, Key=folder, Body=b"")
    assert_alike(config_of(root), config_of(f"s3://{BUCKET}", tmp_path / "index", {"options": options(endpoint)}))


@pytest.mark.full("thousand requests; the store's own parts of a listing are joined by s3fs")
def test_a_folder_of_s3_with_more_names_than_one_answer_has(tmp_path: Path, store: tuple[str, Any]) -> None:
    endpoint, client = store
    for key in ("dog/0", *(f"cat/{number:04}" for number in range(1001))):
        client.put_object(Bucket=BUCKET, Key=f"many/{key}.jpg", Body=b"x")
    config = config_of(f"s3://{BUCKET}/many", tmp_path / "index", {"options": options(endpoint)})
    assert len(load_split(config.data, "train", World()).catalog) == 1002
