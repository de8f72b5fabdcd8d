"""Whether others read what `tfpipe pack` made: read_by_others.py FOLDER, in the peers' Python; of kind "original".

DALI on the CPU reads every record of the training shards, by an index of its own tfrecord2idx. Its images, labels and
boxes are compared with what tf.train.Example finds there, and with --models those of tf-models-official's decoder and
parser of classification data too.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from needs import need_modules

BATCH = 32
EDGES = [f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax")]


class Record(NamedTuple):
    """What is read of one."""

    image: bytes
    shape: tuple[int, ...]  # of the decoded image
    label: int
    boxes: list[list[float]]  # by edge
    box_labels: list[int]


def main(args: argparse.Namespace) -> None:
    """Prints a line for each reader.

    Raises:
        SystemExit: one reads something else.
    """
    need_modules(sys.executable, {"nvidia.dali", "tensorflow"}, "install packed/requirements.txt for it")
    shards = sorted(str(path) for path in args.folder.glob("train-*-of-*"))
    expected = list(by_example(shards))
    images, boxes = len(expected), sum(len(each.box_labels) for each in expected)
    for number, (one, other) in enumerate(zip(expected, by_dali(shards, images), strict=True)):
        for name, its, theirs in zip(Record._fields, one, other, strict=True):
            if its != theirs:
                raise SystemExit(f"DALI: record {number}: {name} {str(theirs)[:80]} instead of {str(its)[:80]}")
    print(f"DALI reads {images} records of {len(shards)} shards: images, labels and {boxes} boxes are the same")
    if args.models:
        bring_in(args.models)
        for number, (one, label) in enumerate(zip(expected, by_models(shards), strict=True)):
            if one.label != label:
                raise SystemExit(f"tf-models-official: record {number}: label {label} instead of {one.label}")
        print(f"tf-models-official reads {images} records: all decode, labels are the same")


def by_example(shards: list[str]) -> Iterator[Record]:
    """As TensorFlow's own message has them."""
    import tensorflow as tf

    for data in tf.data.TFRecordDataset(shards).as_numpy_iterator():
        features = tf.train.Example.FromString(data).features.feature

        def ints(name: str, features: dict = features) -> list[int]:
            return list(features[name].int64_list.value)

        yield Record(
            features["image/encoded"].bytes_list.value[0],
            (*ints("image/height"), *ints("image/width"), 3),
            *ints("image/class/label"),
            [list(features[edge].float_list.value) for edge in EDGES],
            ints("image/object/bbox/label"),
        )


def by_dali(shards: list[str], count: int) -> Iterator[Record]:
    """As DALI's reader of TFRecords has them."""
    from nvidia.dali import fn, pipeline_def, tfrecord, types
    from nvidia.dali.data_node import DataNode

    features = {
        "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        "image/object/bbox/label": tfrecord.VarLenFeature(tfrecord.int64, -1),
        **{edge: tfrecord.VarLenFeature(tfrecord.float32, 0.0) for edge in EDGES},
    }

    @pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)
    def records(indexes: list[str]) -> tuple[DataNode, ...]:
        read = fn.readers.tfrecord(path=shards, index_path=indexes, features=features)
        pixels = fn.decoders.image(read["image/encoded"], device="cpu", output_type=types.RGB)
        return (*(read[name] for name in features), pixels)

    with tempfile.TemporaryDirectory() as folder:
        indexes = [f"{folder}/{Path(shard).name}.idx" for shard in shards]
        tool = Path(sys.executable).with_name("tfrecord2idx")
        for shard, index in zip(shards, indexes, strict=True):
            subprocess.run([sys.executable, str(tool), shard, index], check=True)
        pipeline = records(indexes)
        pipeline.build()
        for start in range(0, count, BATCH):
            batch = [list(map(np.asarray, each)) for each in pipeline.run()]
            for image, label, box_labels, *edges, pixels in list(zip(*batch, strict=True))[: count - start]:
                boxes = [edge.tolist() for edge in edges]
                yield Record(image.tobytes(), pixels.shape, int(label[0]), boxes, box_labels.tolist())


def bring_in(folder: Path) -> None:
    """Makes tf-models-official's modules importable, without all that its packages import when they are whole."""
    sys.path.append(str(folder))
    for name in ("official.core", "official.modeling", "official.vision", "official.vision.configs"):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]


def by_models(shards: list[str]) -> Iterator[int]:
    """The labels of tf-models-official's images for evaluation."""
    import tensorflow as tf
    from official.vision.dataloaders import classification_input

    decoder = classification_input.Decoder()
    parse = classification_input.Parser(output_size=[224, 224], num_classes=1001).parse_fn(is_training=False)
    dataset = tf.data.TFRecordDataset(shards).map(decoder.decode).map(parse)
    for image, label in dataset.as_numpy_iterator():
        if image.shape != (224, 224, 3):
            raise SystemExit(f"tf-models-official: an image of {image.shape}")
        yield int(label)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--models", type=Path, help="pip install --no-deps --target FOLDER tf-models-official tf_keras gin-config"
    )
    main(parser.parse_args())
