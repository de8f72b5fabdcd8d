"""The pipeline's stages by name, to compose the chain by hand with stages of your own: see docs/compose.md."""

from tfpipe.requirements import check_tensorflow

check_tensorflow()

from tfpipe.data.catalog.locate import SamplePaths
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.crop_counts import CropCount, count_crops
from tfpipe.data.order.permutation import steps_per_epoch
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.pipeline import Crops, Encoded, crop, finish, mix, prefetch, read, stamp, transform, visit
from tfpipe.data.runtime.parallelism import options
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split

__all__ = [
    "Catalog",
    "CropCount",
    "Crops",
    "Encoded",
    "SamplePaths",
    "SampleRef",
    "Split",
    "count_crops",
    "crop",
    "finish",
    "load_split",
    "mix",
    "options",
    "prefetch",
    "read",
    "stamp",
    "steps_per_epoch",
    "transform",
    "visit",
]
