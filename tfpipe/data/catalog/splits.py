"""Which of the entries of a listing are training data, which test data, and why others are neither: for all sources.

A name says a split by a word: train or training; val, valid or validation; test or testing. A name's words are its
letters between other characters, and between small and capital ones, in any case: imagenet-train-000000.tar,
instances_val2017.json, TestData.csv. In a folder of files a word is enough. Folders may be classes, too:

1. A folder is a split if its name is the word, or differs by the word alone from that of a folder next to it (seg_train
   and seg_test); if it holds class folders; and if a folder next to it is of the other split, or none is. Test data
   also lie next to class folders, if its own are named as these.
2. A folder of images alone called train, among such folders, is a class as they are. One whose name says test data is
   never a class: without labels of its own its images are left out.
3. Any other folder with such a name is refused with the keys that decide: data.class_level says that names are classes,
   data.source.path and test_path where the splits are.

Test data are those of val, else of test. Whatever is not used is counted, with the reason.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from tfpipe.config import DataConfig
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.annotations.objects import composed_form
from tfpipe.data.catalog.labels import named_classes
from tfpipe.errors import ConfigError

Role = Literal["both", "train", "test"]
"""The data that a listing may hold: training and test data; or one of them, while the other is elsewhere."""
# Splits of test data, the preferred one first.
TESTS = ("val", "test")
SPLITS = ("train", "test")
LETTERS = re.compile(r"[A-Za-z]+")
CAMEL_CASE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
WORD = re.compile(r"(?:(train)(?:ing)?|(val)(?:id(?:ation)?)?|(test)(?:ing)?)(?:sets?|data|split)?")
BETWEEN = re.compile(r"[\W_]+")
# Names of examples in a message.
EXAMPLES = 3
SEPARATE = "put each into a folder of its own, and name these in data.source.path and data.source.test_path"
KEYS = "name the training data in data.source.path, and the test data in data.source.test_path"


def listing(names: Sequence[str]) -> str:
    """Returns the first names and the number of the others, for a message."""
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return f"{', '.join(names[:EXAMPLES])}{more}"


def splits_in(name: str) -> set[str]:
    """Returns the splits that words of a name say: some of "train", "val" and "test"."""
    words = {word.lower() for pattern in (LETTERS, CAMEL_CASE) for word in pattern.findall(name)}
    return {split for word in words if (split := whole_split(word))}


def whole_split(name: str) -> str | None:
    """Returns the split of a name that is the word and nothing else: Training, test_set."""
    match = WORD.fullmatch(BETWEEN.sub("", name).lower())
    return match[match.lastindex] if match and match.lastindex else None


def splits_of(names: Iterable[str]) -> dict[str, str]:
    """Returns the split that the name of a folder says, of those among folders next to each other that say one."""
    names = list(names)
    alike = defaultdict[str, dict[str, str]](dict)
    for name in names:
        if len(splits := splits_in(name)) == 1:
            alike[_without_word(name)].update(dict.fromkeys([name], *splits))
    pairs = [pair for pair in alike.values() if len({*pair.values()}) > 1]
    whole = {name: split for name in names if (split := whole_split(name))}
    return whole | {name: split for pair in pairs for name, split in pair.items()}


def _without_word(name: str) -> str:
    """Returns a name with a star in the place of the word that says a split, in small letters."""
    words = [word for pattern in (LETTERS, CAMEL_CASE) for word in pattern.finditer(name) if whole_split(word[0])]
    return f"{name[: words[0].start()]}*{name[words[0].end() :]}".lower()


class SortedNames(NamedTuple):
    """Names of files in a folder by their use, each sorted."""

    train: list[str]
    test: list[str]
    left_out: dict[str, list[str]]  # by the reason


def sorted_files(names: Iterable[str], role: Role, remedy: str = SEPARATE) -> SortedNames:
    """Sorts the files of a folder by the words in their names; several of one split are read together.

    Training data are those of train, or if there are none those that say nothing; test data those of val, else of test.
    A folder that holds one split alone is used whatever its names say, if none says that split. Raises ConfigError,
    which ends with `remedy`, if names say several splits, and the folder may hold both.
    """
    of = defaultdict[str, list[str]](list)
    for name in sorted(names):
        of["several" if len(splits := splits_in(name)) > 1 else "".join(splits) or "no"].append(name)
    if of["several"] and role == "both":
        raise ConfigError(f"{listing(of['several'])} may be training data or test data, by name: {remedy}")
    train = of["train"] or of["no"] or (of["several"] or of["val"] + of["test"] if role == "train" else [])
    test = of["val"] or of["test"] or (of["no"] or of["several"] or of["train"] if role == "test" else [])
    train, test = ([] if role == "test" else train), ([] if role == "train" else test)
    used = {*train, *test}
    left_out = defaultdict[str, list[str]](list)
    for split, members in of.items():
        for name in members:
            if name not in used:
                left_out[f"files of {split if split in ('no', 'several') else 'another'} split"].append(name)
    return SortedNames(train, test, dict(left_out))


class FolderRule(NamedTuple):
    """How the images below a folder get their splits and classes."""

    level: int | None = None  # data.class_level
    labelled: Collection[str] = ()  # splits whose labels are elsewhere, so that images need no class folders
    role: Role = "both"
    has_share: bool = False  # whether test data are a share of the training images
    classes: tuple[str, ...] | None = None  # data.classes, in NFC: class folders of other names are left out

    @classmethod
    def of(cls, config: DataConfig, role: Role) -> "FolderRule":
        """Returns the rule for folders that have a role."""
        free = config.targets.kind in UNCLASSED or config.label_source == "object"
        labelled = [split for split in SPLITS if free or config.label_file_for(split) is not None]
        share = config.source is not None and config.source.test_share is not None
        classes = named_classes(config)
        chosen = None if classes is None else tuple(map(composed_form, classes))
        return cls(config.class_level, labelled, role, share, chosen)


class SplitFolder(NamedTuple):
    """A folder of images, by the split that the name of a folder above them says."""

    split: str | None  # "train", "val" or "test"; None: no name says one
    root: str  # path of the folder whose name says it; "" if none does
    names: tuple[str, ...]  # names of the folders below that, or of all
    has_labels: bool = True  # False: test data of images alone, whose labels are nowhere


def find_splits(folders: Sequence[str], rule: FolderRule) -> list[SplitFolder]:
    """Returns the split of each folder that holds images, a path with a slash at its end, relative to the data's root.

    Splits lie in the root, or where its only folder, and the only one in that, leads to. Raises ConfigError if a name
    can mean a split or a class, several folders may be a split, or test data lie inside a class.
    """
    paths = [tuple(folder.split("/")[:-1]) for folder in folders]
    top = _top(paths)
    kids = defaultdict[str, set[str]](set)
    for name, *inner in filter(None, (path[len(top) :] for path in paths)):
        kids[name].update(inner[:1])
    splits = _splits(kids, rule, "".join(f"{name}/" for name in top))
    places = []
    for path in paths:
        name = path[len(top)] if len(path) > len(top) else ""
        split = splits.get(name)
        if split is None:
            places.append(SplitFolder(None, "", path))
        else:
            has_labels = split == "train" or bool(kids[name]) or "test" in rule.labelled
            places.append(SplitFolder(split, "/".join([*top, name]), path[len(top) + 1 :], has_labels))
    if rule.level is None:
        _check_inside(places, has_train="train" in splits.values())
    return places


def _top(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the folder that holds all images, as far as no name on the way says a split."""
    firsts = takewhile(lambda names: len({*names}) == 1, zip(*filter(None, paths), strict=False))
    return tuple(takewhile(lambda name: whole_split(name) is None, (names[0] for names in firsts)))


def _splits(kids: Mapping[str, Collection[str]], rule: FolderRule, above: str) -> dict[str, str]:
    """Returns the splits of folders next to each other, by names of the folders in each; errors as of find_splits."""
    says = splits_of(kids)
    trains, tests = ([name for name in says if (says[name] == "train") is of_train] for of_train in (True, False))
    if trains and "train" not in rule.labelled and not any(map(kids.get, kids)):
        # Folders of images alone, train and bus, are classes.
        return {name: says[name] for name in tests}
    classes = {*kids} - {*says}
    inner = {name for test in tests for name in kids[test]}
    outside_classes = not trains and bool(inner) and inner <= classes
    is_clear = not classes or (bool(trains) and bool(tests)) or outside_classes or not (trains or inner)
    has_classes = all(kids[name] for name in trains) or "train" in rule.labelled
    if is_clear and has_classes:
        _check_one(says, rule, above)
        return says
    if rule.level is not None:
        return {}
    odd = min(trains or tests)
    raise ConfigError(
        f'{above}{odd} says "{says[odd]}" by its name, and may be a split or a class as '
        f"{listing(sorted({*kids} - {odd}))}: {KEYS}, or if it is a class set data.class_level, 1 for the first level "
        "of folders"
    )


def _check_one(says: Mapping[str, str], rule: FolderRule, above: str) -> None:
    """Raises ConfigError if several folders are of a split that is used."""
    used = {"both": ("train", *TESTS), "train": ("train",), "test": TESTS}[rule.role]
    for split in used if not rule.has_share else ("train",):
        names = sorted(name for name in says if says[name] == split)
        if len(names) > 1:
            data = "training data" if split == "train" else "test data"
            raise ConfigError(f"several folders may be the {data}, {listing([above + name for name in names])}: {KEYS}")


def _check_inside(places: Sequence[SplitFolder], *, has_train: bool) -> None:
    """Raises ConfigError if a folder inside a class of the training data says that it holds test data."""
    inside = dict[str, str]()
    for place in places:
        depth = next((depth for depth, name in enumerate(place.names) if whole_split(name) in TESTS), None)
        if depth is not None and (place.split == "train" or (place.split is None and not has_train)):
            inside["/".join(filter(None, [place.root, *place.names[: depth + 1]]))] = place.names[depth]
    for path in sorted(inside):
        raise ConfigError(
            f'{path} says "{whole_split(inside[path])}" by its name, inside a folder of training data: {KEYS}, or if '
            "its images are training data set data.class_level to the level of the classes"
        )


class FolderUse(NamedTuple):
    """The use of a folder's images."""

    split: str | None  # "train" or "test"; None for neither
    reason: str = ""  # why they are left out


def uses_of(places: Sequence[SplitFolder], rule: FolderRule) -> list[FolderUse]:
    """Returns the use of each folder by the split that it says."""
    there = {place.split for place in places if place.has_labels}
    test = next((split for split in TESTS if split in there), None)
    has_train = "train" in there

    def use(place: SplitFolder) -> FolderUse:
        if not place.has_labels:
            return FolderUse(None, "images of test data without class folders")
        if rule.role == "test":
            return FolderUse("test") if test in (None, place.split) else FolderUse(None, "images of no split")
        if place.split == "train" or (place.split is None and not has_train):
            return FolderUse("train")
        if place.split is None:
            return FolderUse(None, "images of no split")
        if rule.role == "train" or rule.has_share:
            return FolderUse(None, "images of test data, and the config takes others")
        if place.split == test:
            return FolderUse("test")
        return FolderUse(None, f"images of {place.split} next to those of {test}")

    return [use(place) for place in places]


def class_level(folders: Sequence[tuple[str, ...]], level: int | None) -> int:
    """Returns the index of the class in the names of the folders below a split's, given those of training images.

    `level` is `data.class_level`. None stands for the first, 0, or if all images are below one folder, that at which
    they part, if they lie there and no deeper. Raises ConfigError if they do not.
    """
    if level is not None:
        return level - 1 if level > 0 else level
    paths = [names for names in folders if names]
    shared = len(list(takewhile(lambda names: len({*names}) == 1, zip(*paths, strict=False))))
    at = shared if any(len(names) > shared for names in paths) else max(shared - 1, 0)
    if at and any(len(names) > at + 1 for names in paths):
        raise ConfigError(
            f"all images are below the folder {'/'.join(paths[0][:at])}, and in folders of several levels: set "
            f"data.class_level to that of the classes: {at + 1} for {max(paths, key=len)[at]}, -1 for each image's own"
        )
    return at
