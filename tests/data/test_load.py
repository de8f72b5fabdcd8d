"""The front door: every form of data gives the same batches, and a wrong argument is answered with the right one."""

import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfpipe
from tests.support.commands import ROOT
from tests.support.documents import blocks
from tests.support.routes import CLASSES, Sample, samples, write_files
from tests.support.sources import write_source
from tfpipe import ConfigError, World, make_config

SAMPLES = {"train": [sample for sample in samples(36) if sample.boxes], "test": samples(15)[1::3]}
SMALL: dict[str, Any] = {"image_size": 16, "batch_size": 4, "crop": "full", "world": World()}
Given = tuple[Any, dict[str, Any]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders images/train and images/val, next to which the forms are written."""
    root = tmp_path_factory.mktemp("load")
    write_files(root, SAMPLES["train"], "images/train")
    write_files(root, SAMPLES["test"], "images/val")
    return root


def path_of(root: Path, split: str, sample: Sample) -> str:
    return f"{root}/images/{'train' if split == 'train' else 'val'}/{sample.label}/{sample.name}.jpg"


def taken(data: Any, split: str = "train", **keys: Any) -> list[tuple[np.ndarray, list[int]]]:
    """The ten lines: the batches of a training epoch, or of a test pass."""
    with tfpipe.load(data, split, **SMALL, **keys) as loader:
        assert loader.class_names == list(CLASSES)
        epoch = loader.epoch(0)
        batches = [(images.numpy(), labels.numpy().tolist()) for images, labels in epoch]
        assert len(batches) == len(epoch) == len(loader)
    return batches


def written(kind: str, root: Path, split: str) -> Given:
    """A form of support/sources.py; the path is that of the split's file, or of the folder that has both."""
    folder = root / kind
    data = write_source(kind, folder, SAMPLES["train"], SAMPLES["test"])
    if "source" not in data:
        return folder / f"{split}.txt", {}
    source = data["source"]
    about = {"images": source["images"]} if "images" in source else {}
    return (source["path"] if split == "train" else source.get("test_path", source["path"])), about


def frame(root: Path, split: str) -> Given:
    rows = [(Path(path_of(root, split, sample)), sample.label) for sample in SAMPLES[split]]
    return pd.DataFrame(rows, columns=["file", "kind"]), {"columns": {"path": "file", "label": "kind"}}


def frame_of_bytes(root: Path, split: str) -> Given:
    chosen = SAMPLES[split]
    columns = {"image": [sample.file for sample in chosen], "label": pd.Categorical([each.label for each in chosen])}
    return pd.DataFrame(columns, index=range(100, 100 + len(chosen))), {}


def pairs(root: Path, split: str) -> Given:
    return [(path_of(root, split, sample), sample.label) for sample in SAMPLES[split]], {}


def labelled(root: Path, split: str) -> Given:
    """Paths relative to a folder, and class numbers of NumPy's."""
    paths = [Path(path_of(root, split, sample)).relative_to(root) for sample in SAMPLES[split]]
    labels = np.array([CLASSES.index(sample.label) for sample in SAMPLES[split]])
    return paths, {"labels": labels, "images": root, "classes": list(CLASSES)}


def arrow(root: Path, split: str) -> Given:
    return pa.table(
        {"path": [path for path, _ in pairs(root, split)[0]], "label": [each.label for each in SAMPLES[split]]}
    ), {}


def dataset_of(columns: dict[str, list[Any]]) -> Any:
    """A Hugging Face data set of images and labels."""
    import datasets

    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def hugging_face(root: Path, split: str) -> Given:
    images = [{"bytes": sample.file, "path": None} for sample in SAMPLES[split]]
    columns = {"image": images, "label": [CLASSES.index(sample.label) for sample in SAMPLES[split]]}
    return dataset_of(columns), {}


def hugging_face_on_disk(root: Path, split: str) -> Given:
    """Other names, mapped from disk, in an order that select has made, in two parts."""
    import datasets

    dataset = hugging_face(root, split)[0].rename_columns({"image": "img", "label": "y"})
    turned = dataset.select(range(len(dataset) - 1, -1, -1))
    turned.save_to_disk(root / f"hf-{split}", num_shards=2)
    disk = datasets.load_from_disk(root / f"hf-{split}")
    return disk.select(range(len(disk) - 1, -1, -1)), {}


def hugging_face_paths(root: Path, split: str) -> Given:
    columns = {"image": [path for path, _ in pairs(root, split)[0]]}
    columns["label"] = [CLASSES.index(sample.label) for sample in SAMPLES[split]]
    return dataset_of(columns), {}


FORMS: dict[str, Callable[[Path, str], Given]] = {
    "DataFrame": frame,
    "DataFrame of bytes": frame_of_bytes,
    "table of Arrow": arrow,
    "list": pairs,
    "paths and labels": labelled,
    "Hugging Face": hugging_face,
    "Hugging Face on disk": hugging_face_on_disk,
    "Hugging Face, paths": hugging_face_paths,
    **{
        kind: lambda root, split, kind=kind: written(kind, root, split)
        for kind in ("filelist", "csv", "parquet", "coco", "tar", "tfrecord", "packed")
    },
}


def known(data: Any, split: str, **keys: Any) -> list[tuple[bytes, str]]:
    """The file and the class of each image, in their order."""
    loader = tfpipe.load(data, split, **SMALL, **keys)
    return [(loader.data.image(item), loader.class_names[label]) for item, label in enumerate(loader.catalog.labels)]


@pytest.fixture(scope="module")
def expected(root: Path) -> list[tuple[np.ndarray, list[int]]]:
    return taken(root / "images")


def test_the_same_test_pass_is_each_image_once(root: Path) -> None:
    """What the other tests compare: the images of class folders in their order, and every label right."""
    chosen = SAMPLES["test"]
    assert known(root / "images", "test") == [(sample.file, sample.label) for sample in chosen]
    images, labels = zip(*taken(root / "images", "test"), strict=True)
    assert [label for batch in labels for label in batch] == [CLASSES.index(sample.label) for sample in chosen]
    assert np.concatenate(images).shape == (len(chosen), 16, 16, 3)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_batches(form: str, root: Path, expected: list[Any]) -> None:
    data, keys = FORMS[form](root, "train")
    found = taken(data, **keys)
    assert [labels for _, labels in found] == [labels for _, labels in expected]
    assert all((one == other).all() for (one, _), (other, _) in zip(found, expected, strict=True))
    data, keys = FORMS[form](root, "test")
    assert known(data, "test", **{"classes": list(CLASSES), **keys}) == [
        (sample.file, sample.label) for sample in SAMPLES["test"]
    ]


def test_a_folder_of_a_split_finds_the_other(root: Path) -> None:
    images = root / "images"
    chosen = [(sample.file, sample.label) for sample in SAMPLES["test"]]
    assert known(images / "train", "train") == [(sample.file, sample.label) for sample in SAMPLES["train"]]
    assert known(images / "train", "test") == known(images / "val", "test") == chosen


@pytest.mark.full("make test installs no datasets; a split of one is a table of Arrow")
def test_the_splits_of_a_dataset_dict(root: Path) -> None:
    import datasets

    parts = {name: hugging_face(root, split)[0] for name, split in (("train", "train"), ("validation", "test"))}
    data = datasets.DatasetDict({**parts, "test": parts["validation"].select([0])})
    for split in ("train", "test"):
        assert known(data, split) == [(sample.file, sample.label) for sample in SAMPLES[split]]


def test_the_boxes_of_a_data_frame_are_those_of_a_table(root: Path) -> None:
    chosen = SAMPLES["train"]
    columns: dict[str, list[Any]] = {
        "path": [path for path, _ in pairs(root, "train")[0]],
        "label": [sample.label for sample in chosen],
        "boxes": [[[edge / 32 for edge in box] for box in sample.boxes] for sample in chosen],
    }
    pq.write_table(pa.table(columns), root / "boxes.parquet")
    keys = {**SMALL, "crop": "boxes"}
    with tfpipe.load(pd.DataFrame(columns), **keys) as one, tfpipe.load(root / "boxes.parquet", **keys) as other:
        assert len(one) == len(other) > len(chosen) // 4
        for (images, labels), (same, alike) in zip(one.epoch(0), other.epoch(0), strict=True):
            assert (images.numpy() == same.numpy()).all() and (labels.numpy() == alike.numpy()).all()


def test_a_state_resumes_from_another_form(root: Path) -> None:
    """What is compared are the samples, not what holds them."""
    with tfpipe.load(root / "images", **SMALL) as loader:
        next(loader)
        state, (images, _) = loader.state_dict(), next(loader)
    with tfpipe.load(pairs(root, "train")[0], **SMALL) as other:
        other.load_state_dict(state)
        assert (next(other)[0].numpy() == images.numpy()).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"batchsize": 4}, "batchsize: unknown argument; did you mean batch_size?"),
        ({"img_size": 64}, "img_size: unknown argument; did you mean crop_image_size?"),
        ({"image_sizes": 64}, "did you mean image_size?"),
        ({"postions": True}, "did you mean positions?"),
        ({"num_workers": 4}, "did you mean threads?"),
        ({"validation_split": 0.2}, "did you mean test_share?"),
        ({"label_column": "y"}, 'did you mean columns={"label": ...}?'),
        ({"box_format": "xywh"}, 'did you mean columns={"box_format": ...}?'),
        ({"format": "yolo"}, 'did you mean layout={"format": ...}?'),
        ({"epochs": 5}, "training.epochs is a key of a config for `tfpipe train`, not of the data"),
        ({"train_filelist": "a.txt"}, "what is loaded is the first argument"),
        ({"image_size": 8, "crop_image_size": 8}, "image_size and crop_image_size are two names of one argument"),
        ({"crop_image_size": 8, "image_size": 8}, "image_size and crop_image_size are two names of one argument"),
        (
            {"world": (0, 2)},
            "world: received (0, 2); accepted: a tfpipe.World, e.g. tfpipe.World(0, 2) for rank 0 of 2",
        ),
        ({"train_label_file": "a\0b"}, "received 'a\\x00b'; accepted: a path without the character NUL"),
        ({"transform": len}, "transform: received <built-in function len>; accepted: the function's name, \"package"),
        ({"batch_size": "many"}, 'data.batch_size: received "many"; accepted: a valid integer'),
        ({"columns": {"lable": "y"}}, "did you mean data.source.columns.label?"),
        ({"kind": "folder"}, 'received "folder"; accepted: "folders"'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_answered_with_the_nearest_right_one(
    root: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"(^|[^_]){re.escape(message)}"):
        tfpipe.load(root / "images", **{"world": World(), **keys})


class Unknown:
    """Nothing that can be loaded."""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            ["a.jpg", "b.jpg"],
            "item 0 of the list is 'a.jpg', without a label; accepted: (path, label), or paths with labels=",
        ),
        ([("a.jpg", "cat"), 7], "item 1 of the list is '7'; accepted: a pair (path, label)"),
        ([(b"a", "cat"), ("b.jpg", "dog")], "received bytes of 1 of 2 images in a list; accepted: of all, or paths"),
        ([("b.jpg", "dog"), (b"a", "cat")], "received bytes of 1 of 2 images in a list; accepted: of all, or paths"),
        ([], "the list has no row"),
        (np.zeros((2, 8, 8, 3)), "tf.data.Dataset.from_tensor_slices"),
        (Unknown(), "tests.data.test_load.Unknown; accepted: a path (class folders"),
        (pd.DataFrame({"file": ["a.jpg"], "label": ["cat"]}), 'the DataFrame has no column "path", but file, label'),
        (
            pd.DataFrame({"path": ["a.jpg"], "class": ["cat"]}),
            "the DataFrame has no labels: set data.source.columns.label",
        ),
        (
            pd.DataFrame({"path": ["a.jpg", None], "label": ["a", "b"]}),
            "row 1 of the DataFrame: received an empty cell",
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_data_in_memory_that_cannot_be_loaded_are_refused(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        tfpipe.load(data, world=World())


def torch_tensor(labels: list[int]) -> Any:
    import torch

    return torch.tensor(labels)


@pytest.mark.parametrize(
    "make",
    [
        np.array,
        tf.constant,
        lambda labels: list(map(tf.constant, labels)),
        pytest.param(torch_tensor, marks=pytest.mark.full("imports torch, whose tensors have NumPy's tolist")),
    ],
    ids=["numpy", "tensorflow", "list of tensors", "torch"],
)
def test_labels_may_be_an_array_or_a_tensor(root: Path, make: Any) -> None:
    paths = [path for path, _ in pairs(root, "train")[0]]
    labels = [number % 3 for number in range(len(paths))]
    with tfpipe.load(paths, labels=make(labels), world=World()) as loader:
        assert loader.class_names == ["0", "1", "2"] and loader.catalog.labels.tolist() == labels


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        ({"a.jpg", "b.jpg"}, [0, 1], "the paths: received a set, which has no order; accepted: a list"),
        (["a.jpg", "b.jpg"], frozenset([0, 1]), "labels: received a frozenset, which has no order; accepted: a list"),
        ("a.jpg", list("abcde"), "labels: are those of a list of paths, and 'a.jpg' is one path: give a list"),
        (["a.jpg", "b.jpg"], [1, "cat"], "labels: that of image 0 is 1, and that of image 1 is 'cat'; accepted: all"),
        (["a.jpg", "b.jpg"], [1.0, True], "labels: that of image 0 is 1.0, and that of image 1 is True; accepted: all"),
        (["a.jpg", "b\0.jpg"], [0, 1], "b\\x00.jpg' holds a NUL, where the system ends a name: rename the file"),
        ("a\0.jpg", None, "the path 'a\\x00.jpg' holds a NUL, where the system ends a name; accepted: a folder"),
    ],
)
def test_paths_and_labels_that_may_mean_several_things_are_refused(data: Any, labels: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        tfpipe.load(data, labels=labels, world=World())


@pytest.mark.full("make test installs no datasets")
def test_a_streamed_dataset_is_refused() -> None:
    import datasets

    data = datasets.Dataset.from_dict({"a": [1]}).to_iterable_dataset()
    for streamed in (data, datasets.IterableDatasetDict({"train": data})):
        with pytest.raises(ConfigError, match="load the dataset without streaming=True"):
            tfpipe.load(streamed, world=World())


def test_a_path_that_is_no_data_is_answered_with_what_was_found(root: Path, tmp_path: Path) -> None:
    def refusal(path: Path | str, *split: str) -> str:
        with pytest.raises(ConfigError) as refused:
            tfpipe.load(path, *split, world=World())
        return str(refused.value)

    assert "there is no file or folder" in refusal(tmp_path / "flowres")
    (tmp_path / "Notes").mkdir()
    assert f"there is no file or folder {tmp_path / 'notes'}; next to it is Notes; accepted: " in refusal(
        tmp_path / "notes"
    )
    assert "holds no data that tfpipe knows, but nothing; accepted: a folder of class folders" in refusal(
        tmp_path / "Notes"
    )
    (tmp_path / "Notes/a.pdf").write_text("")
    (tmp_path / "Notes/list.txt").write_text("a.jpg\n")
    assert "but 1 file of .pdf and 1 file of .txt; is " in refusal(tmp_path / "Notes")
    flat = root / "images/train/cat"
    assert "images without class folders need labels: give a list of (path, label), or a table" in refusal(flat)
    assert "this is a single image" in refusal(next(flat.iterdir()))
    (tmp_path / "flowers.tgz").touch()
    assert f"decompress it once, e.g. gzip -dk {tmp_path}/flowers.tgz" in refusal(tmp_path / "flowers.tgz")
    (tmp_path / "c.json").write_text('{"data": {}}')
    assert "is a config: use tfpipe.Loader(tfpipe.load_config(" in refusal(tmp_path / "c.json")
    shutil.copytree(root / "images/train", tmp_path / "both")
    (tmp_path / "both/labels.csv").write_text("path,label\n")
    assert 'say which, kind="table" (labels.csv) or kind="folders"' in refusal(tmp_path / "both")
    assert 'split: received "val"; accepted: "train" or "test", which validation data is too' in refusal(root, "val")
    names = tmp_path / "VOC/ImageSets/Main/train.txt"
    names.parent.mkdir(parents=True)
    for line in ("2007_000032", "2007_000032 -1", "2007_000032  1"):
        names.write_text(f"{line}\n")
        assert f"has names, not paths of images: tfpipe filelist {tmp_path / 'VOC'} --out lists/" in refusal(names)
    names.write_text("".join(f"{path}\n" for path, _ in pairs(root, "train")[0]))
    assert tfpipe.load(names, **SMALL).catalog.labels.tolist()  # paths, in a list of one's own
    shutil.copytree(root / "images/train", tmp_path / "alone")
    assert "has no test data by its names" in refusal(tmp_path / "alone", "test")
    assert "classes=train.class_names" in refusal(tmp_path / "both/labels.csv", "test")


def test_the_log_says_what_was_recognised(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tfpipe")
    table, filelist = (FORMS[form](root, "train")[0] for form in ("csv", "filelist"))
    kinds = {table: 'data.source of the kind "table"', root / "images": 'data.source of the kind "folders"'}
    for path, form in {**kinds, filelist: "data.train_filelist"}.items():
        tfpipe.load(path, **SMALL)
        assert f"{path} is recognised as {form}; another kind= says otherwise" in caplog.messages
    with pytest.raises(ConfigError):
        tfpipe.load("https://me:secret@localhost:1/a.csv", **SMALL)
    assert "secret" not in caplog.text and "https://***@localhost:1/a.csv is recognised" in caplog.text
    caplog.clear()
    tfpipe.load(root / "images", kind="folders", **SMALL)
    assert not any("recognised" in message for message in caplog.messages)


def test_a_config_has_its_keys_itself(root: Path) -> None:
    config = make_config({"data": {"source": {"kind": "folders", "path": str(root / "images")}}})
    assert tfpipe.Loader(config, world=World()).class_names == list(CLASSES)
    with pytest.raises(ConfigError, match=r'batch_size: a config has this key itself: .*"data\.batch_size='):
        tfpipe.Loader(config, world=World(), batch_size=4)
    with pytest.raises(ConfigError, match=r"postions: unknown argument; did you mean positions\?"):
        tfpipe.Loader(config, world=World(), postions=True)


def test_a_file_that_cannot_be_used_is_named(root: Path, tmp_path: Path) -> None:
    sample = SAMPLES["train"][0]
    rows = {"image": [sample.file[:200], sample.file], "label": ["cat", "dog"], "path": ["one.jpg", "two.jpg"]}
    with tfpipe.load(pd.DataFrame(rows), **{**SMALL, "batch_size": 1}) as loader:
        with pytest.raises(tfpipe.TfpipeError, match=r"cannot use one\.jpg of the train data"):
            list(loader.epoch(0))


def test_other_frameworks_take_the_same(root: Path) -> None:
    with (
        tfpipe.load(root / "images", **SMALL) as one,
        tfpipe.torch.Loader(root / "images", **SMALL, channels_first=False) as two,
        tfpipe.jax.Loader(root / "images", **SMALL) as three,
    ):
        images, *others = (np.asarray(next(loader)[0]) for loader in (one, two, three))
        assert all((images == other).all() for other in others)
        with pytest.raises(AttributeError, match=r"tfpipe\.torch\.Loader hands out no tensors of TensorFlow"):
            two.dataset()
        assert not hasattr(three, "dataset")
    with pytest.raises(ConfigError, match=r"did you mean channels_first\?"):
        tfpipe.torch.Loader(root / "images", world=World(), channel_first=False)


def test_the_documents_one_call(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flowers").symlink_to(root / "images")
    (tmp_path / "block.py").write_text(blocks(ROOT / "docs/data.md", "python")[0])
    names = runpy.run_path("block.py")
    assert names["train"].step == len(names["train"]) == 2 and names["images"].shape == (16, 128, 128, 3)
    assert "['bird', 'cat', 'dog'] 2 steps an epoch, 1 test batches" in capsys.readouterr().out


def test_images_of_no_class_folder_have_labels_in_a_file(root: Path, tmp_path: Path) -> None:
    """As ImageNet's val; and in its layout the XMLs count."""
    folder = tmp_path / "Data/CLS-LOC/val"
    folder.mkdir(parents=True)
    for sample in SAMPLES["test"]:
        (folder / f"{sample.name}.jpg").write_bytes(sample.file)
    (tmp_path / "labels.txt").write_text("".join(f"{sample.label}\n" for sample in SAMPLES["test"]))
    keys = {"test_label_file": tmp_path / "labels.txt", "classes": CLASSES, "annotations": "none"}
    assert known(folder, "test", **keys) == [(sample.file, sample.label) for sample in SAMPLES["test"]]
    (tmp_path / "Annotations/CLS-LOC/val").mkdir(parents=True)
    write_files(tmp_path, SAMPLES["train"], "Data/CLS-LOC/train")
    (tmp_path / "xmls").rename(tmp_path / "Annotations/CLS-LOC/train")
    with tfpipe.load(tmp_path / "Data/CLS-LOC/train", **{**SMALL, "crop": "boxes"}) as loader:
        assert loader.count.crops == sum(len(sample.boxes) for sample in SAMPLES["train"])
