"""Splits whose images Python reads, a batch of them per call."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tfpipe.data.split import Split
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Self

ReadFiles = Callable[[np.ndarray], Iterable[bytes]]
"""Images (int64 [n]) -> their files, or those of their masks. Raises OSError, or ValueError that names the image."""


class LoadedFiles(NamedTuple):
    """The files of n images, as Python has read them."""

    jpeg: np.ndarray  # bytes [n]
    annotation: np.ndarray  # bytes [n]: their annotations, or their masks; "" for none
    annotation_path: np.ndarray  # str or bytes [n]: paths of these; "" for none


LoadImages = Callable[[np.ndarray], LoadedFiles]
"""Images (int64 [n]) -> their files. Raises OSError or ValueError."""


@dataclass(frozen=True, eq=False)
class RecordSplit(Split):
    """A split whose images are read by `image`; their boxes are known, so there are no XMLs."""

    images_per_call: int = field(default=32, kw_only=True)
    """Images that one call of Python loads."""

    def file_reader(self) -> ReadFiles:
        """Returns the function that reads the files of some images at once, in several threads."""

        def read(images: np.ndarray) -> Iterator[bytes]:
            for item in images.tolist():
                try:
                    yield self.image(item)
                except (OSError, ValueError) as error:
                    raise ValueError(f"{self.name(item)}: {error}") from None

        return read

    def mask_reader(self) -> ReadFiles | None:
        """Returns the same for masks; None if there are none."""
        return None

    def loader(self) -> LoadImages:
        """Returns the function that `read` calls for some images at once."""
        read, read_masks = self.file_reader(), self.mask_reader()

        def load(images: np.ndarray) -> LoadedFiles:
            jpegs = np.array([*read(images)], object)
            masks = paths = np.full(len(images), b"", object)
            if read_masks is not None and self.catalog.masks is not None:
                masks = np.array([*read_masks(images)], object)
                paths = np.array([self.catalog.masks[item] for item in images.tolist()], object)
            return LoadedFiles(jpegs, masks, paths)

        return load

    def reader(self) -> "Callable[[tf.Tensor], tf.Tensor] | None":
        """Returns an in-graph function that reads an image: item (int64 []) -> its file; None if `loader` has to."""
        return None

    def read(self, samples: "tf.data.Dataset") -> "tf.data.Dataset":
        """Reads images; raises ConfigError if `data.cache` is set, which is for files."""
        import tensorflow as tf

        from tfpipe.data.sources.reading import read_by_python, read_in_graph

        if self.config.cache is not None:
            raise ConfigError(f"data.cache is for files, and {self.catalog.display_name} has none: leave it out")
        reader = self.reader()
        if reader is not None and self.mask_reader() is None:
            return read_in_graph(samples, self, lambda image: (reader(image.item), tf.constant("")))
        return read_by_python(samples, self, self.loader(), self.images_per_call)

    def cause(self, error: "tf.errors.OpError") -> str | None:
        from tfpipe.data.runtime.op_errors import reason

        return f"{reason(error)}; {self.remedy}" if reason(error).startswith("record ") else None

    def serial(self) -> "Self":
        return replace(super().serial(), images_per_call=1)


@dataclass(frozen=True, eq=False)
class OwnSplit(RecordSplit):
    """A split whose images a function reads, such as that of a user's own source."""

    read_image: Callable[[int], bytes]
    """An image's number -> its file. Raises OSError or ValueError."""
    origin: Callable[[int], str] | None = None
    """An image's number -> the place of its bytes, for a message; None if its name says it."""

    def image(self, item: int) -> bytes:
        return self.read_image(item)

    def name(self, item: int) -> str:
        return super().name(item) if self.origin is None else f"{self.origin(item)}, of {self.catalog.paths[item]}"
