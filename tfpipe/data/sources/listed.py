"""The base of the sources whose images are named by filelists."""

from typing import ClassVar

from tfpipe.data.catalog.filelist import check_filelists
from tfpipe.data.catalog.load import load_listed
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.source import Source
from tfpipe.distributed import World


class Listed(Source):
    """Base of the sources whose images are lines of filelists, each with an XML or none."""

    remedy = "repair it or take it out of the filelist; tfpipe check finds all such files"
    listed = True
    refused: ClassVar[dict[str, str]] = {}

    @property
    def place(self) -> str:
        return " + ".join(map(str, self.config.train_lists))

    def has_test(self) -> bool:
        return self.config.test_filelist is not None

    def check(self, test: bool = False) -> None:
        check_filelists([*self.config.train_lists, *([self.config.test_filelist] if test else [])])

    def catalog(self, split: str, world: World) -> Catalog:
        return load_listed(self, self.config, split, world)


def opened(catalog: Catalog, item: int) -> list[str]:
    """Returns the paths or URLs of an image and, if it is parsed, of its XML."""
    # If the catalog knows all boxes, no XML is opened.
    annotation = catalog.annotation(item) if catalog.boxes is None else ""
    return [path for path in (catalog.paths[item], annotation) if path]
