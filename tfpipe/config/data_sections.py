"""The sections within `data`: layout, crops, mixed batches, parallelism, mixtures of lists, remote files."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from tfpipe.config.section import ASCENDING, PAIR, Args, ConfigPath, Form, Fraction, Section, check_login

# The form of train_filelist as a list.
LISTS = Form('a list of {"path": FILE, "weight": NUMBER}')


class Layout(Section):
    """Folders of a data set's images and annotations, below one root."""

    images: str
    """Folder of the images, e.g. "Data/CLS-LOC"."""
    annotations: str
    """Folder of the XML files, laid out like the images, e.g. "Annotations/CLS-LOC"."""
    format: Literal["voc", "yolo"] = "voc"
    """"voc": XML files of Pascal VOC. "yolo": text files, x.txt for x.jpg, with a line for each object: `class x_center
    y_center width height`, relative to the image's size, or `class x1 y1 x2 y2 ...`, a polygon."""


class RandomResizedCrop(Section):
    """The crop of torchvision's RandomResizedCrop, with its distribution and its fallback."""

    area: Annotated[tuple[Fraction, Fraction], PAIR, ASCENDING] = (0.08, 1.0)
    """Smallest and largest share of the image's area, between which it is drawn uniformly."""
    aspect: Annotated[tuple[PositiveFloat, PositiveFloat], PAIR, ASCENDING] = (3 / 4, 4 / 3)
    """Smallest and largest width / height, drawn from uniformly by their logarithms. If ten draws of both do not fit
    into the image, the crop is its middle, as far as these allow."""
    min_covered: Annotated[float, Field(ge=0, le=1)] | None = None
    """Smallest share of a box that the crop must cover, as in Szegedy et al. 2015 (Going Deeper with Convolutions); the
    whole image if 100 draws do not. Without a box the image is one. 0: the crop is anywhere, as torchvision's. null: 0,
    or 0.1 of its own object if objects have the labels."""


class Mix(Section):
    """Mixing of each crop of a training batch with the crop before it, and of their labels, which become shares of the
    classes, float32 [batch, classes]. Test data stay as they are."""

    mixup: PositiveFloat | None = None
    """MixUp (Zhang et al. 2018): a weighted mean of both crops; the weight, one for each batch, is drawn from
    Beta(alpha, alpha). This is alpha, e.g. 0.2; null: no MixUp."""
    cutmix: PositiveFloat | None = None
    """CutMix (Yun et al. 2019): a box of the other crop, the same in the whole batch; the share outside it is drawn
    from Beta(alpha, alpha) before the box is clipped at the crop's edges. This is alpha, e.g. 1.0; null: no CutMix."""
    prob: Fraction = 1.0
    """Share of the batches that are mixed; the labels of the others are 0 and 1."""
    switch_prob: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """With both, share of CutMix in the mixed batches; the others get MixUp."""


class Normalize(Section):
    """Normalisation of images of a float type: (value - mean) / std, of values in [0, 1]."""

    mean: Annotated[list[float], Form("a list of numbers, one for each channel")]
    """Mean of each channel, in [0, 1]; ImageNet's are [0.485, 0.456, 0.406]."""
    std: Annotated[list[PositiveFloat], Form("a list of numbers above 0, one for each channel")]
    """Standard deviation of each channel, of values in [0, 1]; ImageNet's are [0.229, 0.224, 0.225]."""


class Parallel(Section):
    """Parallel calls of each stage; null: num_parallel_readers."""

    read: PositiveInt | Literal["auto", "autotune"] | None = None
    """Images read at once; "auto": 64; "autotune": tf.data chooses, at most 10 for each of `threads`, which can be too
    few for storage that is late. Reads wait for storage without using a CPU, so their threads do not count in
    `threads`. If reading a file takes 50 ms or more, a larger number pays off."""
    decode: PositiveInt | Literal["auto", "autotune"] | None = None
    """Concurrent calls that decode and crop; "auto": a quarter more than there are `threads`, at least one more, since
    batches keep their order and a thread would wait for the call before its own, and three times the threads if an
    annotation index says that a few images are huge; "autotune": tf.data chooses, at most as many as threads."""


class WeightedList(Section):
    """One filelist of a mixture."""

    path: ConfigPath
    """The filelist."""
    weight: PositiveFloat
    """Share of the training samples drawn from this list, relative to the other lists' weights."""


def _without_login(options: dict[str, Any]) -> dict[str, Any]:
    check_login(json.dumps(options, default=str))
    return options


class Remote(Section):
    """How to fetch data behind URLs: files whose line in the filelist is one, packed data and tar shards."""

    concurrency: PositiveInt = 64
    """Concurrent requests of this rank; replaces parallel.read, which is for local files."""
    retries: NonNegativeInt = 8
    """Retries of a request after a transient failure: the connection failed or broke off, no response came in time, or
    the status was 408, 429 or 5xx. The first pause is 0.25 s, each further one twice as long, each shortened by up to
    half at random: 8 pauses last from 32 to 64 s."""
    timeout_s: PositiveFloat = 30.0
    """Seconds that one request may take."""
    cache: ConfigPath | None = None
    """Folder on a local disk that caches fetched files, shared by the ranks of a node; null: no cache."""
    cache_gb: PositiveFloat = 100.0
    """Maximum size of `cache` in 10^9 bytes; beyond it, the least recently used files are deleted. Packed data and tar
    shards have as much for each split, and what comes after it is full is not kept."""
    options: Annotated[Args, AfterValidator(_without_login)] = {}
    """Options of fsspec's file system, e.g. {"endpoint_url": "http://localhost:9000"} or {"anon": true}."""


# host:port
Address = Annotated[str, Field(pattern=r"^[^\s:/]+:[0-9]+$")]
Workers = Annotated[
    PositiveInt | Address | Annotated[list[Address], Field(min_length=1)] | None,
    Form('a list of "host:port", not empty'),
]
