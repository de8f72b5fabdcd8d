"""Records what a version of tfpipe leaves behind: PYTHONPATH=OLD python tests/recorded/make_before.py OUT.

OLD is a clone of that version; tests/recorded/before is of d1cf701. OUT is a new folder, which may be moved: all paths
in it are relative, and the digest of a list of relative lines stays what it is. Only the columns "path" of the tables
name the folder that OUT was; nothing reads files by them.

    Data, Annotations   18 images of 40x32 pixels in ImageNet's layout, a few with an XML, one with 3 objects
    *.txt, *.csv        filelists of relative lines, and the validation images' labels
    *.json              configs: of the files, as the ALCF tutorial has them, of each kind of packed data
    original, crops, raw  `tfpipe pack`
    expected.json       digests of an epoch's crops
"""

import hashlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

import tfpipe

CLASSES = ("n01440764", "n02084071", "n03085013")
HEIGHT, WIDTH = 32, 40
# Objects in the images' XMLs; None: no XML. 10 boxes and 6 whole images are 16 crops, which 8 steps train exactly.
TRAIN = (3, 1, 2, None, 1, None, 2, None, None, 1, None, None)
VAL = (1, None, None, 2, None, None)
KINDS = ("original", "crops", "raw")


def write_tree(out: Path) -> None:
    """Writes the images, their XMLs, the filelists and the validation images' labels."""
    rng = np.random.default_rng(0)
    rows = ["ImageId,PredictionString"]
    for split, objects in (("train", TRAIN), ("val", VAL)):
        lines = []
        for number, count in enumerate(objects):
            wnid = CLASSES[number % len(CLASSES)]
            name = f"{wnid}_{number}" if split == "train" else f"ILSVRC2012_val_{number + 1:08}"
            place = Path("CLS-LOC", split, wnid if split == "train" else "", name)
            image = out / "Data" / place.with_suffix(".JPEG")
            image.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8))
            coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(image, quality=90)
            lines.append(f"{image.relative_to(out)}\n")
            if split == "val":
                rows.append(f"{name},{wnid} 1 1 30 30")
            if count is not None:
                xml = out / "Annotations" / place.with_suffix(".xml")
                xml.parent.mkdir(parents=True, exist_ok=True)
                xml.write_text(annotation(wnid, name, count))
        (out / f"{split}.txt").write_text("".join(lines))
    (out / "LOC_val_solution.csv").write_text("\n".join(rows) + "\n")


def annotation(wnid: str, name: str, count: int) -> str:
    """Returns the XML of `count` objects; the second has its edges swapped, the third reaches out of the image."""
    edges = ((2, 3, 30, 25), (38, 30, 12, 8), (20, 10, 60, 31))[:count]
    objects = "".join(
        f"<object><name>{wnid}</name><bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin><xmax>{xmax}</xmax>"
        f"<ymax>{ymax}</ymax></bndbox></object>"
        for xmin, ymin, xmax, ymax in edges
    )
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    return f"<annotation><filename>{name}</filename>{size}{objects}</annotation>\n"


def write_configs(out: Path) -> None:
    """Writes the configs, with relative paths."""
    lists = {"train_filelist": "train.txt", "test_filelist": "val.txt", "test_label_file": "LOC_val_solution.csv"}
    size = {"crop_image_size": [16, 16], "batch_size": 2}
    rest = {
        "model": {"name": "resnet18", "args": {"width": 1, "stem": "small"}},
        "optimizer": {"name": "Adam", "args": {"learning_rate": 0.002}},
        "lr_schedule": {"name": "CosineDecay"},
        "training": {
            "epochs": 2,
            "interval": 4,
            "deterministic": True,
            "log_positions": True,
            "checkpoint": {"every_steps": 3, "keep": 1},
        },
    }
    configs = {"config": {"data": {**lists, **size}, **rest}}
    for kind in KINDS:
        configs[kind] = {"data": {"source": {"kind": "packed", "path": kind}, **size}, **rest}
    configs["alcf"] = {
        "data": {
            "handler": "ilsvrc_dataset",
            **lists,
            **size,
            "shuffle_buffer": 200000,
            "reshuffle_each_iteration": True,
            "num_parallel_readers": 1,
            "prefectch_buffer_size": 0,
            "num_classes": 3,
            "num_channels": 3,
        },
        "model": {"name": "resnet"},
        "optimizer": {"name": "Adam", "learning_rate": 0.001},
        "accuracy": {"name": "SparseCategoricalAccuracy"},
        "validation": {"batches": 2},
    }
    for name, config in configs.items():
        (out / f"{name}.json").write_text(json.dumps(config, indent=2) + "\n")


def digest(config: Path, *overrides: str) -> dict[str, str]:
    """Returns the sha256 of (position, crop, label, pixels) of the crops of a training epoch, and of a test pass."""
    loaded = tfpipe.load_config(config, overrides)
    digests = {}
    for split, images in (("train", len(TRAIN)), ("test", len(VAL))):
        content, done = hashlib.sha256(), False
        for batch in tfpipe.build_dataset(loaded, split, with_positions=True).as_numpy_iterator():
            for pixels, label, (position, crop) in zip(*batch, strict=True):
                done = done or position >= images
                if not done:
                    content.update(np.array([position, crop, label], "<i8").tobytes() + pixels.tobytes())
            if done:
                break
        digests[split] = content.hexdigest()
    return digests


def run(*words: str | Path) -> None:
    """Runs a command of this version."""
    subprocess.run([sys.executable, "-m", "tfpipe", *map(str, words)], check=True)


def main(out: Path) -> None:
    """Records everything in `out`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    out.mkdir(parents=True)
    write_tree(out)
    write_configs(out)
    digests = {"loose": digest(out / "config.json")}
    for kind in KINDS:
        shards = ("--shards", "2", "--quality", "90")
        run("pack", "-c", out / "config.json", "--out", out / kind, "--kind", kind, "--split", "all", *shards)
        digests[kind] = digest(out / f"{kind}.json")
    expected = {
        "made_with": {name: version(name) for name in ("tensorflow", "simplejpeg", "opencv-python-headless", "numpy")},
        "digests": digests,
    }
    (out / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
