"""The config's `data` section: how filelists, packed or remote data become batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tfpipe.config.augment import Augment
from tfpipe.config.by_epoch import BatchSize, CropSize, at_epoch, by_epoch
from tfpipe.config.conflicts import DATA, check, conflicts
from tfpipe.config.data_sections import (
    LISTS,
    Layout,
    Mix,
    Normalize,
    Parallel,
    RandomResizedCrop,
    Remote,
    WeightedList,
    Workers,
)
from tfpipe.config.data_source import SourceConfig
from tfpipe.config.section import SIZE, ConfigPath, Form, Kernel, Section, Seed, Size
from tfpipe.config.targets import OF_OBJECTS, Targets, TargetsConfig
from tfpipe.config.views import SEED_STRIDE, View


def _is_level(level: int) -> int:
    if level == 0:
        raise ValueError("received 0; accepted: 1, 2 ... below the data's folder, -1, -2 ... from an image's own up")
    return level


# Of a key whose null stands for a value that depends on `targets`.
DEFAULT = Field(validate_default=True)
WHERE = "data.source.where"
# Level of the rest of a letterbox.
LETTERBOX = 114


class DataConfig(Section):
    """The input pipeline, from filelists to batches."""

    source: SourceConfig | None = None
    """Data that no filelist names, e.g. class folders or packed data; null: the filelists' files."""
    train_filelist: Annotated[ConfigPath | list[WeightedList] | None, Field(validate_default=True), LISTS] = None
    """Text file, one image a line; a relative path is resolved against the list's folder. A folder of class folders,
    CLASS/*.jpg, is listed at each start. Several lists, each {"path": FILE, "weight": NUMBER}, are mixed in proportion
    to their weights. null: `source` has the samples."""
    test_filelist: ConfigPath | None = None
    """Filelist or folder of the test data; null: no test pass."""
    remote: Remote = Remote()
    """How to fetch data behind URLs."""
    service: Workers = None
    """Worker processes (tf.data service) that read, decode and crop: their number, of which each rank starts and ends
    so many; or the addresses of running ones, each "host:5000", as `tfpipe serve worker` prints it. A worker that sends
    nothing for 120 s counts as dead. null: this process does the work."""
    batch_size: BatchSize = 64
    """Crops per batch and rank; or by epoch, [[0, 256], [12, 128]]. Test batches have the last size."""
    shuffle_buffer: NonNegativeInt = 200_000
    """Above 1: the whole epoch is shuffled, at no cost in memory. 0 or 1: the order of the list."""
    reshuffle_each_iteration: bool = True
    """Shuffles every epoch differently; false repeats the first epoch's order."""
    scope: Literal["global", "shard"] = "global"
    """"global": shuffles the whole list, then distributes it over the ranks; the order does not depend on their number.
    "shard": each rank shuffles only its own share of the list, which may be a copy local to its node."""
    unit: Literal["image", "box"] = "image"
    """The sample that training shuffles. "image": the crops of an image follow each other. "box": each box is a sample
    of its own, so an image's crops are spread over the epoch; all XMLs are read at the start."""
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Share of each class in the training samples, by its name, relative to the other classes: {"cat": 3, "dog": 1}.
    "balanced": the same share for each. Rare samples come several times in an epoch, whose length stays the same. null:
    each class has as many as it has samples."""
    sample_weights: ConfigPath | None = None
    """Text file of one number per training image, in their order: how often it comes, relative to the others, or with
    `class_weights` to the others of its class. null: alike, or as `source.columns.weight` says."""
    repeats: PositiveInt = 1
    """Visits of each training sample that follow each other, each with another augmentation (Hoffer et al. 2020,
    Augment your batch; DeiT's RASampler): an epoch has this many times as many samples. Test data are not repeated."""
    seed: Seed = 0
    """Seed of the order and of all augmentation."""
    num_parallel_readers: PositiveInt | Literal["auto"] = "auto"
    """Images read at once, and concurrent decode calls; "auto": see `parallel`. 1 also means one thread: serial."""
    parallel: Parallel = Parallel()
    """The same for each stage."""
    prefetch_buffer_size: NonNegativeInt | Literal["auto"] = "auto"
    """Batches prefetched. The old misspelling prefectch_buffer_size is accepted."""
    threads: PositiveInt | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Threads of the input pipeline on this rank, not counting those that wait for storage; below 1: a share of the
    CPUs that this rank may use, which leaves the others to a model that trains on CPUs. null: as many as these CPUs."""
    cache: Literal["memory"] | ConfigPath | None = None
    """Caches the encoded image files and XMLs when they are first read, so that later epochs do not touch slow storage;
    every epoch decodes them again. "memory": in each rank's memory, until the run ends. A path: in a folder that the
    ranks of a host share, meant for a disk local to the node; later runs reuse it, and read again what has another size
    or time of change by then. With scope "global" the whole list gets cached, in memory by every rank, with "shard" the
    ranks' shares; training does not start if that does not fit. null: every epoch reads from the source."""
    crop_image_size: CropSize = (224, 224)
    """Height and width of a crop, in pixels, or the side of a square; a crop has less than 2^29 bytes. Or by epoch, for
    training crops that grow, [[0, 128], [6, 192], [12, 224]]: from epoch 6, counted from 0, they are 192x192;
    [[0, [128, 160]], ...] are other shapes. `tfpipe train` and the Loaders follow it."""
    test_crop_image_size: Annotated[Size | None, SIZE] = None
    """The same for test crops, which may be larger than those in training (Touvron et al. 2019, Fixing the train-test
    resolution discrepancy); null: the last of `crop_image_size`."""
    resize: Kernel = "bilinear"
    """Kernel that resizes a crop. "bilinear": between the nearest pixels, without antialiasing: what tf.image, OpenCV
    and Keras' directory loader do, and the weights of keras.applications were trained with. "antialias": bilinear with
    antialiasing, Pillow's BILINEAR: what torchvision, DALI and jax.image do. "bicubic": Pillow's BICUBIC, antialiased
    too, as in timm. "area": the mean over the area that a pixel covers; where a crop is enlarged, nearly the nearest
    pixel. Which to choose: docs/crops.md."""
    decoder: Literal["native", "graph"] = "native"
    """Decoder of JPEGs. "native": tfpipe's own, in C, which decodes only the parts of an image that its crops need.
    "graph": TensorFlow's ops, which are slower. Both run without the GIL, and give the same pixels."""
    max_pixels: PositiveInt = 178_956_970
    """Most pixels of an image: a larger one is an error that names it, before it is decoded. A file of 333 bytes can
    state half a billion, which take 10 seconds and 3 GB. The default is as many as TensorFlow decodes in colour."""
    exif: Literal["ignore", "apply"] = "ignore"
    """Orientation that a camera wrote into a photograph's EXIF. "ignore": pixels are as they are stored, as ImageNet's
    boxes were drawn on them; the log says when a JPEG comes that EXIF turns. "apply": images are turned, as viewers
    and most tools for annotation do: sizes, boxes and masks are those of the turned image."""
    num_channels: Literal[1, 3] = 3
    """1: grayscale, 3: RGB."""
    dtype: Literal["uint8", "float16", "bfloat16", "float32"] = "uint8"
    """Type of the images: uint8 in [0, 255], or a float type in [0, 1]."""
    normalize: Normalize | None = None
    """Normalises images of a float type, in the pass that makes the floats; null: they stay in [0, 1]. A model of
    `tfpipe train` has the normalisation of its own anyway, on the device."""
    mix: Mix | None = None
    """Mixes the crops of each training batch, and their labels; null: neither."""
    targets: Targets = TargetsConfig()
    """The labels that come with each crop; a text is short for its `kind`: "boxes" for {"kind": "boxes"}."""
    crop: Annotated[Literal["boxes", "random_resized", "center", "full"], DEFAULT] = None  # type: ignore[assignment]
    """"boxes": one crop per object, or the whole image if it has no annotation. "random_resized": a random
    crop, torchvision's RandomResizedCrop. "center": the middle. "full": the whole image. null: "boxes", or "full" with
    `targets` "boxes", "labels" and "mask"."""
    test_crop: Literal["boxes", "center", "full"] | None = None
    """The same for test data, which is never augmented; null: as in training, but "center" instead of "random_resized"
    (or "boxes" if labels come from objects)."""
    random_resized: RandomResizedCrop = RandomResizedCrop()
    """Parameters of "random_resized"."""
    fit: Literal["stretch", "letterbox"] | Annotated[int, Field(ge=0, le=255)] = "stretch"
    """How an image becomes a crop "full". "stretch": resized to the crop's height and width. "letterbox": resized with
    its aspect ratio to the largest size that fits, into the crop's middle; the rest is YOLO's gray, 114 in all
    channels, or the level that is given in the place of "letterbox"."""
    center_fraction: Annotated[float, Field(ge=0.001, le=1)] = 0.875
    """Share of the image's shorter side in a "center" crop, timm's crop_pct: the image is resized until that side has
    crop_image_size / center_fraction pixels, rounded down, and its middle is cut out. 224 of 256 pixels is 0.875."""
    flip: bool | None = None
    """Mirrors half of the training crops; null: only with "random_resized"."""
    augment: Augment = []
    """Random changes of the training crops, in this order: torchvision's, by their names and with their arguments, each
    with a probability `p` besides. All draws are made from `seed`, the crop's position in the stream and the number of
    the step, so every epoch has others, and a resumed run the same."""
    views: Annotated[list[View], Form('a list of {"count": NUMBER, "crop": ..., "size": ..., "augment": ...}')] = []
    """Several crops of each training image, e.g. SimCLR's two or DINO's ten, made in one pass over its file; []: one.
    A batch's images are then a tuple, a tensor for each view. The first view is what the same config without views
    gives, with that view's keys; the others are drawn independently of it. Test data are as without views."""
    label_source: Annotated[Literal["directory", "object"], DEFAULT] = None  # type: ignore[assignment]
    """"directory": the image's folder (n02437312/...). "object": each object's name in the XML. null: "directory", or
    "object" with `targets` "boxes" and "labels"."""
    class_level: Annotated[int, AfterValidator(_is_level)] | None = None
    """Level of the folders that are the classes: 1, 2 ... below the data's folder or its folder train; -1, -2 ... from
    an image's own folder up. null: -1 for the lines of filelists, else 1, or the first level at which folders part."""
    classes: Annotated[list[str] | ConfigPath | None, Form("a list of class names")] = None
    """Class names in the order of their numbers, or a file with one per line (LOC_synset_mapping.txt), or YOLO's
    data.yaml; null: the sorted folders of the training list. Class folders of other names are left out and counted."""
    num_classes: PositiveInt | None = None
    """Outputs of the model; null: the number of classes."""
    train_label_file: ConfigPath | None = None
    """Labels of the training images, instead of label_source; see test_label_file."""
    test_label_file: ConfigPath | None = None
    """Labels of the test images, for the flat val folder: Kaggle's LOC_val_solution.csv, or a text file of
    one label per line (line i: i-th image by name) or of "file label" lines."""
    train_box_file: ConfigPath | None = None
    """Table of the training images' boxes, used instead of the XMLs: Kaggle's LOC_train_solution.csv, or
    imagenet_2012_bounding_boxes.csv of TensorFlow's scripts. `tfpipe index` reads it into the index, which training
    then requires. An image without a row is used whole. With `source` "archive" it may also be a tar file of XMLs,
    plain or .tar.gz (ILSVRC2012_bbox_train_v2.tar.gz), and is read at the first start."""
    test_box_file: ConfigPath | None = None
    """The same for the test images, e.g. LOC_val_solution.csv."""
    annotations: Literal["auto", "index", "xml", "none"] = "auto"
    """"auto": boxes come from the index that `tfpipe index` wrote, if there is one for this config, otherwise from an
    image's XML, if it has one. "index": the index must exist. "xml": always the XMLs. "none": no boxes, every image is
    used whole."""
    index: ConfigPath | None = None
    """Folder of the indexes (train-1a2b3c4d.index.parquet for train.txt; the digits distinguish lists of the same
    name); null: train.index.parquet next to each filelist."""
    layout: Literal["auto", "ilsvrc", "voc", "yolo"] | Layout = "auto"
    """How an image's path maps to its XML: a known layout, or a rule. "auto" detects "ilsvrc" and "voc". "yolo": text
    files instead, labels/a/1.txt for images/a/1.jpg, by the rule {"images": "images", "annotations": "labels",
    "format": "yolo"}."""
    on_error: Literal["raise", "skip"] = "raise"
    """Handling of an image that cannot be read, parsed or decoded. "raise": the run stops and names it. "skip": it is
    left out, counted, and listed in the run's bad_files.txt."""
    max_bad_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """With `on_error` "skip": largest share of the samples of an epoch or a test pass that may be left out; the run
    ends if there are more."""
    stall_timeout_s: Annotated[float, Field(gt=0)] | None = 900.0
    """Seconds without a batch after which a rank names the files that it waits for and ends the run on all ranks. A
    training step that does not end gets 1.25 times as long, the first one 4 times, and both 20 s more; null: no
    limit."""
    transform: str | None = None
    """A last stage of your own, "package.module:function": maps a batch's images and labels, as graph tensors, to new
    ones. The module is imported from sys.path or the current directory."""

    @field_validator("crop", "label_source", mode="before")
    @classmethod
    def _default(cls, value: str | None, info: ValidationInfo) -> str:
        """Returns the value that stands for null with these targets."""
        assert info.field_name is not None, "it is of two fields"
        return info.data.get("targets", TargetsConfig()).defaults[info.field_name] if value is None else value

    @field_validator("train_filelist")
    @classmethod
    def _there_is_data(cls, lists: Path | list[WeightedList] | None, info: ValidationInfo) -> Any:
        # A source that is not valid is not in info.data, and has an error of its own.
        if not lists and info.data.get("source", ...) is None:
            raise ValueError(
                "is missing: Text file, one image a line; or set data.source, e.g. to "
                '{"kind": "folders", "path": "root/"} for class folders'
            )
        return lists

    @model_validator(mode="after")
    def _settings_agree(self) -> "DataConfig":
        check(conflicts(self, DATA, "data."))
        return self

    @property
    def train_lists(self) -> list[Path]:
        """The training data's filelists: one, several of a mixture, or none."""
        if isinstance(self.train_filelist, list):
            return [entry.path for entry in self.train_filelist]
        return [] if self.train_filelist is None else [self.train_filelist]

    @property
    def native(self) -> bool:
        """True if the decoder is the native one, False if TensorFlow's ops are."""
        return self.decoder != "graph"

    @property
    def turn(self) -> bool:
        """True if images are turned as EXIF says."""
        return self.exif == "apply"

    @property
    def stored_exif(self) -> dict[str, str]:
        """`exif`, by its key, for stored data that depend on it; empty for "ignore", which older ones do not name."""
        return {"data.exif": self.exif} if self.turn else {}

    def stored_where(self, split: str) -> dict[str, Any]:
        """Returns a split's `source.where`, by its key, for what is made of these rows; nothing for all rows."""
        return {WHERE: self.source.where_for(split)} if self.source is not None and self.source.where else {}

    @property
    def stored_resize(self) -> str:
        """Name of `resize` in stored data: "bicubic" alone is in those of older versions, which did not antialias."""
        return "bicubic, antialiased" if self.resize == "bicubic" else self.resize

    @property
    def flips(self) -> bool:
        """Whether half of the training crops are mirrored."""
        return self.crop == "random_resized" if self.flip is None else self.flip

    @property
    def by_view(self) -> tuple["DataConfig", ...]:
        """The config of each view, without `views`, each with another seed; this one alone if there are no views."""
        if not self.views:
            return (self,)
        settings = [view.settings for view in self.views for _ in range(view.count)]
        seeds = [{"views": [], "seed": self.seed + number * SEED_STRIDE} for number in range(len(settings))]
        return tuple(self.model_copy(update=view_keys | seed) for view_keys, seed in zip(settings, seeds, strict=True))

    def letterbox_for(self, split: str) -> int | None:
        """Returns the level of the rest of a letterbox in the crops of `split`; None if they are no letterboxes."""
        if self.fit == "stretch" or self.crop_for(split) != "full":
            return None
        return LETTERBOX if self.fit == "letterbox" else self.fit

    @property
    def shapes(self) -> str:
        """Height, width and channels of the training crops, e.g. "224x224x3"; of the views, each once."""
        sizes = dict.fromkeys(view.crop_image_size for view in self.by_view)
        return ", ".join(f"{height}x{width}x{self.num_channels}" for height, width in sizes)

    @property
    def phases(self) -> tuple[tuple[int, "DataConfig"], ...]:
        """The configs of training, each with its first epoch; in each, `crop_image_size` and `batch_size` are fixed."""
        sizes = (*by_epoch(self.crop_image_size), *by_epoch(self.batch_size))
        return tuple((epoch, self.at(epoch)) for epoch in sorted({epoch for epoch, _ in sizes}))

    @property
    def has_phases(self) -> bool:
        """Whether the size of crops or batches changes with the epochs."""
        return len(self.phases) > 1

    def at(self, epoch: int) -> "DataConfig":
        """Returns the config of training epoch `epoch`, from 0; itself if all are alike."""
        names = ("crop_image_size", "batch_size")
        plain = {name: at_epoch(getattr(self, name), epoch) for name in names}
        changed = {name: value for name, value in plain.items() if len(by_epoch(getattr(self, name))) > 1}
        return self.model_copy(update=changed) if changed else self

    def for_split(self, split: str) -> "DataConfig":
        """Returns the config of `split` ("train" or "test"): test data have one size and view, training data all."""
        if split == "train" or (self.test_crop_image_size is None and not self.has_phases and not self.views):
            return self
        last = self.phases[-1][1]
        size = self.test_crop_image_size or last.crop_image_size
        return last.model_copy(update={"crop_image_size": size, "test_crop_image_size": None, "views": []})

    def filelist_for(self, split: str) -> Path | list[WeightedList]:
        """Returns the filelist of `split` ("train" or "test"), or the lists of a mixture; `split` must have one."""
        filelist = self.train_filelist if split == "train" else self.test_filelist
        assert filelist is not None, f"no {split} filelist"
        return filelist

    def box_file_for(self, split: str) -> Path | None:
        """Returns the box table of `split` ("train" or "test"); None if the boxes are in its XMLs."""
        return self.train_box_file if split == "train" else self.test_box_file

    def label_file_for(self, split: str) -> Path | None:
        """Returns the label file of `split` ("train" or "test"); None if labels come from `label_source`."""
        return self.train_label_file if split == "train" else self.test_label_file

    def crop_for(self, split: str) -> str:
        """Returns the crop mode of `split` ("train" or "test"), of the first view if there are several."""
        if split == "train":
            return self.by_view[0].crop
        if self.test_crop is not None:
            return self.test_crop
        if self.crop == "random_resized":
            return self.targets.test_crop or ("center" if self.label_source == "directory" else "boxes")
        return self.crop

    def uses_boxes(self, split: str) -> bool:
        """Returns whether the crops of `split` ("train" or "test"), or what comes with them, depend on boxes."""
        crops = {view.crop_for(split) for view in self.by_view}
        return not crops.isdisjoint(("boxes", "random_resized")) or self.targets.kind in OF_OBJECTS


def unused_settings(data: DataConfig) -> Iterator[str]:
    """Yields a message for each setting that has no effect, though it would do no harm."""
    fields, views = type(data).model_fields, data.by_view
    crops = {*(view.crop for view in views), data.crop_for("test")}
    for name, crop in (("random_resized", "random_resized"), ("center_fraction", "center"), ("fit", "full")):
        if getattr(data, name) != fields[name].default and crop not in crops:
            yield f'data.{name} has no effect: it is for data.crop "{crop}", and data.crop is "{data.crop}"'
    has_box_files = data.train_box_file or data.test_box_file
    for name, values in (("layout", ("auto",)), ("annotations", ("auto", "none"))):
        if data.source is not None and getattr(data, name) not in values and not has_box_files:
            yield f"data.{name} has no effect: it is for images of filelists, and data.source says where its boxes are"
    if data.max_bad_fraction != fields["max_bad_fraction"].default and data.on_error == "raise":
        yield 'data.max_bad_fraction has no effect: it is for data.on_error "skip"'
    for number, (crop, view) in enumerate((view.crop or data.crop, view) for view in data.views):
        if view.random_resized is not None and crop != "random_resized":
            name = f"data.views[{number}]"
            yield f'{name}.random_resized has no effect: it is for "random_resized", and {name}.crop is "{crop}"'
    if data.source is not None and data.source.test_seed and data.source.test_share is None:
        yield "data.source.test_seed has no effect: it is for data.source.test_share"
    for name in ("flip", "augment"):
        if getattr(data, name) and data.views and all(getattr(view, name) is not None for view in data.views):
            yield f"data.{name} has no effect: each of data.views has its own"
