"""What tf.data says of a running pipeline: the values that AUTOTUNE chose, and the time each stage has taken."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog

# The model knows ops, not stages; the maps come in the stages' order, and one that changes nothing is left out.
STAGES = ("visit", "read", "crop", "finish")
OF_PACKED_CROPS = ("visit", "gather", "finish")
OF_SERVICE = ("service", "hand over")


@dataclass(frozen=True)
class Tuned:
    """A value that AUTOTUNE chose."""

    stage: str
    parameter: str
    """"parallelism", in calls at once, or "buffer_size", in elements."""
    value: float


@dataclass(frozen=True)
class Stage:
    """What a stage has done since the pipeline's start, or between two moments."""

    stage: str
    """As stage_names has it."""
    elements: int
    """That it has made: blocks of visits, images, calls of the decoder, batches."""
    busy_ms: float
    """Of its threads together; waiting for a core counts, waiting for the stage before does not."""
    parallelism: float
    """Calls at once, at the end."""


def stage_names(catalog: Catalog, config: DataConfig) -> tuple[str, ...]:
    """Of a pipeline's maps, in their order."""
    if catalog.packed is not None and catalog.packed.has_crops:
        return OF_PACKED_CROPS
    return STAGES if config.service is None else OF_SERVICE


def tuned(iterator: Iterator[Any], names: Sequence[str] = STAGES) -> list[Tuned]:
    """What AUTOTUNE chose for a whole pipeline, in its order; nothing where it is switched off."""
    result = []
    left = iter(names)
    for node in _nodes(iterator):
        # Only a transform of the user's own may follow those.
        stage = next(left, "transform") if "Map" in node.name else node.name.lower()
        result += [Tuned(stage, each.name, each.value) for each in node.parameters if each.tunable]
    return result


def stages(iterator: Iterator[Any], names: Sequence[str] = STAGES) -> list[Stage]:
    """What each stage has done so far; nothing where AUTOTUNE, which keeps the account, is switched off.

    Takes a fraction of a millisecond.
    """
    maps = [node for node in _nodes(iterator) if "Map" in node.name]
    # Another map may follow, which only says when a batch was ready.
    return [
        Stage(
            stage,
            int(node.num_elements),
            node.processing_time / 1e6,
            next((each.value for each in node.parameters if each.name == "parallelism"), 1.0),
        )
        for stage, node in zip(names, maps, strict=False)
    ]


def since(before: Sequence[Stage], now: Sequence[Stage]) -> list[Stage]:
    """What each stage has done between two accounts of one pipeline; `before` may be empty."""
    earlier = {each.stage: each for each in before}
    nothing = Stage("", 0, 0.0, 0.0)
    result = []
    for each in now:
        then = earlier.get(each.stage, nothing)
        result.append(Stage(each.stage, each.elements - then.elements, each.busy_ms - then.busy_ms, each.parallelism))
    return result


def _nodes(iterator: Iterator[Any]) -> list[Any]:
    """The model's nodes, in the pipeline's order."""
    try:
        model = tf.data.experimental.get_model_proto(iterator)
    except tf.errors.NotFoundError:
        return []
    nodes: list[Any] = []
    number = model.output
    while number:
        nodes.insert(0, model.nodes[number])
        number = next(iter(model.nodes[number].inputs), 0)
    return nodes
