"""The pipeline's stages by name, to compose the chain by hand with stages of your own: see docs/compose.md."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from tfpipe.config import DataConfig
from tfpipe.data import crop_counts, pipeline
from tfpipe.data.catalog.locate import SamplePaths
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.crop_counts import CropCount
from tfpipe.data.order.permutation import steps_per_epoch
from tfpipe.data.order.stream import SampleRef
from tfpipe.data.pipeline import Crops, Encoded, finish, mix, prefetch, stamp, transform
from tfpipe.data.runtime.parallelism import options
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.distributed import World


def _of_split(stage: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a stage also take (..., catalog, config, world, ...), as before 0.2, in place of (..., split, ...)."""

    @wraps(stage)
    def call(*args: Any, **keys: Any) -> Any:
        config, world = keys.pop("config", None), keys.pop("world", None)
        config = next((value for value in args if isinstance(value, DataConfig)), config)
        world = next((value for value in args if isinstance(value, World)), world)
        rest = [value for value in args if not isinstance(value, (DataConfig, World))]
        given = signature(stage).bind(*rest, **{"split" if name == "catalog" else name: keys[name] for name in keys})
        split = given.arguments["split"]
        given.arguments["split"] = split.adapted(config or split.config, world or split.world)
        return stage(*given.args, **given.kwargs)

    return call


visit, read, crop = _of_split(pipeline.visit), _of_split(pipeline.read), _of_split(pipeline.crop)
count_crops = _of_split(crop_counts.count_crops)
# The name before 0.2.
load_catalog = load_split

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
    "load_catalog",
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
