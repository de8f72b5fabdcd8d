"""The peers that run in a Python of their own, each a function from the work to batches of uint8 [64, 224, 224, 3].

For a detector a batch is uint8 [24, 800, 800, 3], and the boxes of each image, float32 [k, 4], in pixels.

Each reads, parses the XML, decodes, cuts the boxes out and resizes with `threads` threads or workers; or cuts out a
random window, resizes and mirrors it; or resizes the whole image, and for a detector gives its boxes too, which it has
read before, as from a COCO file. Of what each loader's documentation offers, the fastest here is taken; peers.md
says what else was tried.
"""

import json
import random
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from work import (
    AREA,
    ASPECT,
    BATCH,
    DETECT_BATCH,
    DETECT_SIZE,
    DRAWS,
    SIZE,
    Box,
    File,
    Work,
    boxes_in_pixels,
    random_window,
    read_boxes,
)

CHUNK = 32  # files
BUFFER = 1024  # files that DALI shuffles among
FFCV_BATCH = BATCH
# simplejpeg's fastest settings: its pixels are up to some 45 levels off.
FAST = {"fastdct": True, "fastupsample": True}
# What FFCV's own ImageNet runs are made of: every image as a JPEG, or a half of them as pixels.
FFCV = {"ffcv": {"write_mode": "jpg"}, "ffcv_half": {"write_mode": "proportion", "compress_probability": 0.5}}
FFCV_SIDE, FFCV_QUALITY = 500, 90

cv2.setNumThreads(1)  # the loaders bring the threads


def limit(work: Work) -> Iterator[Any]:
    """One thread; the files are in memory and the boxes known: nothing but decoding and resizing."""
    if work.kind == "detect":
        held = [(_read(file.image), np.array(boxes_in_pixels(file.xml), np.float32)) for file in work.files]
        return _detect_batches((_whole(jpeg, DETECT_SIZE), boxes) for _ in range(work.passes) for jpeg, boxes in held)
    if work.kind in ONE:
        jpegs = [_read(file.image) for file in work.files]
        return _batches(ONE[work.kind](jpeg) for _ in range(work.passes) for jpeg in jpegs)
    held = [(_read(file.image), read_boxes(file.xml)) for file in work.files]
    return _batches(crop for _ in range(work.passes) for jpeg, boxes in held for crop in _cut(jpeg, boxes))


def torch(work: Work) -> Iterator[Any]:
    """A DataLoader with worker processes, each with its share of the files."""
    from torch import Tensor, from_numpy
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    if work.kind == "detect":
        yield from _torch_detect(work)
        return
    files = work.files * work.passes

    class Crops(IterableDataset):
        def __iter__(self) -> Iterator[np.ndarray]:
            worker = get_worker_info()
            for file in files[worker.id :: worker.num_workers]:
                yield from load(work, file)

    def collate(crops: list[np.ndarray]) -> Tensor:
        return from_numpy(np.stack(crops))

    yield from DataLoader(Crops(), batch_size=BATCH, num_workers=work.threads, collate_fn=collate)


def _torch_detect(work: Work) -> Iterator[Any]:
    """A map-style data set; default_collate stacks the images in memory that is shared with the workers."""
    from torch import Tensor, from_numpy
    from torch.utils.data import DataLoader, Dataset, default_collate

    boxes = [from_numpy(np.array(boxes_in_pixels(file.xml), np.float32)) for file in work.files]

    class Images(Dataset):
        def __len__(self) -> int:
            return len(work.files) * work.passes

        def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
            number = item % len(work.files)
            return from_numpy(_whole(_read(work.files[number].image), DETECT_SIZE, **FAST)), boxes[number]

    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[Tensor]]:
        images, boxes = zip(*samples, strict=True)
        return default_collate(images), list(boxes)

    yield from DataLoader(Images(), batch_size=DETECT_BATCH, num_workers=work.threads, collate_fn=collate)


def grain(work: Work) -> Iterator[np.ndarray]:
    """Reading threads: the decoder and the resize release the GIL."""
    from grain import MapDataset, ReadOptions
    from grain.experimental import RebatchIterDataset

    crops = MapDataset.source(work.files).repeat(work.passes).map(lambda file: np.stack(load(work, file)))
    options = ReadOptions(num_threads=work.threads, prefetch_buffer_size=BATCH)
    yield from RebatchIterDataset(crops.to_iter_dataset(options), BATCH)


def spdl(work: Work, **settings: bool) -> Iterator[np.ndarray]:
    """A pipeline of threads, given several files at a time: an item on its way through the queues takes the GIL."""
    from spdl.pipeline import PipelineBuilder

    def load_all(files: list[File]) -> list[np.ndarray]:
        return [crop for file in files for crop in load(work, file, **settings)]

    pipeline = (
        PipelineBuilder()
        .add_source(work.files * work.passes)
        .aggregate(CHUNK)
        .pipe(load_all, concurrency=work.threads)
        .add_sink()
        .build(num_threads=work.threads)
    )
    with pipeline.auto_stop():
        yield from _batches(chain.from_iterable(pipeline))


def spdl_fastest(work: Work) -> Iterator[np.ndarray]:
    """The same with simplejpeg's fastest settings."""
    return spdl(work, **FAST)


def dali(work: Work) -> Iterator[np.ndarray]:
    """Native threads; each box is decoded by itself, no more of the image than it needs."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.data_node import DataNode

    if work.kind == "random":
        yield from _dali_random(work)
        return
    if work.kind == "detect":
        yield from _dali_detect(work)
        return

    def samples() -> Iterator[tuple[np.ndarray, ...]]:
        for file in work.files * work.passes:
            jpeg = np.frombuffer(_read(file.image), np.uint8)
            for box in read_boxes(file.xml):
                yield jpeg, np.float32(box[:2]), np.float32(box[2:])

    def batches() -> Iterator[list[tuple[np.ndarray, ...]]]:
        source = samples()
        while batch := list(islice(source, BATCH)):
            yield list(zip(*batch, strict=True))

    @pipeline_def(batch_size=BATCH, num_threads=work.threads, device_id=None, prefetch_queue_depth=2)
    def crops() -> DataNode:
        jpegs, starts, ends = fn.external_source(batches(), num_outputs=3)
        windows = fn.decoders.image_slice(jpegs, rel_start=starts, rel_end=ends, axes=(0, 1))
        return fn.resize(windows, size=SIZE, interp_type=types.INTERP_LINEAR, antialias=False)

    pipeline = crops()
    while True:
        try:
            (batch,) = pipeline.run()
        except StopIteration:
            return
        yield np.asarray(batch.as_tensor())


def _dali_random(work: Work) -> Iterator[np.ndarray]:
    """The decoder draws the window and decodes it alone; a thread reads the files, and shuffles them in a buffer."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.data_node import DataNode

    @pipeline_def(batch_size=BATCH, num_threads=work.threads, device_id=None, prefetch_queue_depth=2)
    def crops() -> DataNode:
        files = [file.image for file in work.files]
        jpegs, _ = fn.readers.file(files=files, random_shuffle=True, initial_fill=BUFFER)
        windows = fn.decoders.image_random_crop(
            jpegs, random_area=AREA, random_aspect_ratio=ASPECT, num_attempts=DRAWS, use_fast_idct=True
        )
        resized = fn.resize(windows, size=SIZE, interp_type=types.INTERP_LINEAR, antialias=False)
        return fn.flip(resized, horizontal=fn.random.coin_flip())

    pipeline, left = crops(), len(work.files) * work.passes
    while left > 0:
        (batch,) = pipeline.run()
        yield np.asarray(batch.as_tensor())[:left]
        left -= BATCH


def _dali_detect(work: Work) -> Iterator[Any]:
    """DALI's reader of COCO reads the files and the boxes in native threads, and shuffles whole epochs."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.data_node import DataNode

    coco = Path(work.folder) / "coco.json"
    coco.write_text(json.dumps(_as_coco(work.files)))

    @pipeline_def(batch_size=DETECT_BATCH, num_threads=work.threads, device_id=None, prefetch_queue_depth=2)
    def images() -> tuple[DataNode, ...]:
        jpegs, boxes, _ = fn.readers.coco(
            file_root="/", annotations_file=str(coco), ltrb=True, shuffle_after_epoch=True, avoid_class_remapping=True
        )
        whole = fn.decoders.image(jpegs, use_fast_idct=True)
        return fn.resize(whole, size=DETECT_SIZE, interp_type=types.INTERP_LINEAR, antialias=False), boxes

    pipeline, left = images(), len(work.files) * work.passes
    while left > 0:
        batch, boxes = pipeline.run()
        yield np.asarray(batch.as_tensor())[:left], [np.asarray(each) for each in boxes][:left]
        left -= DETECT_BATCH


def _as_coco(files: list[File]) -> dict[str, Any]:
    """The files as COCO's instances, the boxes in pixels of resized images, as all peers give them."""
    height, width = DETECT_SIZE
    images, annotations = [], []
    for number, file in enumerate(files, start=1):
        images.append({"id": number, "file_name": file.image.lstrip("/"), "height": height, "width": width})
        for left, top, right, bottom in boxes_in_pixels(file.xml):
            area = {"bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}
            annotations.append({"id": len(annotations) + 1, "image_id": number, "category_id": 1, "iscrowd": 0, **area})
    return {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "object"}]}


def ffcv(work: Work) -> Iterator[np.ndarray]:
    """Compiled loops over each batch, from FFCV's own file, which a memory map reads: all images are JPEGs."""
    return _ffcv(work, "ffcv")


def ffcv_half(work: Work) -> Iterator[np.ndarray]:
    """The same where half of the images are pixels."""
    return _ffcv(work, "ffcv_half")


def _ffcv(work: Work, name: str) -> Iterator[np.ndarray]:
    from beton import batches, write
    from ffcv.fields import RGBImageField
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.transforms import RandomHorizontalFlip

    class Images:
        def __len__(self) -> int:
            return len(work.files)

        def __getitem__(self, item: int) -> tuple[np.ndarray, int]:
            return simplejpeg.decode_jpeg(_read(work.files[item].image)), 0

    path = f"{work.folder}/{name}.beton"
    if work.passes == 1:
        field = RGBImageField(max_resolution=FFCV_SIDE, jpeg_quality=FFCV_QUALITY, **FFCV[name])
        write(path, field, Images(), work.threads)
    decoders = [RandomResizedCropRGBImageDecoder(SIZE, AREA, ASPECT), RandomHorizontalFlip()]
    for images, _ in batches(path, decoders, work.passes, work.threads, FFCV_BATCH):
        yield images


def load(work: Work, file: File, **settings: bool) -> list[np.ndarray]:
    """A file's crops; with settings of simplejpeg, its fastest ones if there is one crop."""
    jpeg = _read(file.image)
    return [ONE[work.kind](jpeg, **FAST)] if work.kind in ONE else _cut(jpeg, read_boxes(file.xml), **settings)


def _batches(crops: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    crops = iter(crops)
    while batch := list(islice(crops, BATCH)):
        yield np.stack(batch)


def _detect_batches(samples: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[Any]:
    samples = iter(samples)
    while batch := list(islice(samples, DETECT_BATCH)):
        images, boxes = zip(*batch, strict=True)
        yield np.stack(images), boxes


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _whole(jpeg: bytes, size: tuple[int, int] = SIZE, **settings: bool) -> np.ndarray:
    image = simplejpeg.decode_jpeg(jpeg, colorspace="RGB", **settings)
    return cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)


def _draw(jpeg: bytes, **settings: bool) -> np.ndarray:
    image = simplejpeg.decode_jpeg(jpeg, colorspace="RGB", **settings)
    top, left, height, width = random_window(*image.shape[:2])
    window = image[top : top + height, left : left + width]
    crop = cv2.resize(window, SIZE[::-1], interpolation=cv2.INTER_LINEAR)
    return cv2.flip(crop, 1) if random.random() < 0.5 else crop


def _cut(jpeg: bytes, boxes: list[Box], **settings: bool) -> list[np.ndarray]:
    image = simplejpeg.decode_jpeg(jpeg, colorspace="RGB", **settings)
    height, width, _ = image.shape
    crops = []
    for box in boxes:
        top, left, bottom, right = (
            round(min(max(edge, 0.0), 1.0) * side) for edge, side in zip(box, (height, width) * 2, strict=True)
        )
        window = image[min(top, height - 1) : max(bottom, top + 1), min(left, width - 1) : max(right, left + 1)]
        crops.append(cv2.resize(window, SIZE[::-1], interpolation=cv2.INTER_LINEAR))
    return crops


# Kinds of work that give one crop of each image.
ONE = {"random": _draw, "whole": _whole}
PEERS = {each.__name__: each for each in (limit, torch, grain, spdl, spdl_fastest, dali, ffcv, ffcv_half)}
