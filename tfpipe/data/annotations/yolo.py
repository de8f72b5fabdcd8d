"""Reads YOLO's annotations: a .txt for each image, and the data.yaml that names the folders and the classes.

A line of a .txt is an object: the number of its class, and the centre, width and height of its box or the points of a
polygon, relative to the image's size. Both are untrusted input, as XMLs are (annotations/voc.py).
"""

from pathlib import Path
from typing import Any

from tfpipe.data.annotations.objects import IS_NUMBER, TOLERANCE, Objects
from tfpipe.errors import ConfigError, counted
from tfpipe.util.files import text_of

SUFFIXES = (".yaml", ".yml")
# The height and width that relative boxes are divided by.
RELATIVE = [1.0, 1.0]
# Numbers of a box, and of a polygon at least.
BOX, POLYGON = 4, 6
ACCEPTED = '"class x_center y_center width height", or "class x1 y1 x2 y2 x3 y3 ..." of a polygon'
FIRST_FIVE = "keep the first five numbers of each line"


def parse(text: bytes, path: str, classes: int = 0) -> Objects:
    """Reads the objects of a .txt, whose names are class numbers; a polygon's box is the smallest around its points.

    Raises ValueError if a line is anything else, its class is not below `classes` (0: any is), or a number is not
    relative to the image's size; the message names `path` and the line.
    """
    names: list[str | int] = []
    edges: list[float] = []
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            edges += _edges(fields, classes)
        except ValueError as error:
            raise ValueError(f'{path}: line {number}: received "{line.strip()[:80]}"; {error}') from None
        names.append(int(fields[0]))
    return Objects(names, edges, RELATIVE)


def _edges(fields: list[str], classes: int) -> list[float]:
    """Returns ymin, xmin, ymax, xmax of an object; raises ValueError that says what is accepted."""
    name, count = fields[0], len(fields) - 1
    if not (name.isascii() and name.isdecimal() and len(name) <= 9) or not all(map(IS_NUMBER, fields[1:])):
        raise ValueError(f"accepted: {ACCEPTED}, where class is a whole number from 0")
    if classes and int(name) >= classes:
        raise ValueError(
            f"it is none of {classes} classes, 0 to {classes - 1}; lines that count from 1 would give "
            "each object the next class's name: subtract 1 from all, or correct data.classes"
        )
    if count != BOX and (count < POLYGON or count % 2):
        raise ValueError(f"it has {counted(count + 1, 'field')}; accepted: {ACCEPTED}")
    if count == POLYGON and fields[-1].isdecimal():
        raise ValueError(
            "it may be a polygon of three points, or a box with the confidence and the number of a track: of a track, "
            f'{FIRST_FIVE}; of a polygon, write the last number with a point, "{fields[-1]}.0"'
        )
    numbers = list(map(float, fields[1:]))
    if min(numbers) < -TOLERANCE or max(numbers) > 1 + TOLERANCE:
        raise ValueError("accepted: numbers from 0 to 1, relative to the image's width and height")
    if count == BOX:
        x, y, width, height = numbers
        edges = [y - height / 2, x - width / 2, y + height / 2, x + width / 2]
    else:
        edges = [min(numbers[1::2]), min(numbers[::2]), max(numbers[1::2]), max(numbers[::2])]
    # An edge that is beyond the image only by rounding, such as -0.0000005, is 0 or 1.
    return [min(max(edge, 0.0), 1.0) if -TOLERANCE <= edge <= 1 + TOLERANCE else edge for edge in edges]


def read_description(path: Path, *, as_texts: bool = False) -> dict[str, Any]:
    """Returns the keys of a data.yaml, with `as_texts` all values as they are written: YAML's yes is a truth value.

    Raises ConfigError if it cannot be read, or is no mapping.
    """
    import yaml  # imported late: few runs need it

    try:
        content = yaml.load(text_of(path), yaml.BaseLoader if as_texts else yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: received a {type(content).__name__}; accepted: keys such as names, train and val")
    return content


def class_names(path: Path) -> list[str]:
    """Returns the class names in a data.yaml, in the order of their numbers.

    Raises ConfigError if it has none, or another number of them than `nc`, or its lines hold keypoints.
    """
    keys = read_description(path)
    names = read_description(path, as_texts=True).get("names")
    if isinstance(names, dict) and names.keys() == set(map(str, range(len(names)))):
        names = [names[str(number)] for number in range(len(names))]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"{path}: received names {str(names)[:80]}; accepted: a list of the classes, or a mapping of all numbers "
            "from 0 to names"
        )
    if keys.get("nc", len(names)) != len(names):
        raise ConfigError(f"{path}: received nc {keys['nc']!r} and {len(names)} names; correct the one that is wrong")
    if keys.get("kpt_shape") is not None:
        raise ConfigError(
            f"{path}: received kpt_shape {keys['kpt_shape']}: its lines hold keypoints after each box, and would be "
            f"read as polygons; {FIRST_FIVE}, in a copy of the labels, and take kpt_shape out"
        )
    return names


def data_folder(path: Path, split: str) -> Path | None:
    """Returns the folder or list of images that a data.yaml names for "train" or "test"; None if it names none.

    A path is relative to the key `path`, or to the file's folder; Roboflow's `../train/images` to the latter, too.
    Raises ConfigError if there is no such folder.
    """
    keys = read_description(path)
    name = next((key for key in (("train",) if split == "train" else ("val", "test")) if keys.get(key)), None)
    if name is None:
        return None
    value, root = keys[name], keys.get("path") or "."
    if not isinstance(value, str) or not isinstance(root, str):
        raise ConfigError(f"{path}: received {name} {str(value)[:80]}; accepted: the path of one folder or list")
    tried = [path.parent / root / value, path.parent / value, path.parent / value.removeprefix("../")]
    directory = next((folder for folder in tried if folder.exists()), None)
    if directory is None:
        raise ConfigError(f"{path}: {name} {value} is neither {' nor '.join(map(str, dict.fromkeys(tried)))}")
    return directory
