"""Builds the class table, and finds each image's class from its folder or a label file."""

import csv
import hashlib
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import combinations
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.annotations import yolo
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.annotations.objects import composed_form
from tfpipe.data.catalog.paths import UNUSABLE, FileList, fault
from tfpipe.errors import ConfigError, counted
from tfpipe.util.files import text_of

logger = logging.getLogger(__name__)

KAGGLE_HEADER = "ImageId,PredictionString"
WNID = re.compile(r"n\d{8}")
BOM = "\ufeff"
BLANKS = re.compile(rf"^[\s{BOM}]+|[\s{BOM}]+$")
# A whole number that is written otherwise than Python writes it: 10.0, -0.
WHOLE = re.compile(r"-?(0)(?:\.0+)?|(-?[1-9]\d*)\.0+", re.ASCII)
# What may be a number in a name, which people sort by its value; no name is longer than LONGEST_NAME.
DIGITS, LONGEST_NAME = re.compile(r"\d+", re.ASCII), 255
# From here on a float stands for several whole numbers.
MOST_EXACT = 2**53


def label_text(value: Any) -> str | None:
    """Returns a label as a text, the same from every form of data; None if it is empty.

    Texts lose the blanks and byte order marks around them. A whole number is written without a fraction, also in a
    text: a CSV has 10.0 where JSON has 10. Raises ValueError for a value that is no single label.
    """
    if value is None or value != value:
        return None
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, float) and not abs(value) < MOST_EXACT:
        raise ValueError(f"received {value}, a float that stands for several whole numbers; accepted: texts, integers")
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ValueError(f"received {str(value)[:80]} as a label; accepted: a text or a number")
    text = name_form(str(value))
    whole = WHOLE.fullmatch(text)
    return (whole[1] or whole[2] if whole else text) or None


def name_form(name: str) -> str:
    """Returns the form in which names are compared: in Unicode's NFC, without the blanks and BOMs around them."""
    return BLANKS.sub("", composed_form(name))


def near_names(classes: Iterable[str]) -> list[tuple[str, str]]:
    """Returns the pairs of class names that differ only by blanks, case or a byte order mark."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault("".join(name_form(name.replace(BOM, "")).split()).casefold(), []).append(name)
    return [pair for names in alike.values() for pair in combinations(names, 2)]


def class_table(
    config: DataConfig, train_paths: FileList, folder_classes: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Returns the class names, sorted by class number; `folder_classes` are those of train_paths.folders, if known.

    They come from `data.classes` or are the sorted folder names of the whole training list, so they are the same on
    every rank, for training and test data, and on every file system; () if images have none. Raises ConfigError if
    there is no class, a name occurs twice, or there are more classes than `data.num_classes`.
    """
    if (names := named_classes(config)) is not None:
        source = f"in {config.classes if isinstance(config.classes, Path) else 'data.classes'}"
    elif config.targets.kind in UNCLASSED:
        return ()
    else:
        source = "as folders of the training list"
        of_folders = folder_classes or classes_in_list(train_paths.folders, config.class_level)
        names = sorted(set(of_folders), key=composed_form)
    return checked_classes(names, config, source)


def named_classes(config: DataConfig) -> list[str] | None:
    """Returns the class names of `data.classes`, in their order; None without the key."""
    return _read_classes(config.classes) if isinstance(config.classes, Path) else config.classes


def checked_classes(names: Sequence[str], config: DataConfig, source: str) -> tuple[str, ...]:
    """Returns the class names if they can be used, in NFC; `source` says where they are.

    Raises ConfigError if there is none, a name occurs twice or cannot be written on a line, or there are more than
    `data.num_classes`.
    """
    if not names:
        raise ConfigError(f"no class {source}")
    for name in filter(UNUSABLE.search, names):
        raise ConfigError(f"the class {name!a} {source} {fault(name)}: rename it")
    # `tfpipe check` tells of those that differ by blanks or case, which no system changes on its way.
    composed = tuple(map(composed_form, names))
    if (twice := _first_repeated(composed)) is not None:
        spelt = sorted({ascii(name) for name in names if composed_form(name) == twice})
        hint = f", as {' and '.join(spelt)}: give both one name" if len(spelt) > 1 else ""
        raise ConfigError(f'the class "{twice}" is there twice {source}{hint}')
    check_count(len(names), config, source)
    return composed


def warn_of_numbers(classes: Sequence[str], config: DataConfig) -> None:
    """Logs a warning if class names are numbers, and are numbered in another order, which the config does not name."""
    if config.classes is None and all(map(str.isdecimal, classes)):
        for number, (name, other) in enumerate(zip(classes, sorted(classes, key=int), strict=True)):
            if name != other:
                text = (
                    'the class folders are numbers, and numbered as texts: "%s" is class %d, and "%s" is class %d; %s'
                )
                order = "data.classes names another order"
                logger.warning(text, name, number, other, list(classes).index(other), order)
                return


def numbers_of(classes: Sequence[str]) -> dict[str, int]:
    """Returns the class number of each label: of all names and, unless the name of a class is a number, all numbers.

    With the classes "1", "2" and "3", the labels 0, 1 and 2 would be read half as numbers and half as names. Raises
    ConfigError if two names are the same label.
    """
    numbers: dict[str, int] = {}
    for number, name in enumerate(classes):
        other = numbers.setdefault(label_text(name) or name, number)
        if other != number:
            raise ConfigError(f"the classes {classes[other]!a} and {name!a} are the same label: rename one of them")
    if any(name.isdecimal() for name in numbers):
        return numbers
    return {str(number): number for number in range(len(classes))} | numbers


def check_count(count: int, config: DataConfig, source: str) -> None:
    """Raises ConfigError if there are more classes than `data.num_classes`; `source` says where they are."""
    if config.num_classes is not None and count > config.num_classes:
        raise ConfigError(f"data.num_classes is {config.num_classes}, but there are {counted(count, 'class')} {source}")


def check_no_ids(labels: Collection[str], classes: Collection[str], source: object) -> None:
    """Raises ConfigError if labels may be ILSVRC's ids, which count from 1, in the place of class numbers.

    Without a 0 among numbers from 0 they may be either, and the ids' order is not that of the WNIDs.
    """
    numbers = [int(label) for label in labels if label.isdecimal()]
    if numbers and len(numbers) == len(labels) and 0 not in numbers and any(map(WNID.fullmatch, classes)):
        raise ConfigError(
            f"{source} holds numbers from {min(numbers)} to {max(numbers)} and no 0, as ids of the devkit's ground "
            "truth do, which count from 1 and whose order of the classes is not that of their WNIDs: use Kaggle's "
            "LOC_val_solution.csv, or the WNIDs as labels, as in imagenet_2012_validation_synset_labels.txt"
        )


def in_test_share(names: Sequence[str], classes: Sequence[Hashable], share: float, seed: int) -> np.ndarray:
    """Returns which of n images are test data, bool [n]: a share of each class; the same images of a name and class.

    An image's rank in its class is a hash of its name, so that new images move few others; no class loses its last one.
    """

    def rank(name: str) -> bytes:
        return hashlib.sha256(os.fsencode(f"{seed}\n{name}")).digest()

    members: dict[Hashable, set[str]] = defaultdict(set)
    for number, name in zip(classes, names, strict=True):
        members[number].add(name)
    counts = {number: min(round(len(distinct) * share), len(distinct) - 1) for number, distinct in members.items()}
    test = {number: set(sorted(distinct, key=rank)[: counts[number]]) for number, distinct in members.items()}
    return np.array([name in test[number] for number, name in zip(classes, names, strict=True)], bool)


def folder_of(path: str, level: int = -1) -> str:
    """Returns the name of a folder of a path, by default the innermost: "n02" for "/train/n02/1.JPEG".

    It is the `level`th from the end, -2 being the one that holds the innermost; "" if there is none.
    """
    names = [name for name in path.split("/")[:-1] if name not in ("", ".")]
    return names[level] if -level <= len(names) else ""


def classes_in_list(folders: Sequence[str], level: int | None) -> list[str]:
    """Returns the class of each of the folders of a filelist; `level` is `data.class_level`.

    Raises ConfigError if a folder has no such level.
    """
    level = -1 if level is None else level
    if level > 0:
        raise ConfigError(
            f"data.class_level {level} counts from the folder of the data, and a filelist has none; accepted: -1 for "
            "the folder of each image, -2 for the one that holds it ..."
        )
    names = [folder_of(folder, level) for folder in folders]
    if "" in names and level != -1:
        folder = folders[names.index("")]
        raise ConfigError(f"data.class_level {level}: {folder} has fewer folders above its images")
    return names


def level_in_list(folders: Sequence[str], names: Sequence[str]) -> int:
    """Returns the `data.class_level`, -1, -2 ..., by which a filelist gives folders the classes `names`.

    Raises ConfigError if no level is that of all.
    """
    pairs = list(zip(folders, names, strict=True))
    for level in range(-1, -1 - max(folder.count("/") for folder in folders), -1):
        if all(composed_form(folder_of(folder, level)) == composed_form(name) for folder, name in pairs):
            return level
    deepest = max(folders, key=lambda folder: folder.count("/"))
    raise ConfigError(
        f"the images in {deepest} are of the class {dict(pairs)[deepest]}, and others lie at another depth below their "
        "class: a list of them names no classes; train from the folder itself, or pack it (tfpipe pack --kind original)"
    )


class Labels(NamedTuple):
    """The labels of n images."""

    numbers: np.ndarray  # int32 [n]: class number; BY_OBJECT if objects have the labels or the label is not a class
    unknown: np.ndarray  # int64 [k]: numbers of the images whose label is not a class
    names: list[str]  # labels as spelt in the source
    name: np.ndarray  # int [n]: index of each image's label in `names`
    source: str  # origin of the labels, for messages

    def spelt(self, item: int) -> str:
        """Returns the label of image `item` and its origin, for a message."""
        return f'"{self.names[self.name[item]]}" ({self.source})'


def image_labels(
    paths: FileList,
    classes: Sequence[str],
    config: DataConfig,
    label_file: Path | None,
    folder_classes: Sequence[str] | None = None,
) -> np.ndarray:
    """Returns the numbers of find_labels; raises ConfigError, too, if an image's label is not a class."""
    labels = find_labels(paths, classes, config, label_file, folder_classes)
    if labels.unknown.size:
        first = int(labels.unknown[0])
        raise ConfigError(
            f"{labels.unknown.size} of {len(paths)} images have a label that is no class, e.g. {paths[first]}: "
            f"{labels.spelt(first)}; {counted(len(classes), 'class')}: {', '.join(classes[:3])} ...; "
            "for a flat val folder set data.test_label_file, e.g. to LOC_val_solution.csv"
        )
    return labels.numbers


def find_labels(
    paths: FileList,
    classes: Sequence[str],
    config: DataConfig,
    label_file: Path | None,
    folder_classes: Sequence[str] | None = None,
) -> Labels:
    """Returns the images' labels: of `label_file` if it is given, otherwise of `data.label_source`.

    `folder_classes` are as in class_table. Raises ConfigError if an image has no label, or the file cannot be used.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    if label_file is not None and config.targets.kind not in UNCLASSED:
        numbers = numbers_of(classes)
        names, name_numbers = _from_file(paths, label_file, numbers), np.arange(len(paths))
        check_no_ids(set(names), classes, label_file)
        source = f"in {label_file}"
    elif config.label_source == "object" or config.targets.kind in UNCLASSED:
        nothing = np.zeros(len(paths), np.int32)
        labels = nothing if config.targets.kind in UNCLASSED else nothing + BY_OBJECT
        return Labels(labels, np.empty(0, np.int64), [""], nothing, "its objects")
    else:
        names, name_numbers = list(folder_classes or classes_in_list(paths.folders, config.class_level)), paths.folder
        source = "its folder"
    labels = np.array([numbers.get(composed_form(name), BY_OBJECT) for name in names], np.int32)[name_numbers]
    return Labels(labels, np.flatnonzero(labels == BY_OBJECT), names, name_numbers, source)


def _read_classes(path: Path) -> list[str]:
    """Reads class names, one per line, or of YOLO's data.yaml.

    Accepts LOC_synset_mapping.txt's `n01440764 tench, Tinca tinca`.
    """
    if path.suffix.lower() in yolo.SUFFIXES:
        return yolo.class_names(path)
    lines = [line.strip() for line in text_of(path).splitlines() if line.strip()]
    return [line.split()[0] if WNID.fullmatch(line.split()[0]) else line for line in lines]


def read_words(path: Path) -> dict[str, str]:
    """Returns the classes' descriptions in LOC_synset_mapping.txt, by WNID: "tench, Tinca tinca" for n01440764.

    Raises ConfigError if the file cannot be read.
    """
    lines = (line.strip().split(maxsplit=1) for line in text_of(path).splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2 and WNID.fullmatch(words[0])}


def _from_file(paths: Sequence[str], label_file: Path, names: Collection[str]) -> list[str]:
    """Returns each path's label; `names` are the known labels."""
    lines = [line.strip() for line in text_of(label_file).splitlines() if line.strip()]
    stems = [PurePath(path).stem for path in paths]
    if (twice := _first_repeated(stems)) is not None:
        raise named_twice(label_file, twice)
    if lines and is_kaggle(lines[0]):
        pairs = [(image, words[0]) for image, words in map(kaggle_row, lines[1:]) if words]
    elif lines and all(len(line.split()) == 1 or line in names for line in lines):
        if len(lines) != len(paths):
            raise ConfigError(
                f"{label_file} holds {counted(len(lines), 'label')} for {counted(len(paths), 'image')}; with a label "
                "and nothing else on a line there must be one for every image of the list, in the order of their names"
            )
        padded = [DIGITS.sub(lambda digits: digits[0].zfill(LONGEST_NAME), stem) for stem in stems]
        by_number = [stem for _, stem in sorted(zip(padded, stems, strict=True))]
        pairs = list(zip(sorted(stems), lines, strict=True))
        for number, (stem, *others) in enumerate(zip(sorted(stems), stems, by_number, strict=True)):
            if other := next((name for name in others if name != stem), None):
                raise ConfigError(
                    f"line {number + 1} of {label_file} may be the label of {stem}, by the order of the images' names, "
                    f"or of {other}, by that of the list or of the numbers in names: write the image's name before "
                    f"each label, e.g. {other} {lines[number]}"
                )
    else:
        halves = [line.split(maxsplit=1) for line in lines]
        pairs = [(PurePath(half[0]).stem, half[-1]) for half in halves]
    if (twice := _first_repeated([stem for stem, _ in pairs])) is not None:
        raise ConfigError(f"{label_file} holds two labels for {twice}")
    by_stem = dict(pairs)
    missing = [stem for stem in stems if stem not in by_stem]
    if missing:
        raise ConfigError(f"{label_file} holds no label for {len(missing)} of {len(paths)} images, e.g. {missing[0]}")
    return [label_text(by_stem[stem]) or "" for stem in stems]


def is_kaggle(line: str) -> bool:
    """Returns whether `line` is the header of Kaggle's LOC_train_solution.csv or LOC_val_solution.csv."""
    return line.replace(" ", "").strip() == KAGGLE_HEADER


def kaggle_row(line: str) -> tuple[str, list[str]]:
    """Splits a line of such a file into the image's base name without extension, and class xmin ymin xmax ymax ..."""
    image, *rest = next(csv.reader([line]))
    return image, " ".join(rest).split()


def named_twice(file: Path, stem: str) -> ConfigError:
    """Makes the error for a `file` that identifies images by base name if several images are named `stem`."""
    return ConfigError(f"{file} goes by file names, but several images of the list are named {stem}")


def _first_repeated(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
