"""Class folders as a source: ROOT/CLASS/*.jpg, without a filelist and without XMLs."""

import logging
import os
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from tfpipe.data.catalog.class_folders import FolderList, has_usual_splits, images_below, select_below
from tfpipe.data.catalog.labels import class_table, image_labels, in_test_share
from tfpipe.data.catalog.splits import FolderRule, Role
from tfpipe.data.catalog.table import StoredTable, TableStore, catalog_folders, paths_table, table_paths
from tfpipe.data.sources.catalogs import apply_settings, images_catalog
from tfpipe.data.sources.data_files import check_split
from tfpipe.data.sources.files import kind_of
from tfpipe.data.sources.remote.listing import class_folders_at, images_at
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, as_path
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.files import near
from tfpipe.util.ledger import Ledger

logger = logging.getLogger(__name__)


class Folders(BaseSource):
    """Images in class folders; each is used whole."""

    refused: ClassVar[dict[str, str]] = {
        **BaseSource.refused,
        "index": "class folders have no boxes: they need no index",
        "stage": "tfpipe stage copies the files of filelists: make these with tfpipe filelist",
    }

    @cached_property
    def root(self) -> AnyPath:
        """Folder of the class folders, or one above the folders train and val."""
        assert self.about.path is not None, "the config is checked"
        return as_path(self.about.path, self.config.remote)

    @cached_property
    def test_path(self) -> AnyPath | None:
        """Folder of the test data, if it is elsewhere."""
        return None if self.about.test_path is None else as_path(self.about.test_path, self.config.remote)

    @property
    def display_name(self) -> str:
        return str(self.root)

    def has_test(self) -> bool:
        if self.about.test_share is not None or self.test_path is not None:
            return True
        # The usual folders need no listing of a million images, by each of a thousand ranks.
        rule = self._rule("test")
        if isinstance(self.root, Path) and rule.level is None and has_usual_splits(self.root, rule):
            return True
        return bool(self._choose("test").paths)

    def check(self, test: bool = False) -> None:
        for key, folder in (("path", self.root), ("test_path", self.test_path)):
            if str(folder).startswith(("http://", "https://")):
                raise ConfigError(
                    f"data.source.{key}: received {folder}; accepted: a folder of a file system or of an object store, "
                    "such as s3://bucket/train; web servers list no folders: give data.train_filelist, a list of the "
                    "images' URLs"
                )
            is_there = class_folders_at(folder) if isinstance(folder, UrlPath) else folder is None or folder.is_dir()
            if not is_there:
                raise ConfigError(f"data.source.{key}: there is no folder {folder}{near(folder)}")

    def open(self, split: str, world: World) -> Split:
        check_split(split)
        self.check()
        config = self.config
        if config.label_source == "object":
            raise ConfigError(
                'data.label_source "object" needs XMLs, and class folders have none: use "directory", or filelists'
            )
        chosen = self._images(split, world)
        train = chosen if split == "train" or config.classes is not None else self._images("train", world)
        classes = class_table(config, train.paths, train.classes)
        if len(classes) == 1 and config.classes is None and config.train_label_file is None:
            raise ConfigError(
                f"all training images of {self.root} are of one class, {classes[0]}, which is their folder; "
                "expected class folders, e.g. ROOT/cat/1.jpg and ROOT/dog/2.jpg"
            )
        paths = chosen.paths
        labels = image_labels(paths, classes, config, config.label_file_for(split), chosen.classes)
        of_classes = f"{counted(len(paths), 'image')} of {counted(len(classes), 'class')}"
        logger.info("%s: %s below %s", split, of_classes, self._root_of(split))
        catalog = images_catalog(split, paths, labels, classes)
        catalog = replace(catalog, ledger=chosen.ledger, display_name=self.name_of(split))
        return kind_of(paths)(config, apply_settings(config, catalog, show=world.rank == 0), world)

    def _root_of(self, split: str) -> AnyPath:
        """Returns the folder that holds a split, and maybe others."""
        return self.test_path if split == "test" and self.test_path is not None else self.root

    def _images(self, split: str, world: World) -> FolderList:
        """Returns the images of a split, listed by rank 0 alone; raises ConfigError if there is none."""
        root = self._root_of(split)
        if isinstance(root, UrlPath):
            chosen = self._load_stored(root, split, world)
        else:
            chosen = world.from_rank0(lambda: self._choose(split))
        if chosen.paths:
            return chosen
        contents = ", ".join(chosen.ledger.texts) or "nothing else"
        if split == "test" and self.test_path is None:
            raise ConfigError(
                f"there is no test data: {self.root} holds no folder of class folders named val, valid, validation or "
                "test; set data.source.test_path, or data.source.test_share to take a share of the training images; "
                f"not used: {contents}"
            )
        raise ConfigError(f"no image below {root}; expected class folders: {root}/CLASS/*.jpg; it holds {contents}")

    def _rule(self, split: str) -> FolderRule:
        role: Role = "both" if self.test_path is None else "train" if split == "train" else "test"
        return FolderRule.of(self.config, role)

    def _choose(self, split: str) -> FolderList:
        """Lists a split's folder, and chooses the images of the split; with `test_share`, by a share of each class."""
        root, share = self._root_of(split), self.about.test_share
        images, others = self._listing if root == self.root else self._list(root)
        apart, kept = self.test_path is not None, "train" if share is not None else split
        chosen = select_below(str(root), images, kept, self._rule(split))
        ledger = Ledger(others.counts)
        ledger.update(chosen.ledger)
        if chosen.paths and split == "test" and not apart:
            ledger = Ledger()  # counted with the training data, of the same folder
        chosen = chosen._replace(ledger=ledger)
        if share is None:
            return chosen
        names = [os.path.relpath(path, str(self.root)) for path in chosen.paths]
        classes = [chosen.classes[folder] for folder in chosen.paths.folder.tolist()]
        is_test = in_test_share(names, classes, share, self.about.test_seed)
        return chosen.select((is_test == (split == "test")).tolist())

    @cached_property
    def _listing(self) -> tuple[list[str], Ledger]:
        return self._list(self.root)

    def _list(self, folder: AnyPath) -> tuple[list[str], Ledger]:
        """Returns the paths or URLs of the images below a folder, and a ledger of what else there is."""
        ledger, test = Ledger(), self.test_path
        other = self.root if folder == test else test
        if isinstance(folder, UrlPath):
            others = [] if other is None or other == folder else [str(other)]
            return images_at(folder, others, ledger, show=True), ledger
        assert not isinstance(other, UrlPath), "the config is checked"
        try:
            but = None if other is None or other.resolve() == folder.resolve() else other
            return images_below(folder, ledger, show=True, but=but), ledger
        except OSError as error:
            raise ConfigError(f"cannot list {error.filename or folder}: {error.strerror}") from error

    def _load_stored(self, folder: UrlPath, split: str, world: World) -> FolderList:
        """Returns the images of a split in an object store: listed once, and stored until a class folder is added.

        A million of them are a thousand requests, and take as long as a minute.
        """
        config, about = self.config, self.about
        if config.index is None:
            raise ConfigError(
                f"data.index must name a local folder, to store the names of the images in {folder}: set it"
            )
        (stored, *_) = catalog_folders(config, [folder / split])
        settings = {
            "folder": str(folder),
            "folders in it": world.from_rank0(lambda: class_folders_at(folder)),
            "the rule": self._rule(split)._asdict(),
            "data.source.test_path": str(self.test_path),
            "data.source.test_share": about.test_share,
            "data.source.test_seed": about.test_seed,
        }

        def make(_: World) -> StoredTable:
            chosen = self._choose(split)
            table = paths_table(chosen.paths)
            values = {"classes": chosen.classes, "left_out": chosen.ledger.counts, "listed_s": time.time()}
            return table._replace(values={**table.values, **values})

        table = TableStore([stored], [], world, must_store=True).table("listing", settings, make)
        assert table is not None, "a folder is always listed"
        age_h = max(0.0, time.time() - table.values["listed_s"]) / 3600
        text = "%s: %s was listed %.1f hours ago; new images of classes that are there come after deleting %s"
        logger.info(text, split, folder, age_h, stored)
        return FolderList(table_paths(table), table.values["classes"], Ledger(table.values["left_out"]))
