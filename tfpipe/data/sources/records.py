"""Splits whose images Python reads, a batch of them per call."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tfpipe.data.images.headers import START, header_of, jpeg_header
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Self

LoadImages = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Images (int64 [n]) -> their files (bytes [n]), heights and widths (int32 [n, 2]). Raises OSError or ValueError."""
LoadMasks = Callable[[np.ndarray], np.ndarray]
"""Images (int64 [n]) -> the files of their masks (bytes [n]). Raises OSError or ValueError."""


@dataclass(frozen=True, eq=False)
class RecordSplit(Split):
    """A split whose images are read by `image`; their boxes are known, so there are no XMLs."""

    images_per_call: int = field(default=32, kw_only=True)
    """Images that one call of Python loads."""

    def loader(self) -> LoadImages:
        """Returns the function that `read` calls for some images at once, in several threads."""

        def load(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            contents, sizes = np.empty(len(images), object), np.empty((len(images), 2), np.int32)
            for number, item in enumerate(images.tolist()):
                try:
                    file = contents[number] = self.image(item)
                except (OSError, ValueError) as error:
                    raise ValueError(f"{self.name(item)}: {error}") from None
                sizes[number] = (jpeg_header(file[:START]) or header_of(file, self.name(item)))[:2]
            return contents, sizes

        return load

    def mask_loader(self) -> LoadMasks | None:
        """Returns the function that `read` calls for the masks of some images; None if there are none."""
        return None

    def reader(self) -> "Callable[[tf.Tensor], tf.Tensor] | None":
        """Returns an in-graph function that reads an image: item (int64 []) -> its file; None if `loader` has to."""
        return None

    def read(self, samples: "tf.data.Dataset") -> "tf.data.Dataset":
        """Reads images; raises ConfigError if `data.cache` is set, which is for files."""
        from tfpipe.data.sources.reading import read_each, read_records

        if self.config.cache is not None:
            raise ConfigError(f"data.cache is for files, and {self.catalog.display_name} has none: leave it out")
        reader, masks = self.reader(), self.mask_loader()
        if reader is not None and masks is None:
            return read_each(samples, self, reader)
        return read_records(samples, self, self.loader(), masks, self.images_per_call)

    def serial(self) -> "Self":
        return replace(super().serial(), images_per_call=1)


@dataclass(frozen=True, eq=False)
class OwnSplit(RecordSplit):
    """A split of a user's own source."""

    read_image: Callable[[int], bytes]
    """An image's number -> its file. Raises OSError or ValueError."""

    def image(self, item: int) -> bytes:
        return self.read_image(item)
