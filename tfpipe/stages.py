"""The pipeline's stages by name, to compose the chain by hand with stages of your own: see docs/compose.md."""

from tfpipe.data.catalog.boxes import CropCount, count_crops
from tfpipe.data.catalog.locate import SamplePaths
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.permutation import steps_per_epoch
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.pipeline import Crops, Encoded, crop, finish, prefetch, read, stamp, transform, visit
from tfpipe.data.runtime.parallelism import options
from tfpipe.data.sources.registry import load_catalog

__all__ = [
    "Catalog",
    "CropCount",
    "Crops",
    "Encoded",
    "SamplePaths",
    "SampleRef",
    "count_crops",
    "crop",
    "finish",
    "load_catalog",
    "options",
    "prefetch",
    "read",
    "stamp",
    "steps_per_epoch",
    "transform",
    "visit",
]
