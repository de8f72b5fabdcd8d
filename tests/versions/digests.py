"""What an epoch delivers, by config: what each version of TensorFlow has to give alike.

python -m tests.versions.digests write FOLDER    # the data and the configs
python -m tests.versions.digests read FOLDER     # {config: sha256 of (position, crop, label, pixels)}, as JSON
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What is set beside the data of each source below.
EACH = {"batch_size": 4, "crop_image_size": [16, 16]}
SOURCES = ("filelist", "folders", "csv", "parquet", "coco", "tar", "tfrecord", "packed")
FORMATS = ("PNG", "WEBP", "GIF", "BMP", "TIFF")
SETTINGS: dict[str, dict[str, Any]] = {
    "boxes": {},
    "boxes one by one": {"unit": "box"},
    "random crops": {"crop": "random_resized", "flip": True},
    "centre crops": {"crop": "center", "resize": "antialias"},
    "whole images": {"crop": "full", "resize": "bicubic"},
    "gray": {"crop": "center", "num_channels": 1},
    "floats": {"crop": "center", "dtype": "float16", "normalize": {"mean": [0.5] * 3, "std": [0.2] * 3}},
    "RandAugment": {"crop": "random_resized", "augment": [{"name": "RandAugment"}]},
    "AugMix": {"crop": "random_resized", "augment": [{"name": "AugMix"}]},
    "colours": {"crop": "full", "augment": [{"name": "ColorJitter", "hue": 0.2}, {"name": "RandomErasing"}]},
    "MixUp and CutMix": {"crop": "random_resized", "mix": {"mixup": 0.8, "cutmix": 1.0}, "dtype": "float32"},
    "cached": {"crop": "random_resized", "cache": "memory"},
    "in one thread": {"num_parallel_readers": 1, "prefetch_buffer_size": 0},
}


def write(folder: Path) -> None:
    """Writes the data and a config of each kind."""
    from PIL import Image

    from tests.support.source_cases import TRAIN, Written

    for name in SOURCES:
        (folder / name).mkdir(parents=True)
    configs = {name: Written(name, folder / name, "").write() for name in SOURCES}
    loose = configs["filelist"]
    configs |= {name: {**loose, **setting} for name, setting in SETTINGS.items()}
    for form in FORMATS:
        for sample in TRAIN:
            path = folder / form / sample.label / f"{sample.name}.{form.lower()}"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.open(Written("filelist", folder / "filelist", "").image(sample))
            # A lossless WebP: the lossy one's decoder may be another.
            picture.save(path, form, **({"lossless": True} if form == "WEBP" else {}))
        about = {"kind": "folders", "path": str(folder / form), "test_share": 0.2}
        configs[form] = {"source": about, "crop": "center"}
    turned = folder / "turned"
    for number, sample in enumerate(TRAIN):
        path = turned / sample.label / f"{sample.name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        Image.open(Written("filelist", folder / "filelist", "").image(sample)).save(path, exif=exif)
    about = {"kind": "folders", "path": str(turned), "test_share": 0.2}
    configs["turned by EXIF"] = {"source": about, "exif": "apply"}
    for name, data in configs.items():
        (folder / f"{name}.json").write_text(json.dumps({"data": {**data, **EACH}}))


def read(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields each config's name and digest."""
    import tfpipe

    for path in sorted(folder.glob("*.json")):
        content, config = hashlib.sha256(), tfpipe.load_config(path)
        for batch in tfpipe.build_dataset(config, "train", with_positions=True).take(5).as_numpy_iterator():
            images, labels, positions = batch
            for part in (positions, labels, images):
                content.update(f"{part.dtype} {part.shape}".encode() + part.tobytes())
        yield path.stem, content.hexdigest()


if __name__ == "__main__":
    command, where = sys.argv[1], Path(sys.argv[2])
    if command == "write":
        write(where)
    else:
        print(json.dumps(dict(read(where))))
