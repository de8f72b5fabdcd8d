"""The config's `data` section: from filelists, packed or remote data to batches."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)


def _beside_config(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base", Path())
    return (base / path.expanduser()).resolve()


# A path that, when relative, is relative to the config file.
ConfigPath = Annotated[Path, AfterValidator(_beside_config)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Kernel = Literal["bilinear", "bicubic", "area", "antialias"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Layout(Section):
    """Where a tree keeps its images and its annotations, below one root."""

    images: str
    """Folder of the images, e.g. "Data/CLS-LOC"."""
    annotations: str
    """Folder of the XML files, laid out like the images, e.g. "Annotations/CLS-LOC"."""


class RandomResizedCrop(Section):
    """The crop of Szegedy et al. 2015 (Going Deeper with Convolutions), which must cover part of a box."""

    area: tuple[Fraction, Fraction] = (0.08, 1.0)
    """Smallest and largest share of the image's area."""
    aspect: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (3 / 4, 4 / 3)
    """Smallest and largest width / height."""
    min_covered: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of a box that the crop must at least cover."""

    @model_validator(mode="after")
    def _ranges_ascend(self) -> "RandomResizedCrop":
        for name in ("area", "aspect"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be [smallest, largest]")
        return self


class Parallel(Section):
    """How much each stage works on at once; null: num_parallel_readers."""

    read: PositiveInt | Literal["auto"] | None = None
    """Images read at once; "auto": 64. Reading waits for storage and holds no CPU meanwhile, so it has threads beside
    those of `threads`; where a file takes 50 ms or more to come, a larger number pays."""
    decode: PositiveInt | Literal["auto"] | None = None
    """Calls that decode and crop at once; "auto": as many as there are `threads`. More gain nothing."""


class WeightedList(Section):
    """One of several filelists that are mixed."""

    path: ConfigPath
    """The filelist."""
    weight: Annotated[float, Field(gt=0)]
    """How much of the training samples it gives, in proportion to the other lists' weights."""


class Source(Section):
    """Data that was packed ahead of time, in the filelists' place."""

    kind: Literal["packed", "tfrecord"]
    """"packed": what `tfpipe pack` made. "tfrecord": ImageNet's TFRecords as the scripts of TensorFlow's models and of
    TPUs write them, train-00000-of-01024 and validation-00000-of-00128."""
    path: ConfigPath
    """The folder."""


class Remote(Section):
    """How files are fetched whose line in the filelist is a URL: http(s)://, s3:// or gs://."""

    concurrency: PositiveInt = 64
    """Requests under way at once, on this rank. In the place of parallel.read, which is of files."""
    batch: PositiveInt = 32
    """Images asked for together, each with its XML; as many such calls are made at once as `concurrency` takes."""
    retries: NonNegativeInt = 8
    """Times that a request is repeated which failed for a reason that may pass: a connection that failed or broke off,
    no answer in time, status 408, 429 or 5xx. The first pause is of 0.25 s, less up to a half by chance, each further
    one twice as long: 8 pauses last from 32 to 64 s."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that one request may take."""
    cache: ConfigPath | None = None
    """Folder on a local disk in which what was fetched is kept, shared by the ranks of a node; null: none is."""
    cache_gb: Annotated[float, Field(gt=0)] = 100.0
    """Size that the files in this folder may reach together, in 10^9 bytes; then what was used longest ago goes."""
    options: dict[str, Any] = {}
    """Of fsspec's file system, e.g. {"endpoint_url": "http://localhost:9000"} or {"anon": true}."""


# host:port
Address = Annotated[str, Field(pattern=r"^[^\s:/]+:[0-9]+$")]


class Service(Section):
    """Processes, here or on other hosts, that read, decode and crop in this one's place (tf.data service)."""

    workers: PositiveInt | None = None
    """Started beside each rank, and ended with it."""
    address: Address | Annotated[list[Address], Field(min_length=1)] | None = None
    """Of running ones, "host:5000" each, as `tfpipe serve worker` prints it."""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds after which one that gives nothing is taken for dead; 32 images must not take longer."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "Service":
        if (self.workers is None) == (self.address is None):
            raise ValueError("give either workers, to start some, or the address of running ones")
        return self


class DataConfig(Section):
    """From the filelists to batches."""

    source: Source | None = None
    """Packed data in the filelists' place; null: the files that these name."""
    train_filelist: Annotated[ConfigPath | list[WeightedList] | None, Field(validate_default=True)] = None
    """Text file, one JPEG a line; a relative line is relative to the list's folder. Several, each
    {"path": FILE, "weight": NUMBER}, are mixed: each gives its share of the samples. null: `source` has them."""
    test_filelist: ConfigPath | None = None
    """The same for the test pass; null: no test pass."""
    remote: Remote = Remote()
    """How URLs in filelists are fetched."""
    service: Service | None = None
    """Processes that read and decode in this one's place; null: this one does."""
    batch_size: PositiveInt = 64
    """Crops per batch and rank."""
    shuffle_buffer: NonNegativeInt = 200_000
    """Above 1: the whole epoch is shuffled, at no cost in memory. 0 or 1: the list's own order."""
    reshuffle_each_iteration: bool = True
    """Another order every epoch; false repeats the first."""
    scope: Literal["global", "shard"] = "global"
    """"global": the whole list is shuffled, then dealt out to the ranks; the order is the same whatever their number.
    "shard": each rank keeps its share of the list and shuffles that, for copies local to a node."""
    unit: Literal["image", "box"] = "image"
    """What is shuffled in training. "image": the crops of an image follow each other. "box": every box is a sample of
    its own, so that they are spread over the epoch; all XMLs are read at the start."""
    seed: Seed = 0
    """Seed of the order and of all augmentation."""
    num_parallel_readers: PositiveInt | Literal["auto"] = "auto"
    """Images read at once, and calls that decode; "auto": as `parallel` says. 1 also means one thread: serial."""
    parallel: Parallel = Parallel()
    """The same, stage by stage."""
    prefetch_buffer_size: NonNegativeInt | Literal["auto"] = "auto"
    """Batches prepared ahead. Its old misspelling, prefectch_buffer_size, is accepted."""
    threads: PositiveInt | None = None
    """Threads of the input pipeline on this rank, beside those that wait for storage; null: cpu_fraction of this rank's
    share of the CPUs it may use."""
    cpu_fraction: Fraction = 1.0
    """Share of a rank's CPUs that the input pipeline may take; less leaves more to a model that trains on them."""
    cache: Literal["memory"] | ConfigPath | None = None
    """Keeps the image files and XMLs, still encoded, as they are first read, so that later epochs leave slow storage
    alone; they are decoded anew each time. "memory": in each rank's own, for as long as it runs. A path: in a folder of
    each rank's own in it, meant for a disk local to the node; later runs find it filled. In the scope "global" every
    rank comes to hold the whole list, in "shard" its share. Training does not start where that does not fit. Changes
    to files that are kept go unnoticed: remove the folder. null: every epoch reads from the source."""
    cache_stage: Literal["files", "crops"] = "files"
    """What `cache` keeps. "files": as above. "crops": the crops as cut and resized, so that later epochs neither read,
    parse nor decode: they had 8 times the rate of epochs whose crops are not kept, or 6.6 with flips, which are still
    drawn anew (500x375 to 224x224, two cores); the first costs a sixth more. A crop takes its height x width x channels
    in bytes, 150 kB at 224x224, often more than its file. Changes to files or XMLs go unnoticed here too. Not for
    `crop` "random_resized", whose crops are others each epoch."""
    crop_image_size: tuple[PositiveInt, PositiveInt] = (224, 224)
    """Height and width of a crop, in pixels."""
    resize: Kernel = "bilinear"
    """How a crop is brought to its size. "antialias", bilinear with antialiasing, as Pillow does it, is kinder to large
    crops, at the cost that profiles/README.md gives."""
    decoder: Literal["auto", "native", "graph"] = "auto"
    """Who decodes and resizes. "native": simplejpeg and OpenCV, several images at a call, without the GIL. "graph":
    TensorFlow's ops, for which no Python runs. "auto": native, which is faster, where `resize` is "bilinear", but graph
    with `service`."""
    scaled_decode: bool = False
    """Decodes a JPEG at 1/2, 1/4 or 1/8 of its size where that leaves all windows of the image at least
    crop_image_size. Crops alias less, and cost less: on boxes of 500x375 images, 6 % at 128x128, 15 % at 64x64 (of CPU
    time, profiles/README.md). But a window's edges are off by up to half a pixel of the crop, and a crop's pixels may
    depend on the image's other boxes, so they are no longer those that a resize of the whole gives."""
    num_channels: Literal[1, 3] = 3
    """1: grayscale, 3: RGB."""
    dtype: Literal["uint8", "float16", "bfloat16", "float32"] = "uint8"
    """Of the images: uint8 in [0, 255], or a float type in [0, 1]."""
    crop: Literal["boxes", "random_resized", "center", "full"] = "boxes"
    """"boxes": one crop per object, the whole image where there is no annotation. "random_resized": a random
    crop covering part of a box. "center": the middle. "full": the whole image."""
    test_crop: Literal["boxes", "center", "full"] | None = None
    """The same for test data, which is never augmented; null: "center" after "random_resized" (or "boxes"
    where labels come from objects), otherwise as in training."""
    random_resized: RandomResizedCrop = RandomResizedCrop()
    """How "random_resized" draws."""
    center_fraction: Fraction = 0.875
    """Side of the "center" crop, as a share of the largest that fits."""
    flip: bool | None = None
    """Mirror half of the training crops; null: only with "random_resized"."""
    label_source: Literal["directory", "object"] = "directory"
    """"directory": the image's folder (n02437312/...). "object": each object's name in the XML."""
    classes: list[str] | ConfigPath | None = None
    """Class names in the order of their numbers, or a file with one a line (LOC_synset_mapping.txt);
    null: the sorted folders of the training list."""
    num_classes: PositiveInt | None = None
    """Outputs of the model; null: as many as there are classes."""
    train_label_file: ConfigPath | None = None
    """Labels of the training images, instead of label_source; see test_label_file."""
    test_label_file: ConfigPath | None = None
    """Labels of the test images, for the flat val folder: Kaggle's LOC_val_solution.csv, or a text file of
    one label a line (line i: i-th image by name) or of "file label" lines."""
    train_box_file: ConfigPath | None = None
    """Boxes of the training images in the XMLs' place, which `tfpipe index` puts into the index that training then
    needs: Kaggle's LOC_train_solution.csv, or imagenet_2012_bounding_boxes.csv of TensorFlow's scripts. An image
    without a row is whole."""
    test_box_file: ConfigPath | None = None
    """The same of the test images, e.g. LOC_val_solution.csv."""
    annotations: Literal["auto", "index", "xml", "lxml", "none"] = "auto"
    """"auto": the boxes are read from the index that `tfpipe index` made, if there is one that belongs to this
    config, otherwise from an image's XML where it has one. "index": the index must be there. "xml": always the XMLs,
    in graph; an XML written in an unusual way is refused by name. "lxml": always the XMLs, any XML at all, by lxml in
    Python, at the cost of the GIL: one XML at a time, at 0.4 of the rate. "none": nothing is read, every image is
    whole."""
    index: ConfigPath | None = None
    """Folder of the indexes (train-1a2b3c4d.index.parquet of train.txt: the digits tell lists of one name apart); null:
    train.index.parquet beside each filelist."""
    layout: Literal["auto", "ilsvrc", "voc"] | Layout = "auto"
    """How an image's path leads to its XML: a known layout, found by itself, or a rule."""
    on_error: Literal["raise", "skip"] = "raise"
    """What becomes of an image that cannot be read, parsed or decoded. "raise": the run stops and names it. "skip": it
    is left out, counted, and listed in the run's bad_files.txt."""
    max_bad_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """With `on_error` "skip": the share of an epoch's samples, or of a test pass's, that may be left out; more end the
    run."""
    stall_timeout_s: Annotated[float, Field(gt=0)] | None = 900.0
    """Seconds without a batch after which a rank names the files that it waits for and ends the run on all ranks; a
    quarter more where the step does not end, and four times as many of the first; null: it waits for ever."""
    memory_budget: PositiveInt | None = None
    """Bytes that the batches prepared ahead may take on this rank; null: as tf.data has it, half of the memory."""
    transform: str | None = None
    """A stage of your own, "package.module:function": from a batch's images and labels to the two in its place, as
    tensors, in graph, after everything else. What is on sys.path is found, and the directory the command is run in."""
    storage_delay_ms: Annotated[float, Field(ge=0)] = 0.0
    """For experiments: every image comes so much later, as it would from slow storage."""
    handler: str | None = None
    """Kept so that ALCF configs run; not used."""

    @field_validator("train_filelist")
    @classmethod
    def _there_is_data(cls, lists: Path | list[WeightedList] | None, info: ValidationInfo) -> Any:
        if not lists and info.data.get("source") is None:
            raise ValueError("is missing: Text file, one JPEG a line; or set data.source to what is packed")
        return lists

    @model_validator(mode="after")
    def _objects_need_boxes(self) -> "DataConfig":
        if self.label_source == "object":
            if self.annotations == "none":
                raise ValueError('label_source "object" needs the XML files; annotations is "none"')
            for name in ("crop", "test_crop"):
                if getattr(self, name) in ("center", "full"):
                    raise ValueError(
                        f'{name} "{getattr(self, name)}" makes one crop of an image, whose objects may be of '
                        'several classes; with label_source "object" use "boxes" or "random_resized"'
                    )
            if self.classes is None:
                raise ValueError(
                    'classes must be given (a list or a file) when label_source is "object", '
                    "so that the numbering is the same on every rank and in every run"
                )
        return self

    @model_validator(mode="after")
    def _native_is_bilinear(self) -> "DataConfig":
        if self.decoder == "native" and self.resize != "bilinear":
            raise ValueError(
                f'decoder "native" resizes "bilinear" only; resize "{self.resize}" needs "graph" or "auto"'
            )
        return self

    @model_validator(mode="after")
    def _kept_crops_stay_the_same(self) -> "DataConfig":
        if self.cache_stage == "crops":
            if self.cache is None:
                raise ValueError(
                    'cache_stage "crops" is of what `cache` keeps, which is null: set it to "memory" or a path'
                )
            if self.crop == "random_resized":
                raise ValueError(
                    'cache_stage "crops" keeps an image\'s crops as first cut, and crop "random_resized" draws others '
                    'each epoch: use cache_stage "files", or crop "boxes", "center" or "full"'
                )
        return self

    @model_validator(mode="after")
    def _box_files_need_the_index(self) -> "DataConfig":
        for name in ("train_box_file", "test_box_file"):
            if getattr(self, name) is not None and self.annotations in ("xml", "lxml"):
                raise ValueError(
                    f"{name} is read by `tfpipe index`, in the XMLs' place, and training needs that index; "
                    f'annotations is "{self.annotations}": use "auto" or "index", or leave {name} out'
                )
        return self

    @model_validator(mode="after")
    def _servers_run_no_python(self) -> "DataConfig":
        if self.service is not None:
            for key, differs, what in (
                ('decoder "native"', self.decoder == "native", 'use "graph", or "auto", which is "graph" there'),
                ("cache", self.cache is not None, "set it to null"),
                ('annotations "lxml"', self.annotations == "lxml", 'use "auto", "index" or "xml"'),
                ("storage_delay_ms", self.storage_delay_ms > 0, "set it to 0"),
                ('on_error "skip"', self.on_error == "skip", 'use "raise"'),
                ("source", self.source is not None, "packed data needs no decoding: set service to null"),
            ):
                if differs:
                    raise ValueError(
                        f"{key} needs Python, or memory, of the training process, which the processes of `service` do "
                        f"not have: {what}, or set service to null"
                    )
        return self

    @property
    def train_lists(self) -> list[Path]:
        """The training data's filelists: one, several that are mixed, or none."""
        if isinstance(self.train_filelist, list):
            return [each.path for each in self.train_filelist]
        return [] if self.train_filelist is None else [self.train_filelist]

    @property
    def native(self) -> bool:
        """Whether libraries decode, not TensorFlow."""
        auto = self.decoder == "auto" and self.resize == "bilinear" and self.service is None
        return self.decoder == "native" or auto

    def filelist_for(self, split: str) -> Path | list[WeightedList]:
        """The filelist of `split` ("train" or "test"), or those that are mixed; it must have one."""
        filelist = self.train_filelist if split == "train" else self.test_filelist
        assert filelist is not None, f"no {split} filelist"
        return filelist

    def box_file_for(self, split: str) -> Path | None:
        """The table that has the boxes of `split` ("train" or "test"); None: its XMLs have them."""
        return self.train_box_file if split == "train" else self.test_box_file

    def crop_for(self, split: str) -> str:
        """How `split` ("train" or "test") is cropped."""
        if split == "train":
            return self.crop
        if self.test_crop is not None:
            return self.test_crop
        if self.crop == "random_resized":
            return "center" if self.label_source == "directory" else "boxes"
        return self.crop
