"""The catalog: each image with its own label and its own XML, whatever the list's order."""

import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sample import SampleData
from tests.support.trees import touch
from tfpipe import World, load_config
from tfpipe.config import WeightedList
from tfpipe.data.catalog.class_folders import LABELLED
from tfpipe.data.catalog.filelist import read_lists
from tfpipe.data.catalog.labels import classes_in_list, folder_of
from tfpipe.data.catalog.layout import annotation_folders, annotation_name, find_layout
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError


def test_every_image_has_its_own_label_and_xml(sample: SampleData, tmp_path: Path) -> None:
    lines = sample.train.read_text().splitlines()
    random.Random(0).shuffle(lines)
    (tmp_path / "list.txt").write_text("\n".join(lines))
    config = load_config(sample.config(tmp_path / "c.json", data={"train_filelist": "list.txt"})).data
    catalog = load_split(config, "train", World()).catalog
    assert list(catalog.paths) == lines
    assert [catalog.classes[label] for label in catalog.labels] == [folder_of(line) for line in lines]
    layout = find_layout("auto", catalog.paths)
    # One list an image, so that no folder can be taken for another's.
    folders = [annotation_folders(FileList.of([line]), layout)[0] for line in lines]
    xmls = [folder + annotation_name(Path(line).name, ".xml") for folder, line in zip(folders, lines, strict=True)]
    there = [Path(xml).exists() for xml in xmls]
    assert catalog.annotated.dtype == bool and catalog.annotated.tolist() == there
    assert 0 < np.count_nonzero(there) < len(lines)
    assert [catalog.annotation(item) for item in range(len(catalog))] == [
        xml if exists else "" for xml, exists in zip(xmls, there, strict=True)
    ]


def test_a_list_with_labels_is_called_one_and_the_command_makes_a_table_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a/1 x.jpg 0\nb/2.JPEG\t17\n")
    with pytest.raises(
        ConfigError, match=r"train\.txt has a label after each path, as Caffe's lists and CSVs have"
    ) as caught:
        read_lists(tmp_path / "train.txt")
    command = str(caught.value).partition("make a table of it, ")[2].partition(", and set")[0]
    subprocess.run(command, shell=True, check=True)
    assert (tmp_path / "train.csv").read_text() == 'path,label\n"a/1 x.jpg",0\n"b/2.JPEG",17\n'
    (tmp_path / "train.txt").write_text("a/1.jpg 0\nb/2.jpg\n")
    assert len(read_lists(tmp_path / "train.txt")[0]) == 2


def test_class_folders_in_no_known_layout_need_no_xml(sample: SampleData, tmp_path: Path) -> None:
    """In a known layout a folder is as good as its list."""
    train = sample.root / "Data/CLS-LOC/train"
    shutil.copytree(train, tmp_path / "train")
    whole = sample.config(tmp_path / "a.json", data={"train_filelist": str(tmp_path / "train")})
    catalog = load_split(load_config(whole).data, "train", World()).catalog
    lines = sample.train.read_text().splitlines()
    assert [str(train / Path(path).relative_to(tmp_path / "train")) for path in catalog.paths] == lines
    assert [catalog.classes[label] for label in catalog.labels] == [folder_of(line) for line in lines]
    assert not catalog.annotated.any()
    known = load_config(sample.config(tmp_path / "b.json", data={"train_filelist": str(train)})).data
    listed = load_config(sample.config(tmp_path / "c.json")).data
    catalogs = [load_split(config, "train", World()).catalog for config in (known, listed)]
    assert catalogs[0].paths == catalogs[1].paths
    assert np.array_equal(*(catalog.annotated for catalog in catalogs)) and catalogs[0].annotated.any()


def test_where_no_annotation_is_needed_none_is_looked_for(sample: SampleData, tmp_path: Path) -> None:
    for keys in ({"crop": "center"}, {"annotations": "none"}):
        catalog = load_split(load_config(sample.config(tmp_path / "c.json", data=keys)).data, "train", World()).catalog
        assert not catalog.annotated.any() and catalog.annotation(0) == ""
        assert catalog.annotation_folders == [""] * len(catalog.paths.folders)


@given(st.sampled_from([None, -1, -2, -3, 1, 2]), st.sampled_from(["a.jpg", "x/a.jpg", "x/y/a.jpg", "x/y/z/a.jpg"]))
def test_a_list_beside_a_folder_has_the_classes_that_it_has_alone(
    tmp_path_factory: pytest.TempPathFactory, level: int | None, name: str
) -> None:
    tree = (f"tree/{one}/{two}/1.jpg" for one in "pq" for two in "rs")
    root = touch(tmp_path_factory.mktemp("mixed"), *tree, f"list/{name}")
    (root / "list.txt").write_text(f"list/{name}\n")
    lists = [WeightedList(path=root / each, weight=1.0) for each in ("tree", "list.txt")]
    rule = LABELLED._replace(level=level)
    alone: list[str] | str
    try:
        alone = classes_in_list(read_lists(root / "list.txt").paths.folders, level)
    except ConfigError as error:
        alone = str(error)
    try:
        mixed = read_lists(lists, rule)
        assert mixed.folder_classes is not None
        assert mixed.folder_classes[-1:] == alone
    except ConfigError as error:
        assert str(error) == alone
