"""Reads images straight from the archives that data comes in: tar files, tar files of tar files, and zip files.

An archive counts as the tree that it would unpack to, below a folder of its own name: ILSVRC2012_img_train.tar, which
holds n01440764.tar, has images such as ILSVRC2012_img_train/n01440764/n01440764_18.JPEG, of the class n01440764.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.objects import Objects
from tfpipe.data.catalog.class_folders import SUFFIXES, SplitSelection, select_split, why_left_out
from tfpipe.data.catalog.labels import class_table, folder_of, image_labels
from tfpipe.data.catalog.paths import UNUSABLE, FileList, fault
from tfpipe.data.catalog.splits import FolderRule
from tfpipe.data.catalog.table import TableStore, catalog_folders
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.catalogs import Classes, catalog_of
from tfpipe.data.sources.data_files import COMPRESSED, files_at
from tfpipe.data.sources.packed.archive_boxes import with_box_file
from tfpipe.data.sources.packed.members import Member, read_member, size_of, tar_members, zip_members
from tfpipe.data.sources.packed.scan import THREADS, ScannedRows, ScannedSource, rows_of
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.remote.url_path import AnyPath
from tfpipe.data.sources.rows import Rows
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.ledger import Ledger
from tfpipe.util.made_from import stamp_files
from tfpipe.util.progress import progress

TAR, ZIP = (".tar",), (".zip",)
# Words of the names of compressed archives that hold no images: those that come with ImageNet.
NO_IMAGES = ("bbox", "devkit", "annotation")


class Archive(ScannedSource):
    """Images in tar and zip files, whose folders are the classes."""

    kind = "archives"
    # Scans of 0.1, "archive", took files of operating systems for images.
    stored_as = "archives"
    noun, suffixes = "archive", (*TAR, *ZIP)

    def is_data(self, name: str) -> bool:
        return name.lower().endswith((*self.suffixes, *COMPRESSED)) and not holds_no_images(name)

    def files(self, split: str) -> Sequence[AnyPath]:
        """Returns the archives of a split; without any for test data, those in whose folders they may be."""
        archives = self.split_files(split)
        if not archives and split == "test" and self.about.test_path is None:
            return self.files("train")
        return archives

    def has_test(self) -> bool:
        if not self.files("test") or self._test_apart:
            return bool(self.files("test"))
        return bool(self._choose(self._all("test", World()), "test").kept.any())

    def require_files(self, split: str) -> Sequence[AnyPath]:
        shards = super().require_files(split)
        for path in shards:
            if path.name.lower().endswith(COMPRESSED):
                raise ConfigError(
                    f"{path} is compressed, so that an image in it can only be read after all bytes before it: "
                    f"decompress it once, e.g. gzip -dk {path}, and name the .tar"
                )
        return shards

    def scan(self, path: Any, size: int, ledger: Ledger) -> Rows:
        alone = len(self.files("train")) == 1
        return scan_archive(path, size, ledger, turn=self.config.turn, show=alone)

    def load(self, split: str, world: World) -> tuple[Catalog, Shards]:
        """Loads a split from a scan of its archives.

        Raises ConfigError if an archive is missing or damaged, or an image has no class.
        """
        config = self.config
        self.require_files("train")
        images, folder_classes, ledger = self._images(split, world)
        paths, train, train_classes = FileList.of(images.rows.names), images, folder_classes
        if split != "train" and config.classes is None:
            train, train_classes, _ = self._images("train", world)
        classes = class_table(config, FileList.of(train.rows.names), train_classes)
        if len(classes) == 1 and config.classes is None and config.label_source == "directory":
            raise ConfigError(
                f"all training images of {self.display_name} are of one class, {classes[0]}, which is their folder, or "
                "the archive's name: expected class folders, CLASS/1.jpg, or tar files of one class each"
            )
        labels = image_labels(paths, classes, config, config.label_file_for(split), folder_classes)
        rows, shards, box_file = images.rows, images.as_shards(labels), config.box_file_for(split)
        if box_file is not None and config.uses_boxes(split):
            folders = catalog_folders(config, [images.shards[0][0].parent / split])[:1]
            files = world.from_rank0(lambda: stamp_files([box_file]))
            files += [(path.name, stamp) for path, stamp in images.shards]
            store = TableStore(folders, files, world, must_store=True)
            rows = with_box_file(rows, box_file, shards, classes, config, store)
        numbers = {name: number for number, name in enumerate(classes)}
        catalog = catalog_of(config, split, rows, Classes(classes, numbers), self.name_of(split), labels)
        catalog.ledger.update(ledger)
        return catalog, shards

    @property
    def _test_apart(self) -> bool:
        """Whether test data lies in archives of its own."""
        return self.about.test_path is not None or self.files("test") != self.files("train")

    def _all(self, split: str, world: World) -> ScannedRows:
        """Returns the images of the archives that hold a split, of other splits too."""
        return self.scan_split(split if split == "train" or self._test_apart else "train", world)

    def unused_files(self, split: str) -> Ledger:
        ledger, source = super().unused_files(split), self.about
        path = source.path if split == "train" else source.test_path
        if path is not None:
            train, _, left_out = files_at(path, "train", self.config.remote, holds_no_images)
            unread = sorted(file.name for file in chain(train, *left_out.values()) if holds_no_images(file.name))
            ledger.add_all("archives of no images by their names", unread)
        return ledger

    def _choose(self, images: ScannedRows, split: str) -> SplitSelection:
        """Chooses the images of a split among those of archives, by the names of folders in them."""
        paths = FileList.of(images.rows.names)
        # Images right in an archive are of its class, unless it has folders.
        inside = [folder.partition("/")[::2] for folder in paths.folders]
        with_folders = {archive for archive, folders in inside if folders}
        trees = [f"{archive}/" if archive in with_folders else "" for archive, _ in inside]
        rule = FolderRule.of(self.config, ("train" if split == "train" else "test") if self._test_apart else "both")
        try:
            return select_split(paths, trees, split, rule)
        except ConfigError as error:
            raise ConfigError(f"{self.display_name}: {error}") from error

    def _images(self, split: str, world: World) -> tuple[ScannedRows, list[str], Ledger]:
        """Returns the images of a split, the class of each of their folders, and a ledger of other images.

        Raises ConfigError if there is none.
        """
        images = self._all(split, world)
        choice = self._choose(images, split)
        if not choice.kept.any():
            where = ", ".join(str(path) for path, _ in images.shards[:3])
            others = [*choice.ledger.texts, *images.rows.ledger.texts]
            raise ConfigError(
                f"{where} hold no {split} image with a name that ends in {', '.join(SUFFIXES)}, but "
                f"{counted(len(images.rows.names), 'other image')} and {', '.join(others) or 'nothing else'}"
            )
        if split == "test" and not self._test_apart:
            # Counted with the training data, of the same archives.
            images, choice = images._replace(rows=images.rows._replace(left_out={})), choice._replace(ledger=Ledger())
        if choice.kept.all():
            return images, choice.classes, choice.ledger
        class_of = dict(zip(FileList.of(images.rows.names).folders, choice.classes, strict=True))
        images = images._replace(rows=images.rows.select(np.flatnonzero(choice.kept)))
        return images, [class_of[folder] for folder in FileList.of(images.rows.names).folders], choice.ledger


class UsedMembers(NamedTuple):
    """The members of an archive that are used."""

    images: list[tuple[str, int, int, int, int]]
    """Fields of Members, in plain tuples: the garbage collector goes through millions of others again and again, which
    takes a third of a scan's time."""
    xmls: list[Member]


def scan_archive(path: Path, size: int, ledger: Ledger, *, turn: bool = False, show: bool = False) -> Rows:
    """Returns the images of an archive, sorted by path; counts in `ledger` what is not used. `turn` is as of size_of.

    Tar files within it are read in several threads; `show` shows their progress. Raises OSError, and ValueError if the
    archive, or one within it, is cut off or damaged, or holds two files of one name.
    """
    noted, archives = UsedMembers([], []), list[Member]()
    is_zip = path.name.lower().endswith(ZIP)
    with path.open("rb") as file:
        members = zip_members(file, size, ledger) if is_zip else tar_members(file, 0, size, ledger)
        _sort(members, path.stem, noted, archives, ledger)

    def scan_inner(inner: Member) -> tuple[UsedMembers, Ledger]:
        noted_inside, counted, more = UsedMembers([], []), Ledger(), list[Member]()
        try:
            if inner.inflated:
                raise ValueError("it is deflated: pack the zip file with zip -0, or unpack it")
            with path.open("rb") as file:
                inside = tar_members(file, inner.offset, inner.offset + inner.length, counted)
                _sort(inside, inner.name.rpartition(".")[0], noted_inside, more, counted)
            if more:
                raise ValueError(f"it holds the archive {more[0].name}, a third one: unpack {inner.name}")
        except ValueError as error:
            raise ValueError(f"{inner.name} within it: {error}") from error
        return noted_inside, counted

    with ThreadPoolExecutor(THREADS) as pool:
        results = pool.map(scan_inner, archives)
        for noted_inside, counted in progress(results, len(archives), f"scanning {path.name}", "archive", show):
            noted.images.extend(noted_inside.images)
            noted.xmls.extend(noted_inside.xmls)
            ledger.update(counted)
    images = sorted(noted.images)
    twice = next((name for (name, *_), (other, *_) in pairwise(images) if name == other), None)
    if twice is not None:
        raise ValueError(f"two files are named {twice}: remove one of them, so that it is clear which one counts")
    return _with_boxes(path, UsedMembers(images, noted.xmls), ledger, turn, show)


def _sort(members: Iterable[Member], folder: str, noted: UsedMembers, archives: list[Member], ledger: Ledger) -> None:
    """Sorts members, with their paths below `folder`, into images, XMLs, archives, and those that are not used."""
    reasons: dict[str, str] = {}  # why nothing in a folder is used, "" if it is
    for member in members:
        path = member.name
        name = f"{folder}/{path.removeprefix('./').lstrip('/') if path[:1] in './' else path}"
        base, dot = name.rfind("/") + 1, name.rfind(".")
        ending = name[dot:].lower() if dot >= base else ""
        if (head := name[:base]) not in reasons:
            folders = head.split("/")[1:-1]
            reasons[head] = next(filter(None, (why_left_out(name, is_folder=True) for name in folders)), "")
        if reasons[head] or name.startswith(".", base):
            ledger.add(reasons[head] or why_left_out(name[base:], is_folder=False), name)
        elif UNUSABLE.search(name):
            raise ValueError(f"the name {name!a} {fault(name)}: rename it")
        elif ending in SUFFIXES:
            noted.images.append((name, *member[1:]))
        elif ending == ".xml":
            noted.xmls.append(member._replace(name=name))
        elif ending in TAR:
            archives.append(member._replace(name=name))
        elif ending in ZIP or (ending in COMPRESSED and not holds_no_images(name)):
            raise ValueError(
                f"{name} within it is {'a zip file' if ending in ZIP else 'compressed'}: unpack it, or pack it as .tar"
            )
        else:
            ledger.add(why_left_out(name[base:], is_folder=False), name)


def _with_boxes(path: Path, noted: UsedMembers, ledger: Ledger, turn: bool, show: bool) -> Rows:
    """Returns images with the boxes of the XMLs of their name; counts XMLs of no image."""
    images, xmls = noted
    names = [name for name, *_ in images]
    sizes, boxes = np.ones((len(images), 2), np.float32), dict[int, Objects]()
    with path.open("rb") as file:
        for item, xml in progress(_owners(names, xmls, ledger), len(xmls), "reading boxes", "XML", show):
            boxes[item] = parse_annotation(read_member(file, xml), xml.name)
            sizes[item] = boxes[item].size
        image_boxes = [(item, objects.boxes, objects.names) for item, objects in sorted(boxes.items())]
        rows = rows_of(path, images, map(folder_of, names), image_boxes, sizes)
        return rows.with_sizes(lambda items: [size_of(file, Member(*images[item]), turn) for item in items])


def _owners(images: Sequence[str], xmls: Sequence[Member], ledger: Ledger) -> Iterator[tuple[int, Member]]:
    """Yields the number of the image (of the names `images`) of each XML, and the XML.

    Both have one name, and are in folders of one name, e.g. Data/train/n01440764/1.JPEG and
    Annotations/train/n01440764/1.xml, or in JPEGImages and Annotations. Of several such images it is the one whose
    other folders are most alike; raises ValueError if two are.
    """
    if not xmls:
        return
    by_stem = defaultdict[str, list[int]](list)
    for item, image in enumerate(images):
        by_stem[image.rpartition("/")[2].rpartition(".")[0]].append(item)
    taken = dict[int, str]()
    for xml in xmls:
        *folders, base = xml.name.split("/")
        likeness = {item: _likeness(folders, images[item].split("/")[:-1]) for item in by_stem.get(base[:-4], ())}
        most = max(likeness.values(), default=0)
        best = [item for item, alike in likeness.items() if alike == most and alike > 0]
        if not best:
            ledger.add("XMLs of no image", xml.name)
            continue
        if len(best) > 1:
            raise ValueError(f"{xml.name} may be of {images[best[0]]} or of {images[best[1]]}")
        if best[0] in taken:
            raise ValueError(f"{images[best[0]]} has two XMLs, {taken[best[0]]} and {xml.name}: remove one")
        taken[best[0]] = xml.name
        yield best[0], xml


def _likeness(folders: Sequence[str], others: Sequence[str]) -> int:
    """Returns how many folders of two paths are alike, from the last one on; folders of XMLs are like those of images.

    0 if the last ones are not alike.
    """
    pairs = zip(reversed(folders), reversed(others), strict=False)
    alike = (one == other or (one.lower(), other.lower()) == ("annotations", "jpegimages") for one, other in pairs)
    return sum(1 for _ in takewhile(bool, alike))


def holds_no_images(name: str) -> bool:
    """Returns whether an archive's name is one of those that come with ImageNet's images, e.g. of their boxes."""
    return name.lower().endswith(COMPRESSED) and any(word in name.lower() for word in NO_IMAGES)
