"""Settings of the `data` section that exclude each other."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfpipe.config.data import DataConfig


def conflicts(data: "DataConfig") -> Iterator[str]:
    """Yields a message for each pair of settings that cannot be used together."""
    if data.source is not None:
        yield from _beside_source(data)
    if data.label_source == "object":
        if data.annotations == "none":
            yield 'label_source "object" needs the XML files; annotations is "none"'
        for name in ("crop", "test_crop"):
            if getattr(data, name) in ("center", "full"):
                yield (
                    f'{name} "{getattr(data, name)}" makes one crop of an image, whose objects may be of several '
                    'classes; with label_source "object" use "boxes" or "random_resized"'
                )
        if data.classes is None and data.source is None:
            yield (
                'classes must be given (a list or a file) when label_source is "object", so that the numbering is the '
                "same on every rank and in every run"
            )
    height, width = data.crop_image_size
    if height * width * data.num_channels >= 2**29:
        size = f"{height * width * data.num_channels:,} bytes"
        yield f"crop_image_size [{height}, {width}] makes crops of {size}; use less than 2^29, 536,870,912"
    if data.decoder == "native" and data.resize != "bilinear":
        yield f'decoder "native" resizes "bilinear" only; resize "{data.resize}" needs "graph" or "auto"'
    if data.num_parallel_readers == 1 and "autotune" in (data.parallel.read, data.parallel.decode):
        yield (
            'num_parallel_readers 1 makes the pipeline serial, without AUTOTUNE: set it to "auto", or leave "autotune" '
            "out of parallel.read and parallel.decode"
        )
    if data.cache_stage == "crops" and data.cache is None:
        yield 'cache_stage "crops" says what `cache` holds, which is null: set it to "memory" or a path'
    if data.cache_stage == "crops" and data.crop == "random_resized":
        yield (
            'cache_stage "crops" keeps an image\'s crops as first cut, and crop "random_resized" draws others in each '
            'epoch: use cache_stage "files", or crop "boxes", "center" or "full"'
        )
    for name in ("train_box_file", "test_box_file"):
        if getattr(data, name) is not None and data.annotations in ("xml", "lxml", "none"):
            yield (
                f"{name} is read by `tfpipe index`, instead of the XMLs, and training needs that index; annotations is "
                f'"{data.annotations}": use "auto" or "index", or leave {name} out'
            )
    for key, is_set, advice in (
        ("cache", data.cache is not None, "set it to null"),
        ("storage_delay_ms", data.storage_delay_ms > 0, "set it to 0"),
        ('on_error "skip"', data.on_error == "skip", 'use "raise"'),
        ("source", data.source is not None, "use filelists"),
    ):
        if data.service is not None and is_set:
            yield (
                f"{key} needs Python, or memory, of the training process, which the processes of `service` do not "
                f"have: {advice}, or set service to null"
            )


def _beside_source(data: "DataConfig") -> Iterator[str]:
    """Yields a message for each key of filelists that `source` would make ineffective."""
    source = data.source
    assert source is not None, "the caller looks"
    said = json.dumps({"kind": source.kind} | ({} if source.path is None else {"path": str(source.path)}))
    for name in ("train_filelist", "test_filelist"):
        value = getattr(data, name)
        if value is not None:
            listed = [str(entry.path) for entry in value] if isinstance(value, list) else str(value)
            yield f"source {said} and {name} {json.dumps(listed)} both name the data: leave one of them out, or null"
    labels = () if source.kind == "folders" or ":" in source.kind else ("train_label_file", "test_label_file")
    boxes = () if ":" in source.kind else ("train_box_file", "test_box_file")
    for name in (*labels, *boxes):
        value = getattr(data, name)
        if value is not None:
            yield (
                f'{name} "{value}" is for images of filelists, and source {said} says itself what its images hold: '
                f"leave {name} out, or null"
            )


def unused(data: "DataConfig") -> Iterator[str]:
    """Yields a message for each setting that has no effect, though it would do no harm."""
    if data.scaled_decode:
        yield "data.scaled_decode has no effect any more: images are decoded at their full size"
    crops = {data.crop_for("train"), data.crop_for("test")}
    for name, crop in (("random_resized", "random_resized"), ("center_fraction", "center")):
        if getattr(data, name) != type(data).model_fields[name].default and crop not in crops:
            yield f'data.{name} has no effect: it is for data.crop "{crop}", and data.crop is "{data.crop}"'
