"""The pipeline's stages by name, to compose the chain by hand with stages of your own: see docs/compose.md."""

from tfpipe.data.boxes import CropCount, count_crops
from tfpipe.data.catalog import Catalog, load_catalog
from tfpipe.data.lookup import Located
from tfpipe.data.order import steps_per_epoch
from tfpipe.data.pipeline import Crops, Encoded, crop, finish, prefetch, read, stamp, transform, visit
from tfpipe.data.stream import Visit
from tfpipe.data.threads import options

__all__ = [
    "Catalog",
    "CropCount",
    "Crops",
    "Encoded",
    "Located",
    "Visit",
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
