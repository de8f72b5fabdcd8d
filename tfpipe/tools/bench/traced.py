"""Runs the input pipeline alone under the profiler."""

import time
from functools import partial
from pathlib import Path

from tfpipe.config import Config
from tfpipe.data.pipeline import build_batches, stage_names
from tfpipe.data.runtime.autotune import stages
from tfpipe.data.runtime.marks import marked
from tfpipe.data.runtime.parallelism import thread_budget
from tfpipe.data.runtime.recording import TracedBatch
from tfpipe.data.runtime.tracing import Tracer, Window
from tfpipe.data.split import sample_names
from tfpipe.distributed import World
from tfpipe.tools.measure import Pipelines
from tfpipe.tools.report.runs import PIPELINE
from tfpipe.util.json_text import to_json


def trace(config: Config, world: World, window: Window, folder: Path) -> None:
    """Takes batches, one per step, and writes a trace of the steps in `window` to `folder`, for `tfpipe report`.

    Raises:
        ConfigError: a filelist or a label cannot be used.
        TfpipeError: a file cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # With the number of threads, which the report cannot know otherwise.
    data = config.data.model_copy(update={"threads": thread_budget(config.data, world)})
    recorded = config.model_copy(update={"data": data})
    (folder / "config.json").write_text(recorded.model_dump_json(indent=2) + "\n")
    pipelines = Pipelines(world, 0.0)
    split = pipelines.split(config)
    tracer = Tracer(folder, window, world.rank, partial(sample_names, split))
    batches = pipelines.batches(config, 0, partial(marked(build_batches), with_ready=True))
    while tracer.steps < window.end:
        tracer.begin()
        began_s = time.time()
        batch = next(batches)
        taken_s = time.time()
        # A batch is its whole step: nothing trains on it.
        times_s = (began_s, min(taken_s, float(batch.ready)), taken_s, taken_s, 0.0)
        tracer.end(TracedBatch(tracer.steps, *times_s, batch.positions.numpy()))
    names = stage_names(split)
    (folder / PIPELINE).write_text(to_json([vars(stage) for stage in stages(batches.iterator, names)]) + "\n")
