"""Images of rectangles whose colours are their classes, annotated in every form: XMLs, COCO, a table, and masks."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from tests.support.routes import tar_bytes
from tests.support.xmls import annotation

CLASSES = ("red", "green", "blue")
COUNT = 24


class Scene(NamedTuple):
    name: str
    size: tuple[int, int]  # height, width
    boxes: list[list[int]]  # xmin, ymin, xmax, ymax; apart from each other
    labels: list[int]


def make_scenes(root: Path, count: int = COUNT) -> list[Scene]:
    """Writes images below `root`, with 0 to 3 objects each, and what tells of them."""
    random_ = np.random.default_rng(0)
    for folder in ("JPEGImages", "Annotations", "Masks"):
        (root / folder).mkdir(parents=True)
    scenes = [_make(root, f"{number:03}", number % 4, random_) for number in range(count)]
    (root / "train.txt").write_text("\n".join(f"JPEGImages/{scene.name}.jpg" for scene in scenes))
    (root / "train.jsonl").write_text("\n".join(json.dumps(row(scene)) for scene in scenes))
    (root / "train.json").write_text(json.dumps(coco(scenes)))
    write_tars(root, scenes)
    return scenes


def write_tars(root: Path, scenes: list[Scene]) -> None:
    """Writes the images with their rows and masks as tar shards, root/tars/train-*.tar."""
    (root / "tars").mkdir()
    for shard in range(3):
        members = {}
        for scene in scenes[shard * len(scenes) // 3 : (shard + 1) * len(scenes) // 3]:
            about = row(scene) | {"about": {"age": row(scene)["age"]}}
            members[f"{scene.name}.json"] = json.dumps(about).encode()
            members[f"{scene.name}.mask.png"] = (root / f"Masks/{scene.name}.png").read_bytes()
            members[f"{scene.name}.jpg"] = (root / f"JPEGImages/{scene.name}.jpg").read_bytes()
        (root / f"tars/train-{shard}.tar").write_bytes(tar_bytes(members))


def _make(root: Path, name: str, objects: int, random_: np.random.Generator) -> Scene:
    height, width = (int(side) for side in random_.integers(90, 160, 2))
    image, mask = Image.new("RGB", (width, height)), Image.new("P", (width, height))
    mask.putpalette([0, 0, 0] * 256)
    boxes, labels = [], []
    for number in range(objects):
        left = number * width // 3 + int(random_.integers(2, 8))
        top, low = int(random_.integers(2, 30)), int(random_.integers(50, height - 2))
        box, label = [left, top, left + int(random_.integers(12, 20)), low], int(random_.integers(0, 3))
        inside = (box[0], box[1], box[2] - 1, box[3] - 1)
        ImageDraw.Draw(image).rectangle(inside, fill=tuple(255 * (label == level) for level in range(3)))
        ImageDraw.Draw(mask).rectangle(inside, fill=label + 1)
        boxes.append(box)
        labels.append(label)
    scene = Scene(name, (height, width), boxes, labels)
    image.save(root / f"JPEGImages/{name}.jpg", quality=98, subsampling=0)
    mask.save(root / f"Masks/{name}.png")
    objects = [(CLASSES[label], (y1, x1, y2, x2)) for (x1, y1, x2, y2), label in zip(boxes, labels, strict=True)]
    (root / f"Annotations/{name}.xml").write_text(annotation(*objects, size=scene.size))
    return scene


def row(scene: Scene) -> dict[str, object]:
    number = int(scene.name)
    return {
        "path": f"JPEGImages/{scene.name}.jpg",
        "mask": f"Masks/{scene.name}.png",
        "boxes": scene.boxes,
        "box_labels": [CLASSES[label] for label in scene.labels],
        "height": scene.size[0],
        "width": scene.size[1],
        "id": 1000 + number,
        "age": number / 2,
        "place": [float(number), float(-number)],
        "caption": f"{len(scene.boxes)} rectangles\nof {scene.name}, à la carte",
        "tags": sorted({CLASSES[label] for label in scene.labels}),
    }


def coco(scenes: list[Scene]) -> dict[str, object]:
    images = [
        {"id": int(scene.name), "file_name": f"JPEGImages/{scene.name}.jpg"}
        | dict(zip(("height", "width"), scene.size, strict=True))
        for scene in scenes
    ]
    objects = [
        {"id": 10 * int(scene.name) + number, "image_id": int(scene.name), "category_id": label}
        | {"bbox": [left, top, right - left, bottom - top]}
        for scene in scenes
        for number, ((left, top, right, bottom), label) in enumerate(zip(scene.boxes, scene.labels, strict=True))
    ]
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES)]
    return {"images": images, "annotations": objects, "categories": categories}
