"""Runs the input pipeline alone under the profiler."""

import json
from functools import partial
from pathlib import Path

from tfpipe.config import Config
from tfpipe.data.failures.batches import Batches
from tfpipe.data.order.stream import Stream
from tfpipe.data.pipeline import build_dataset, stage_names
from tfpipe.data.runtime.autotune import stages
from tfpipe.data.runtime.tracing import Tracer, Window
from tfpipe.data.sources.registry import load_catalog
from tfpipe.distributed import World
from tfpipe.tools.report.runs import PIPELINE


def trace(config: Config, world: World, window: Window, folder: Path) -> None:
    """Takes batches, one per step, and writes a trace of the steps in `window` to `folder`, for `tfpipe report`.

    Raises:
        ConfigError: a filelist or a label cannot be used.
        TfpipeError: a file cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config.model_dump_json(indent=2) + "\n")
    catalog = load_catalog(config.data, "train", world)
    tracer = Tracer(folder, window)
    build = partial(build_dataset, config, "train", world, True, catalog=catalog)
    batches = Batches(lambda rest: build(resume=rest), catalog, config.data, world, Stream.start(world.size))
    while tracer.steps < window.end:
        tracer.begin()
        next(batches)
        tracer.end()
    names = stage_names(catalog, config.data)
    (folder / PIPELINE).write_text(json.dumps([vars(stage) for stage in stages(batches.iterator, names)]) + "\n")
