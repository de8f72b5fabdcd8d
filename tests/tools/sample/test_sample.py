"""The synthetic data set: reproducible, complete, consistent, and distributed as ILSVRC2012 is."""

import hashlib
import io
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from lxml import etree
from PIL import Image

from tfpipe.errors import ConfigError
from tfpipe.tools.sample.sample import CLASSES, SampleSummary, _object, plan, render, write_sample

IMAGES, VAL, SCALE = 40, 16, 0.15
LABELS = "imagenet_2012_validation_synset_labels.txt"
BOX = ("xmin", "ymin", "xmax", "ymax")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SampleSummary]:
    out = tmp_path_factory.mktemp("sample")
    return out, write_sample(out, IMAGES, VAL, SCALE, seed=3, workers=1)


def digests(out: Path) -> dict[str, str]:
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def boxes_of(xml: Path) -> list[tuple[int, ...]]:
    objects = etree.parse(xml).findall("object")
    return [tuple(int(thing.findtext(f"bndbox/{edge}")) for edge in BOX) for thing in objects]


def test_same_arguments_give_the_same_bytes_for_any_number_of_workers(made, tmp_path):
    write_sample(tmp_path / "new", IMAGES, VAL, SCALE, seed=3, workers=2)
    assert digests(tmp_path / "new") == digests(made[0])


def test_layout_is_complete_and_the_summary_counts_it(made):
    out, summary = made
    data, notes = out / "Data/CLS-LOC", out / "Annotations/CLS-LOC"
    train = sorted((data / "train").glob("n*/n*.JPEG"))
    val = sorted(path.name for path in (data / "val").iterdir())
    assert all(path.name.startswith(f"{path.parent.name}_") for path in train)
    assert Counter(path.parent.name for path in train) == dict.fromkeys(CLASSES, IMAGES // 8)
    assert val == [f"ILSVRC2012_val_{k:08d}.JPEG" for k in range(1, VAL + 1)]
    assert {path.stem for path in (notes / "val").iterdir()} == {Path(name).stem for name in val}
    train_notes = sorted((notes / "train").glob("n*/*.xml"))
    jpegs = {path.relative_to(data).with_suffix("") for path in train}
    assert {path.relative_to(notes).with_suffix("") for path in train_notes} < jpegs
    everything = {path.suffix for path in out.rglob("*") if path.is_file()}
    assert everything == {".JPEG", ".xml", ".csv", ".txt", ".json"}
    assert summary == SampleSummary(
        IMAGES,
        VAL,
        8,
        len(train_notes),
        sum(len(boxes_of(path)) for path in train_notes),
        sum(len(boxes_of(path)) for path in (notes / "val").iterdir()),
        sum(path.stat().st_size for path in out.rglob("*.JPEG")),
    )


def test_annotations_describe_their_images(made):
    out = made[0]
    labels = (out / LABELS).read_text().split()
    found = sorted((out / "Annotations").rglob("*.xml"))
    assert len(found) > VAL
    for path in found:
        jpeg = out / "Data" / path.relative_to(out / "Annotations").with_suffix(".JPEG")
        root = etree.parse(path).getroot()
        in_val = path.parent.name == "val"
        wnid = labels[int(path.stem[-8:]) - 1] if in_val else path.parent.name
        assert [child.tag for child in root][:5] == ["folder", "filename", "source", "size", "segmented"]
        assert (root.findtext("folder"), root.findtext("filename")) == (path.parent.name, path.stem)
        assert root.findtext("source/database") == "ImageNet database"
        with Image.open(jpeg) as image:
            assert image.format == "JPEG"
            size = tuple(int(root.findtext(f"size/{key}")) for key in ("width", "height", "depth"))
            assert size == (*image.size, len(image.getbands()))
        assert 1 <= len(root.findall("object")) <= 3
        for thing in root.findall("object"):
            assert [child.tag for child in thing] == ["name", "pose", "truncated", "difficult", "bndbox"]
            assert thing.findtext("name") == wnid
        for xmin, ymin, xmax, ymax in boxes_of(path):
            assert 0 <= xmin < xmax <= size[0]
            assert 0 <= ymin < ymax <= size[1]
        assert path.read_text().startswith("<annotation>\n\t<folder>")


def test_label_files_agree_with_the_annotations(made):
    out = made[0]
    header, *rows = (out / "LOC_val_solution.csv").read_text().splitlines()
    labels = (out / LABELS).read_text().splitlines()
    assert header == "ImageId,PredictionString"
    assert len(rows) == len(labels) == VAL
    for k, (row, wnid) in enumerate(zip(rows, labels, strict=True), start=1):
        name = f"ILSVRC2012_val_{k:08d}"
        boxes = boxes_of(out / f"Annotations/CLS-LOC/val/{name}.xml")
        assert row == f"{name}," + "".join(f"{wnid} {a} {b} {c} {d} " for a, b, c, d in boxes)
    assert Counter(labels) == dict.fromkeys(CLASSES, VAL // 8)
    names = dict(line.split(" ", 1) for line in (out / "LOC_synset_mapping.txt").read_text().splitlines())
    assert len(names) == 8
    assert list(names) == sorted(names)
    assert names["n01440764"] == "tench, Tinca tinca"


def test_plans_are_distributed_as_imagenet():
    plans = [plan(0, "train", k) for k in range(4000)]
    assert np.mean([p.annotated for p in plans]) == pytest.approx(0.425, abs=0.03)  # 4 standard deviations
    assert np.mean([p.gray for p in plans]) == pytest.approx(0.02, abs=0.009)
    assert all(plan(0, "val", k).annotated for k in range(100))
    sizes = Counter((p.width, p.height) for p in plans)
    common = {(500, 375), (375, 500), (500, 333), (333, 500), (500, 500)}
    assert {size for size, _ in sizes.most_common(5)} == common
    assert sizes.most_common(1)[0][0] == (500, 375)
    pixels = np.array([p.width * p.height for p in plans])
    assert np.median(pixels) == pytest.approx(187_500, rel=0.05)
    assert pixels.mean() == pytest.approx(200_000, rel=0.1)
    longest = np.array([max(p.width, p.height) for p in plans])
    assert longest.min() < 100 and 1800 < longest.max() <= 2400
    assert 0.004 < np.mean(longest > 1280) < 0.012


def test_planned_objects_lie_inside_and_apart():
    for k in range(600):
        image = plan(1, "train", k)
        boxes = np.array([thing.box for thing in image.things])
        assert 1 <= len(boxes) <= 3
        assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] <= (image.width, image.height)).all()
        sides = (boxes[:, 2:] - boxes[:, :2]) / (image.width, image.height)
        if not image.annotated:  # is used whole, so its one object has to fill it
            assert len(boxes) == 1
            assert 0.74 <= sides.max() <= 0.96
        for one, box in enumerate(boxes):
            for other in boxes[:one]:
                shared = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2])
                assert shared.min() <= 1  # by rounding


@pytest.mark.parametrize("index", range(8))  # one of each class
def test_boxes_are_tight_around_what_is_drawn(index, monkeypatch):
    def white(*args):
        color, alpha = _object(*args)
        return np.full_like(color, 2000), alpha  # however dark the light leaves it

    image = plan(2, "train", index, 0.5)
    image = image._replace(gray=True, things=image.things[:1])
    monkeypatch.setattr("tfpipe.tools.sample.sample.NOISE", 0.0)
    monkeypatch.setattr("tfpipe.tools.sample.sample._object", white)
    monkeypatch.setattr(
        "tfpipe.tools.sample.sample._background", lambda _, size: np.zeros((*size[::-1], 3), np.float32)
    )
    drawn = np.asarray(Image.open(io.BytesIO(render(2, "train", index, image)))) > 100
    rows, columns = np.flatnonzero(drawn.any(1)), np.flatnonzero(drawn.any(0))
    found = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    assert found == pytest.approx(image.things[0].box, abs=1)
    assert 0.25 < drawn[rows[0] : rows[-1], columns[0] : columns[-1]].mean() < 0.95


def test_pictures_of_one_plan_differ_by_seed_split_and_index():
    image = plan(0, "train", 0, 0.1)
    pictures = [render(*key, image) for key in ((0, "train", 0), (1, "train", 0), (0, "val", 0), (0, "train", 1))]
    assert len(set(pictures)) == 4


def test_second_call_changes_nothing(made, monkeypatch):
    out, summary = made
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    monkeypatch.setattr("tfpipe.tools.sample.sample.render", None)  # a call would fail
    assert write_sample(out, IMAGES, VAL, SCALE, seed=3, workers=1) == summary
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_interrupted_set_is_written_again(made, tmp_path, monkeypatch):
    def interrupted(seed, split, index, image):
        if split == "val":
            raise KeyboardInterrupt
        return render(seed, split, index, image)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tfpipe.tools.sample.sample.render", interrupted)
        write_sample(tmp_path, IMAGES, VAL, SCALE, seed=3, workers=1)
    assert list(tmp_path.rglob("*.JPEG")) and "summary" not in (tmp_path / "sample.json").read_text()
    with pytest.raises(ConfigError, match="other arguments"):
        write_sample(tmp_path, IMAGES + 8, VAL, SCALE, seed=3, workers=1)
    assert write_sample(tmp_path, IMAGES, VAL, SCALE, seed=3, workers=1) == made[1]
    assert digests(tmp_path) == digests(made[0])


@pytest.mark.parametrize(
    "change", [{"images": 48}, {"val_images": 8}, {"scale": 0.16}, {"seed": 2}], ids=lambda c: next(iter(c))
)
def test_refuses_a_set_of_other_arguments(made, change):
    before = digests(made[0])
    arguments = {"images": IMAGES, "val_images": VAL, "scale": SCALE, "seed": 3} | change
    with pytest.raises(ConfigError, match=r"other arguments.*delete"):
        write_sample(made[0], **arguments, workers=1)
    assert digests(made[0]) == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"images": 7},
        {"scale": 0.0},
        {"scale": -1.0},
        {"scale": 4.01},
        {"scale": float("nan")},
        {"val_images": 0},
        {"seed": -1},
        {"workers": 0},
    ],
    ids=str,
)
def test_refuses_arguments_out_of_range(tmp_path, arguments):
    with pytest.raises(ConfigError):
        write_sample(tmp_path / "new", **({"images": 8, "workers": 1, "scale": 0.1} | arguments))
    assert not os.listdir(tmp_path)


def test_refuses_a_folder_of_other_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        write_sample(tmp_path, 8, workers=1, scale=0.1)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(ConfigError, match="holds other files"):
        write_sample(tmp_path / "thesis.tex", 8, workers=1, scale=0.1)
    for text in (json.dumps({"colour": "blue"}), "{"):
        (tmp_path / "sample.json").write_text(text)
        with pytest.raises(ConfigError, match="a sample of other arguments"):
            write_sample(tmp_path, 8, workers=1, scale=0.1)


@pytest.mark.parametrize(("images", "val"), [(8, 8), (24, 8), (45, 9)])
def test_val_images_default_to_a_fifth_and_one_per_class(tmp_path, images, val):
    summary = write_sample(tmp_path, images, scale=0.05, workers=1)
    assert (summary.train_images, summary.val_images) == (images, val)
    assert len(set((tmp_path / LABELS).read_text().split())) == 8
