"""The sections within `data`: layout, crops, parallelism, mixtures, sources, remote files and workers."""

import json
import re
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from tfpipe.config.section import Args, ConfigPath, Fraction, Section, Seed

# Sources that come with tfpipe, besides filelists.
KINDS = ("folders", "packed", "tfrecord")
# Kinds that each key is for, besides kinds of the user's own; `path` is for all.
KEYS = {
    "test_path": ("folders",),
    "test_share": ("folders",),
    "test_seed": ("folders",),
}
# A user, and perhaps a password, in a URL.
LOGIN = re.compile(r'://[^/"\s]*@')
NETRC = 'put them into ~/.netrc, and set data.remote.options to {"client_kwargs": {"trust_env": true}}'


class Layout(Section):
    """Folders of a data set's images and annotations, below one root."""

    images: str
    """Folder of the images, e.g. "Data/CLS-LOC"."""
    annotations: str
    """Folder of the XML files, laid out like the images, e.g. "Annotations/CLS-LOC"."""


class RandomResizedCrop(Section):
    """The crop of Szegedy et al. 2015 (Going Deeper with Convolutions); it must cover part of a box."""

    area: tuple[Fraction, Fraction] = (0.08, 1.0)
    """Smallest and largest share of the image's area."""
    aspect: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (3 / 4, 4 / 3)
    """Smallest and largest width / height."""
    min_covered: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Smallest share of a box that the crop must cover."""

    @model_validator(mode="after")
    def _ranges_ascend(self) -> "RandomResizedCrop":
        for name in ("area", "aspect"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be [smallest, largest]")
        return self


class Parallel(Section):
    """Parallel calls of each stage; null: num_parallel_readers."""

    read: PositiveInt | Literal["auto"] | None = None
    """Images read at once; "auto": 64. Reads wait for storage without using a CPU, so their threads do not count in
    `threads`. If reading a file takes 50 ms or more, a larger number pays off."""
    decode: PositiveInt | Literal["auto"] | None = None
    """Concurrent calls that decode and crop; "auto": as many as there are `threads`. More gain nothing."""


class WeightedList(Section):
    """One filelist of a mixture."""

    path: ConfigPath
    """The filelist."""
    weight: Annotated[float, Field(gt=0)]
    """Share of the training samples drawn from this list, relative to the other lists' weights."""


class SourceConfig(Section):
    """Data that is not named by filelists."""

    kind: str
    """"folders": a folder of class folders, CLASS/*.jpg. "packed": the output of `tfpipe pack`. "tfrecord": ImageNet's
    TFRecords as written by the scripts of TensorFlow's models and of TPUs, train-00000-of-01024 and
    validation-00000-of-00128. "package.module:Class": a kind of your own, a subclass of tfpipe.Source, from sys.path or
    the current directory."""
    path: ConfigPath | None = None
    """Folder of the data; a kind of your own may do without."""
    test_path: ConfigPath | None = None
    """The test data if it is elsewhere; null: with "folders" the subfolder val, valid, validation or test beside a
    subfolder train, if there is one."""
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """With "folders": share of each class's images that becomes test data and is left out of training; always the same
    images for the same files and `test_seed`."""
    test_seed: Seed = 0
    """Seed of `test_share`; data.seed does not change it."""
    args: Args = {}
    """Settings of a kind of your own, which it finds in config.source.args."""

    @model_validator(mode="after")
    def _kind_is_known(self) -> "SourceConfig":
        if ":" in self.kind:
            return self
        if self.kind not in KINDS:
            accepted = ", ".join(f'"{kind}"' for kind in KINDS)
            raise ValueError(f'kind: received "{self.kind}"; accepted: {accepted} or "package.module:Class"')
        if self.path is None:
            raise ValueError(f"path: is missing: the folder of the {self.kind} data")
        for key, kinds in KEYS.items():
            if self.kind not in kinds and getattr(self, key) != type(self).model_fields[key].default:
                these = " and ".join(f'"{kind}"' for kind in kinds)
                raise ValueError(f'{key}: is for {these}, and the kind is "{self.kind}": leave it out')
        if self.test_path is not None and self.test_share is not None:
            raise ValueError("test_share: takes test data from `path`, and test_path names it: leave one of them out")
        return self


class Remote(Section):
    """How to fetch files whose line in the filelist is a URL: http(s)://, s3:// or gs://."""

    concurrency: PositiveInt = 64
    """Concurrent requests of this rank; replaces parallel.read, which is for local files."""
    batch: PositiveInt = 32
    """Images fetched by one call, each with its XML; `concurrency` limits the requests of all calls together."""
    retries: NonNegativeInt = 8
    """Retries of a request after a transient failure: the connection failed or broke off, no response came in time, or
    the status was 408, 429 or 5xx. The first pause is 0.25 s, each further one twice as long, each shortened by up to
    half at random: 8 pauses last from 32 to 64 s."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that one request may take."""
    cache: ConfigPath | None = None
    """Folder on a local disk that caches fetched files, shared by the ranks of a node; null: no cache."""
    cache_gb: Annotated[float, Field(gt=0)] = 100.0
    """Maximum size of `cache` in 10^9 bytes; beyond it, the least recently used files are deleted."""
    options: Args = {}
    """Options of fsspec's file system, e.g. {"endpoint_url": "http://localhost:9000"} or {"anon": true}."""

    @model_validator(mode="after")
    def _without_logins(self) -> "Remote":
        if LOGIN.search(json.dumps(self.options, default=str)):
            raise ValueError(f"options has a URL with a user or a password, which config.json would repeat: {NETRC}")
        return self


# host:port
Address = Annotated[str, Field(pattern=r"^[^\s:/]+:[0-9]+$")]


class Service(Section):
    """Worker processes (tf.data service), here or on other hosts, that read, decode and crop for the training."""

    workers: PositiveInt | None = None
    """Number of workers started with each rank, and ended with it."""
    address: Address | Annotated[list[Address], Field(min_length=1)] | None = None
    """Addresses of running workers, each "host:5000", as `tfpipe serve worker` prints it."""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds without data after which a worker counts as dead; 32 images must not take longer."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "Service":
        if (self.workers is None) == (self.address is None):
            raise ValueError("give either workers, to start some, or the address of running ones")
        return self
