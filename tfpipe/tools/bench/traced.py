"""Runs the input pipeline alone under the profiler."""

import json
from pathlib import Path

from tfpipe.config import Config
from tfpipe.data.pipeline import build_dataset, stage_names
from tfpipe.data.runtime.autotune import stages
from tfpipe.data.runtime.tracing import Tracer, Window
from tfpipe.data.sources.registry import load_catalog
from tfpipe.distributed import World
from tfpipe.tools.bench.chains import failures_named
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
    with failures_named(config, world, catalog):
        batches = iter(build_dataset(config, "train", world, catalog=catalog))
        while tracer.steps < window.end:
            tracer.begin()
            next(batches)
            tracer.end()
        (folder / PIPELINE).write_text(
            json.dumps([vars(stage) for stage in stages(batches, stage_names(catalog, config.data))]) + "\n"
        )
