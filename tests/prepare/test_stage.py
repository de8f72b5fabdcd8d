"""Copies on a local disk: what is there, what is copied again, and that training from them is the same."""

import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batches import KNOWN_STEPS, crops, known_crops
from tests.support.commands import finish, start
from tests.support.configs import config_here, config_of
from tests.support.images import encoded, picture
from tests.support.sample import SampleData
from tests.support.server import serving
from tfpipe import Config, World, load_config, make_config
from tfpipe.cli import main
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare import copier
from tfpipe.prepare import stage as staging
from tfpipe.prepare.index import build_index
from tfpipe.prepare.stage import Share, StageResult, stage, target_of
from tfpipe.util.locks import locked

BOTH = ["train", "test"]
FILE = encoded(picture(8, 8))


def from_copy(sample: SampleData, tmp_path: Path, staged: StageResult, **data: object) -> Config:
    return load_config(sample.config(tmp_path / "copy.json", data=data), staged.overrides)


def files(folder: Path, suffix: str = "") -> dict[Path, float]:
    """The files below it, and when each was written."""
    found = [file for file in folder.rglob(f"*{suffix}") if file.is_file()]
    return {file: file.stat().st_mtime_ns for file in found}


def assert_copied(copy: Config, here: Config, split: str) -> None:
    """The files that a copy's catalog names hold the same bytes as those that it was made of."""
    ours, theirs = (load_split(config.data, split, World()).catalog for config in (copy, here))
    assert ours.annotated.tolist() == theirs.annotated.tolist() and len(ours) == len(theirs)
    for item in range(len(ours)):
        pairs = [(ours.paths[item], theirs.paths[item])]
        pairs += [(ours.annotation(item), theirs.annotation(item))] if ours.annotated[item] else []
        for one, other in pairs:
            assert one != other and Path(one).read_bytes() == Path(other).read_bytes()


@pytest.mark.parametrize("remote", [False, True])
def test_a_copy_holds_the_same_files(sample: SampleData, tmp_path: Path, remote: bool) -> None:
    here = config_here(sample, tmp_path)
    with serving(sample.root) as server:
        config = config_of(sample, tmp_path, server.url) if remote else here
        staged = stage(config.data, BOTH, tmp_path / "out", World())
    catalogs = [load_split(here.data, split, World()).catalog for split in BOTH]
    wanted = sum(len(catalog) + catalog.annotated.sum() for catalog in catalogs)
    assert (staged.copied.files, staged.copied.there) == (wanted, 0)
    assert len(files(tmp_path / "out")) == wanted + 2, "and the lists; nothing partial"
    copy = from_copy(sample, tmp_path, staged)
    assert read_filelist(copy.data.train_filelist)[0].startswith(f"{tmp_path}/out/")
    for split in BOTH:
        assert_copied(copy, here, split)
    shutil.move(tmp_path / "out", tmp_path / "moved")
    assert read_filelist(tmp_path / "moved/train.txt")[0].startswith(f"{tmp_path}/moved/")


def test_training_from_a_copy_gives_the_same_batches(sample: SampleData, index: str, tmp_path: Path) -> None:
    staged = stage(config_here(sample, tmp_path).data, BOTH, tmp_path / "out", World())
    copy, here = from_copy(sample, tmp_path, staged), config_here(sample, tmp_path, index=index)
    assert crops(copy, "train", steps=KNOWN_STEPS) == known_crops(here, "train")
    assert crops(copy, "test") == known_crops(here, "test")


def test_a_share_has_its_ranks_images_and_all_xmls(sample: SampleData, index: str, tmp_path: Path) -> None:
    here = config_here(sample, tmp_path, scope="shard")
    staged = stage(here.data, ["train"], tmp_path / "out", World(), Share(1, 3))
    paths = read_filelist(tmp_path / "out/train.txt")
    assert len(paths) == 96
    assert [os.path.exists(path) for path in paths] == [item % 3 == 1 for item in range(96)]
    catalog = load_split(here.data, "train", World()).catalog
    assert len(files(tmp_path / "out", ".xml")) == catalog.annotated.sum()
    assert_share_trains(sample, index, tmp_path, staged)


def test_a_share_of_boxes_has_the_images_that_they_are_of(sample: SampleData, index: str, tmp_path: Path) -> None:
    here = config_here(sample, tmp_path, scope="shard", unit="box")
    staged = stage(here.data, ["train"], tmp_path / "out", World(), Share(1, 3))
    assert_share_trains(sample, index, tmp_path, staged, unit="box")


def assert_share_trains(sample: SampleData, index: str, tmp_path: Path, staged: StageResult, **data: object) -> None:
    copy = from_copy(sample, tmp_path, staged, scope="shard", **data)
    here = config_here(sample, tmp_path, scope="shard", index=index, **data)
    assert crops(copy, "train", World(1, 3), KNOWN_STEPS) == known_crops(here, "train", World(1, 3))


def test_the_index_comes_along_and_then_no_xml(sample: SampleData, tmp_path: Path) -> None:
    here = config_here(sample, tmp_path, index=str(tmp_path / "indexes"))
    build_index(here.data, "train", World(), 1)
    staged = stage(here.data, ["train"], tmp_path / "out", World())
    assert "data.index=null" in staged.overrides
    assert not files(tmp_path / "out", ".xml") and staged.copied.files == 96
    copy = from_copy(sample, tmp_path, staged, annotations="index", index=str(tmp_path / "indexes"))
    ours, theirs = (load_split(config.data, "train", World()).catalog for config in (copy, here))
    for one, other in zip(ours.boxes, theirs.boxes, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_there_in_its_right_size_is_left_alone(sample: SampleData, tmp_path: Path, remote: bool) -> None:
    with serving(sample.root) as server:
        config = config_of(sample, tmp_path, server.url) if remote else config_here(sample, tmp_path)
        first = stage(config.data, ["train"], tmp_path / "out", World()).copied
        images = sorted(files(tmp_path / "out", ".JPEG"))
        images[3].unlink()
        images[5].write_bytes(images[5].read_bytes()[:-1])
        before = files(tmp_path / "out", ".JPEG")
        again = stage(config.data, ["train"], tmp_path / "out", World()).copied
    assert (again.files, again.there) == (2, first.files - 2)
    after = files(tmp_path / "out", ".JPEG")
    assert {file for file in after if after[file] != before.get(file)} == {images[3], images[5]}


@pytest.mark.full("tests/faults/test_matrix.py kills a rank of a stage, which continues")
def test_a_copy_that_is_killed_goes_on_where_it_was(sample: SampleData, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serving(sample.root, latency_s=0.2) as server:
        how = {"concurrency": 4}
        config = config_of(sample, tmp_path, server.url, how)
        command = [sys.executable, "-m", "tfpipe", "stage", "-c", tmp_path / "remote.json", "--out", out]
        copying = start(*command)
        try:
            deadline = time.monotonic() + 120
            while len(files(out, ".JPEG")) < 20 and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            copying.send_signal(signal.SIGKILL)
            finish(copying)
        assert not (out / "train.txt").exists(), "which comes last"
        there = len(files(out, ".JPEG"))
        assert 20 <= there < 96
        server.latency_s = 0
        staged = stage(config.data, BOTH, out, World())
    assert staged.copied.there >= there
    assert not list(out.glob(".partial*"))
    copy, here = from_copy(sample, tmp_path, staged), config_here(sample, tmp_path)
    for split in BOTH:
        assert_copied(copy, here, split)


def test_what_cannot_be_copied_is_named_and_the_rest_is_kept(sample: SampleData, tmp_path: Path) -> None:
    with serving(sample.root) as server:
        config = config_of(sample, tmp_path, server.url)
        bad = read_filelist(config.data.train_filelist)[7]
        server.fail = lambda path: 404 if bad.endswith(path) else None
        with pytest.raises(TfpipeError, match=rf"1 file cannot be copied.*\n  cannot fetch {bad}: HTTP status 404"):
            stage(config.data, ["train"], tmp_path / "out", World())
    assert len(files(tmp_path / "out", ".JPEG")) == 95
    assert not (tmp_path / "out/train.txt").exists()


def test_a_disk_that_is_too_small_is_refused_before(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**5))
    with pytest.raises(ConfigError, match=r"files of train data will take .* GB, of 0\.0001 GB free"):
        stage(config_here(sample, tmp_path).data, ["train"], tmp_path / "out", World())
    assert not files(tmp_path / "out")


def test_the_ranks_of_a_node_share_its_disk_of_which_an_estimate_leaves_a_tenth_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 4 ranks has 2 GB of 8."""
    monkeypatch.setattr(copier.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**10, 2 * 10**9, 8 * 10**9))
    rank = copier.Staging(tmp_path, World(5, 8, local_rank=1, local_size=4), None)
    rank.check_room("the data need", 1.99e9)
    rank.check_room("the data need", 1.79e9, estimated=True)
    with pytest.raises(ConfigError, match=r"the data need 2\.01 GB, of 2 GB free; use a larger disk"):
        rank.check_room("the data need", 2.01e9)
    with pytest.raises(ConfigError, match=r"1\.81 GB, of 2 GB free, a tenth of which is kept free; use"):
        rank.check_room("the data need", 1.81e9, estimated=True)


def test_the_command_says_what_it_did_and_how_to_go_on(
    sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path, out = sample.config(tmp_path / "c.json"), tmp_path / "out"
    stage_it = ["stage", "-c", str(path), "--out", str(out), "--split", "test"]
    assert main(stage_it) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{out}: \d+ files copied \(\d\.\d MB\), 0 already there", first)
    assert last == f"train from it with: --set data.test_filelist={out}/val.txt"
    assert main([*stage_it, "--share", "1/2"]) == 0
    assert 'data.scope "shard"' in capsys.readouterr().out
    for share in ("2/2", "1", "-1/2"):
        with pytest.raises(SystemExit):
            main([*stage_it, f"--share={share}"])


def test_only_one_copies_to_a_folder(sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_here(sample, tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    command = ["stage", "-c", str(tmp_path / "local.json"), "--out", str(out), "--split", "test"]
    with locked(out / ".partial-0of1.lock", "copying to this folder"):
        assert main(command) == 2
    holder = f"process {os.getpid()} on {socket.gethostname()} is copying to this folder already, and holds {out}/"
    assert holder in capsys.readouterr().err and not files(out)
    assert main(command) == 0
    assert not list(out.glob(".partial*")), "the lock is gone too"


def test_two_folders_that_would_have_one_copy_are_refused(tmp_path: Path) -> None:
    for folder in ("cat", "other/cat"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.jpg").touch()
    (tmp_path / "other/sub").mkdir()
    (tmp_path / "lnk").symlink_to(tmp_path / "other/sub")
    (tmp_path / "train.txt").write_text("cat/x.jpg\nlnk/../cat/x.jpg\n")
    data = {"train_filelist": str(tmp_path / "train.txt"), "annotations": "none"}
    with pytest.raises(ConfigError, match=r"cat/ and .*lnk/\.\./cat/ are not the same, and would have one copy"):
        stage(make_config({"data": data}).data, ["train"], tmp_path / "out", World())


def test_no_file_is_copied_out_of_the_folder() -> None:
    assert target_of(Path("/out"), "http://host:80/a/../../../b/1.JPEG") == "/out/b/1.JPEG"
    assert target_of(Path("/out"), "/a/../b/") == "/out/b/"
    assert target_of(Path("/out"), "s3://bucket/a/1.JPEG") == "/out/bucket/a/1.JPEG"


@pytest.mark.parametrize("scope", ["global", "shard"])
def test_the_ranks_of_a_node_divide_its_xmls(sample: SampleData, tmp_path: Path, scope: str) -> None:
    data = load_config(sample.config(tmp_path / "c.json", data={"scope": scope})).data
    ranks = [World(3 + rank, 6, local_rank=rank, local_size=3) for rank in range(3)]
    shares = [staging._plan(data, "train", tmp_path / "copy", world, None).xmls.tolist() for world in ranks]
    annotated = np.flatnonzero(load_split(data, "train", World()).catalog.annotated).tolist()
    assert sorted(item for share in shares for item in share) == annotated and min(map(len, shares)) > 0


def test_any_number_of_shares_is_the_whole_list(sample: SampleData, index: str, tmp_path: Path) -> None:
    """Dealt to 5 ranks, 96 images leave one over, which the first rank copies."""
    data = load_config(sample.config(tmp_path / "c.json", data={"index": index})).data
    plans = [staging._plan(data, "train", tmp_path / "copy", World(), Share(rank, 5)) for rank in range(5)]
    assert [len(plan.images) for plan in plans] == [20, 19, 19, 19, 19]
    assert sorted(item for plan in plans for item in plan.images.tolist()) == list(range(96))


TREES = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "x", "x/y"])), min_size=2, max_size=5)


@given(TREES, st.sampled_from([None, 1, 2, -1, -2]))
@settings(deadline=None)
def test_a_copy_of_a_folder_has_its_classes_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, folders: list[tuple[str, str]], level: int | None
) -> None:
    """A list names the classes by their folders' depth from the image, and a tree by that from its top."""
    root = tmp_path_factory.mktemp("tree")
    for number, (name, below) in enumerate([("a", ""), ("b", ""), *folders] if level != 2 else folders):
        path = root / "data" / name / below / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FILE)
    data = {"train_filelist": str(root / "data"), "crop": "full", "class_level": level}
    try:
        config = make_config({"data": data})
        catalog = load_split(config.data, "train", World()).catalog
    except ConfigError:
        return  # the folder itself is refused
    names = [catalog.classes[label] for label in catalog.labels]
    try:
        staged = stage(config.data, ["train"], root / "out", World())
    except ConfigError as error:
        assert "lie at another depth" in str(error) and not (root / "out").exists()
        return
    (root / "c.json").write_text(json.dumps({"data": data}))
    again = load_split(load_config(root / "c.json", staged.overrides).data, "train", World()).catalog
    assert [again.classes[label] for label in again.labels] == names


@pytest.mark.parametrize(("below", "listed"), [("x/", "a/1.jpg"), ("x/", "a/x/1.jpg"), ("", "a/1.jpg")])
def test_a_class_level_is_right_for_both_splits_or_refused(tmp_path: Path, below: str, listed: str) -> None:
    """The test data are a list, which a class_level for the copy of the training folder holds for, too."""
    for name in (f"tree/a/{below}0.jpg", f"tree/b/{below}0.jpg", f"test/{listed}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(FILE)
    (tmp_path / "test.txt").write_text(f"test/{listed}\n")
    data = {"train_filelist": str(tmp_path / "tree"), "test_filelist": str(tmp_path / "test.txt"), "crop": "full"}
    config = make_config({"data": {**data, "test_crop": "full", "classes": ["a", "b", "x"]}})
    if below:  # a list without a class_level has the class of the innermost folder
        for splits in (["train"], BOTH):
            with pytest.raises(ConfigError, match="folders of other depths in the training data than in the test data"):
                stage(config.data, splits, tmp_path / "out", World())
    else:
        overrides = stage(config.data, BOTH, tmp_path / "out", World()).overrides
        assert not any(word.startswith("data.class_level") for word in overrides)


def test_a_mixture_is_not_staged_as_one_list(sample: SampleData, tmp_path: Path) -> None:
    lists = [{"path": str(sample.train), "weight": weight} for weight in (9, 1)]
    config = config_here(sample, tmp_path, train_filelist=lists)
    with pytest.raises(ConfigError, match=r"mixes several by their weights"):
        stage(config.data, BOTH, tmp_path / "out", World())
    assert stage(config.data, ["test"], tmp_path / "out", World()).copied.files


def test_workers_change_nothing_of_a_copy(sample: SampleData, tmp_path: Path) -> None:
    """With them training knows all boxes before, without an index."""
    for name, data in (("alone", {}), ("served", {"service": 2})):
        stage(config_here(sample, tmp_path, **data).data, BOTH, tmp_path / name, World())
    copies = [
        sorted(path.relative_to(tmp_path / name) for path in files(tmp_path / name)) for name in ("alone", "served")
    ]
    assert copies[0] == copies[1]


def test_an_index_of_an_earlier_copy_does_not_stay(sample: SampleData, tmp_path: Path) -> None:
    config = config_here(sample, tmp_path, index=str(tmp_path / "index"))
    build_index(config.data, "train", World())
    stage(config.data, ["train"], tmp_path / "out", World())
    assert [*(tmp_path / "out").glob("*.index.parquet")]
    shutil.rmtree(tmp_path / "index")
    stage(config.data, ["train"], tmp_path / "out", World())
    assert not [*(tmp_path / "out").glob("*.index.parquet")]
