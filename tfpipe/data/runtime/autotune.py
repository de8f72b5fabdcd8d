"""Reads tf.data's model of a running pipeline: the values that AUTOTUNE chose, and the time each stage has taken."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfpipe.util.tensorflow_api import model_proto

# The model names ops, not stages: its Map nodes come in this order. tf.data removes a map that changes nothing.
STAGES = ("visit", "read", "crop", "finish")


@dataclass(frozen=True)
class TunedValue:
    """A value that AUTOTUNE chose."""

    stage: str
    parameter: str  # `parallelism`, in concurrent calls, or `buffer_size`, in elements
    value: float


@dataclass(frozen=True)
class Stage:
    """The work of a stage since the pipeline's start, or between two snapshots."""

    stage: str
    """Name, one of those that pipeline.stage_names returns."""
    elements: int
    """Number of elements produced: blocks of samples, images, decoder calls or batches."""
    busy_ms: float
    """Milliseconds, summed over its threads: includes waiting for a core, excludes waiting for the previous stage."""
    parallelism: float
    """Concurrent calls, at the end."""


def tuned_values(iterator: Iterator[Any], names: Sequence[str] = STAGES) -> list[TunedValue]:
    """Returns the values that AUTOTUNE chose, in pipeline order; none if it is switched off."""
    result = []
    stage_names = iter(names)
    for node in _nodes(iterator):
        # The only tunable map beyond `names` is the user's `data.transform`.
        stage = next(stage_names, "transform") if _is_map(node) else node.name.lower()
        result += [TunedValue(stage, value.name, value.value) for value in node.parameters if value.tunable]
    return result


def stages(iterator: Iterator[Any], names: Sequence[str] = STAGES) -> list[Stage]:
    """Returns the work of each stage so far; none if AUTOTUNE, which records it, is switched off.

    A stage of several maps has the elements of the last of them. Takes a fraction of a millisecond.
    """
    result: dict[str, Stage] = {}
    # Maps beyond `names`, the user's transform and the one that stamps batches with the time, are not reported.
    for name, node in zip(names, filter(_is_map, _nodes(iterator)), strict=False):
        busy_ms = node.processing_time / 1e6 + (result[name].busy_ms if name in result else 0.0)
        parallelism = next((value.value for value in node.parameters if value.name == "parallelism"), 1.0)
        result[name] = Stage(name, int(node.num_elements), busy_ms, parallelism)
    return list(result.values())


def count_queued(iterator: Iterator[Any]) -> int | None:
    """Returns the number of elements in the pipeline's last prefetch buffer; None if there is no model, or no such."""
    buffers = [node for node in _nodes(iterator) if "Prefetch" in node.name]
    return int(buffers[-1].buffered_elements) if buffers else None


def since(before: Sequence[Stage], now: Sequence[Stage]) -> list[Stage]:
    """Returns the work of each stage between two snapshots of one pipeline; `before` may be empty."""
    starts = {start.stage: start for start in before}
    pairs = [(starts.get(end.stage, Stage("", 0, 0.0, 0.0)), end) for end in now]
    return [replace(b, elements=b.elements - a.elements, busy_ms=b.busy_ms - a.busy_ms) for a, b in pairs]


def _is_map(node: Any) -> bool:
    return "Map" in node.name and "FlatMap" not in node.name


def _nodes(iterator: Iterator[Any]) -> list[Any]:
    """Returns the nodes of tf.data's model in pipeline order; none if there is no model."""
    nodes: list[Any] = []
    model = model_proto(iterator)
    number = 0 if model is None else model.output
    while number:
        nodes.insert(0, model.nodes[number])
        number = next(iter(model.nodes[number].inputs), 0)
    return nodes
