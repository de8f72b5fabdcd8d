"""Class folders as a source: ROOT/CLASS/*.jpg, without a filelist and without XMLs."""

import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from tfpipe.data.catalog.class_folders import TESTS, find_splits, images_below, listing, splits_below, splits_in
from tfpipe.data.catalog.labels import class_table, folder_of, image_labels
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore, catalog_folders, paths_table, table_paths
from tfpipe.data.sources.files import kind_of
from tfpipe.data.sources.known import Known, check_split, known_catalog
from tfpipe.data.sources.remote.listing import check_lists, images_at, subfolders_at
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, as_path
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

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
        """Folder of the class folders, or of the folders train and val."""
        assert self.config.source is not None and self.config.source.path is not None, "the config is checked"
        return as_path(self.config.source.path, self.config.remote)

    @cached_property
    def test_path(self) -> AnyPath | None:
        """Folder of the test data, if it is elsewhere."""
        assert self.config.source is not None
        path = self.config.source.test_path
        return None if path is None else as_path(path, self.config.remote)

    @cached_property
    def _splits(self) -> Mapping[str, AnyPath]:
        """The folder of each split; see splits_below."""
        if isinstance(self.root, UrlPath):
            check_lists(self.root, "path")
            return splits_below(self.root, subfolders_at)
        return find_splits(self.root) if self.root.is_dir() else {}

    @property
    def display_name(self) -> str:
        return str(self.root)

    def has_test(self) -> bool:
        assert self.config.source is not None
        return self.config.source.test_share is not None or self._test_folder() is not None

    def check(self, test: bool = False) -> None:
        for key, folder in (("path", self.root), ("test_path", self.test_path)):
            if isinstance(folder, UrlPath):
                check_lists(folder, key)
            if folder is not None and not (subfolders_at(folder) if isinstance(folder, UrlPath) else folder.is_dir()):
                raise ConfigError(f"data.source.{key}: there is no folder {folder}")

    def open(self, split: str, world: World) -> Split:
        check_split(split)
        self.check()
        config = self.config
        if config.label_source == "object":
            raise ConfigError(
                'data.label_source "object" needs XMLs, and class folders have none: use "directory", or filelists'
            )
        paths = self._images(split, world)
        numbered = split == "train" or config.classes is not None
        classes = class_table(config, paths if numbered else self._images("train", world))
        if len(classes) == 1 and config.classes is None and config.train_label_file is None:
            raise ConfigError(
                f"all images of {self._folder('train')} are of one class, {classes[0]}, which is their folder; "
                "expected class folders, e.g. ROOT/cat/1.jpg and ROOT/dog/2.jpg"
            )
        labels = image_labels(paths, classes, config, config.label_file_for(split))
        logger.info("%s: %d images of %d classes below %s", split, len(paths), len(classes), self._folder(split))
        known = Known(paths, labels, classes)
        catalog = known_catalog(config, split, self.display_name, known, show=world.rank == 0)
        return kind_of(paths)(config, catalog, world)

    def _test_folder(self) -> AnyPath | None:
        if self.test_path is not None:
            return self.test_path
        splits = self._splits
        for kind in TESTS:
            folders = [name for name in splits if name != "train" and splits_in(name) == {kind}]
            if len(folders) > 1:
                raise ConfigError(
                    f"{self.root} holds several folders of test data, by name: {listing(folders)}: name one of them in "
                    "data.source.test_path"
                )
            if folders:
                return splits[folders[0]]
        return None

    def _folder(self, split: str) -> AnyPath:
        assert self.config.source is not None
        if split == "test" and self.config.source.test_share is None:
            folder = self._test_folder()
            if folder is None:
                raise ConfigError(
                    f"there is no test data: {self.root} holds no folder of class folders named val, valid, "
                    "validation or test; set data.source.test_path, or data.source.test_share to take a share of the "
                    "training images"
                )
            return folder
        return self._splits["train"]

    def _images(self, split: str, world: World) -> FileList:
        """Returns the images of a split, listed by rank 0 alone."""
        folder = self._folder(split)
        if isinstance(folder, UrlPath):
            images = self._stored(folder, split, world)
        else:
            images = world.from_rank0(lambda: FileList.of(self._share(self._listed(folder, split, world), split)))
        if not images:
            raise ConfigError(f"no image below {folder}; expected class folders: {folder}/CLASS/*.jpg")
        return images

    def _listed(self, folder: AnyPath, split: str, world: World) -> list[str]:
        """Returns the paths or URLs of the images below a split's folder."""
        test = [self.test_path] if split == "train" and self.test_path is not None else []
        others = [*(other for other in self._splits.values() if str(other) != str(folder)), *test]
        if isinstance(folder, UrlPath):
            return images_at(folder, [other for other in others if isinstance(other, UrlPath)], show=world.rank == 0)
        try:
            return images_below(folder, world.rank == 0, [other for other in others if isinstance(other, Path)])
        except OSError as error:
            raise ConfigError(f"cannot list {error.filename or folder}: {error.strerror}") from error

    def _stored(self, folder: UrlPath, split: str, world: World) -> FileList:
        """Returns the images of a split in an object store: listed once, and stored until a class folder is added.

        A million of them are a thousand requests, and take as long as a minute.
        """
        if self.config.index is None:
            raise ConfigError(
                f"data.index must name a local folder, to store the names of the images in {folder}: set it"
            )
        (stored, *_) = catalog_folders(self.config, [folder / split])
        source = self.config.source
        assert source is not None
        settings = {
            "folder": str(folder),
            "folders in it": world.from_rank0(lambda: subfolders_at(folder)),
            "data.source.test_path": str(self.test_path),
            "data.source.test_share": source.test_share,
            "data.source.test_seed": source.test_seed,
        }

        def make(ranks: World) -> StoredTable:
            return paths_table(FileList.of(self._share(self._listed(folder, split, ranks), split)))

        table = TableStore([stored], [], world, must_store=True).table("listing", settings, make)
        assert table is not None, "a folder is always listed"
        logger.info("%s: %s is listed once; delete %s to list it again", split, folder, stored)
        return table_paths(table)

    def _share(self, paths: list[str], split: str) -> list[str]:
        """Returns those of the paths that are in `split`: with `test_share`, a share of each class is test data.

        An image's rank in its class is a hash, so that new images move few others; no class loses its last one.
        """
        source = self.config.source
        assert source is not None
        if source.test_share is None:
            return paths
        classes: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            classes[folder_of(path)].append(path)
        test: set[str] = set()
        for members in classes.values():
            count = min(round(len(members) * source.test_share), len(members) - 1)
            test.update(sorted(members, key=self._hash)[:count])
        return [path for path in paths if (path in test) == (split == "test")]

    def _hash(self, path: str) -> bytes:
        assert self.config.source is not None
        name = os.path.relpath(path, str(self.root))
        return hashlib.sha256(os.fsencode(f"{self.config.source.test_seed}\n{name}")).digest()
