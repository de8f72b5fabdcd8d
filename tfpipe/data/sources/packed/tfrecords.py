"""Loads TFRecords of ImageNet made by other tools: scans them once, then treats them like `tfpipe pack`'s output."""

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import IO

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.labels import class_table
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.runtime.op_errors import as_os_error
from tfpipe.data.sources.catalogs import Classes, catalog_of
from tfpipe.data.sources.data_files import RECORDS
from tfpipe.data.sources.packed.examples import HEAD, TAIL, parse_example
from tfpipe.data.sources.packed.manifest import PREFIX
from tfpipe.data.sources.packed.members import Member, size_of
from tfpipe.data.sources.packed.scan import ScannedSource, rows_of
from tfpipe.data.sources.packed.shards import COPY_AGAIN, Shards
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, open_file
from tfpipe.data.sources.rows import Rows, in_pixels
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.ledger import Ledger
from tfpipe.util.tensorflow_api import tf_record_random_reader

# End of a TFRecord file's name: the number of files, where it states one, and a suffix of RECORDS; or one of the two.
SUFFIX = "|".join(map(re.escape, RECORDS))
SHARD = re.compile(rf"(?:-\d+-of-(\d+)(?:{SUFFIX})?|{SUFFIX})$")
# Bytes of a record's length; what is added to its checksums.
LENGTH, MASK = 8, 0xA282EAD8


class TfRecords(ScannedSource):
    """ImageNet's TFRecords as TensorFlow's and the TPUs' scripts write them."""

    kind = "TFRecords"
    stored_as = "tfrecord"
    noun = "TFRecord file"

    def expected_names(self, split: str) -> str:
        return f"{PREFIX[split]}-*-of-*, as TFRecords of ImageNet are named, or one of *{' *'.join(RECORDS)}"

    def is_data(self, name: str) -> bool:
        return SHARD.search(name) is not None

    def require_files(self, split: str) -> Sequence[AnyPath]:
        shards = super().require_files(split)
        match = SHARD.search(shards[0].name)
        if match is not None and match[1] and len(shards) != int(match[1]):
            pattern = f"{shards[0].name[: match.start()]}-*-of-{match[1]}"
            raise ConfigError(f"{shards[0].parent}: {len(shards)} of {int(match[1])} shards {pattern} are there")
        return shards

    def scan(self, path: AnyPath, size: int, ledger: Ledger) -> Rows:
        return _scan_shard(path, size, self.config.turn)

    def load(self, split: str, world: World) -> tuple[Catalog, Shards]:
        """Loads a split from a scan of its records.

        Raises ConfigError if the TFRecords are missing, damaged or of another schema, or a label is not a class.
        """
        config = self.config
        if config.label_source == "object":
            raise ConfigError(
                'data.label_source "object" is not for TFRecords of ImageNet, whose boxes have no classes of their '
                'own: use "directory", or pack the files with tfpipe pack'
            )
        images = self.scan_split(split, world)
        rows = images.rows
        if not rows.names:
            raise ConfigError(f"the TFRecords in {self.name_of(split)} hold no {split} record{rows.ledger.lines()}")
        if config.classes is not None:
            classes = class_table(config, FileList.of([]))
        else:
            train = rows if split == "train" else self.scan_split("train", world).rows
            # If no record has a class name, classes are named by number.
            classes = tuple(train.labels.distinct() or map(str, range(1, int(train.more["number"].max()) + 1)))
        labels = _labels(rows, classes, self.name_of(split))
        # Boxes that have a label of their own are of another class than their image, whichever.
        others = Classes(classes, dict.fromkeys(rows.box_labels.names, len(classes)))
        catalog = catalog_of(config, split, rows, others, self.name_of(split), labels)
        return catalog, images.as_shards(labels, self.open_shards(images.shards))


def _labels(rows: Rows, classes: tuple[str, ...], folder: str) -> np.ndarray:
    """Returns int32 [n]: class numbers, by synset if a record has one, else from its label, which counts from 1."""
    numbers = rows.more["number"]
    synsets = rows.labels.values({name: number for number, name in enumerate(classes)})
    labels = np.where(rows.labels.numbers < 0, numbers - 1, synsets).astype(np.int32)
    unknown = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if unknown.size:
        first = int(unknown[0])
        from_0 = not numbers[unknown].all()
        hint = "image/class/label counts from 1, and 0 stands for the background: add 1; or " if from_0 else ""
        raise ConfigError(
            f"{unknown.size} of {len(labels)} records in {folder} have a label that is no class, e.g. "
            f'{rows.names[first]}: "{rows.labels.text(first) or ""}", {numbers[first]}; '
            f"{counted(len(classes), 'class')}: {', '.join(classes[:3])} ...; {hint}set data.classes to all of them"
        )
    return labels


def _scan_shard(path: AnyPath, size: int, turn: bool = False) -> Rows:
    """Returns the images of a shard, whose boxes are all relative or all in pixels; `turn` is as of size_of."""
    images, labels, numbers, sizes = list[Member](), list[str | None](), list[int](), list[Sequence[float]]()
    objects = list[tuple[int, np.ndarray, Sequence[str | None]]]()
    try:
        for start, data in _records(path, size):
            parsed, count = parse_example(data), len(images)
            name = parsed.filename or f"{path.name}:{count}"
            box_labels = [None if label == parsed.label else str(label) for label in parsed.box_labels]
            objects.append((count, parsed.boxes, box_labels))
            labels.append(parsed.synset or None)
            numbers.append(parsed.label)
            sizes.append(parsed.size)
            images.append(Member(name, start + data.index(parsed.contents), len(parsed.contents)))
    except ValueError as error:
        raise ValueError(f"record {len(images)}: {error}") from error
    stated = np.array(sizes, np.float32).reshape(-1, 2)
    rows = rows_of(path, images, labels, objects, stated, {"number": np.array(numbers, np.int64)})
    if not in_pixels(rows.boxes, "auto", lambda box: rows.names[int(rows.box_images[box])]):
        return rows._replace(sizes=np.ones_like(stated))
    with open_file(path) as file:
        return rows.with_sizes(lambda items: [size_of(file, images[item], turn) for item in items])


def _records(path: AnyPath, size: int) -> Iterator[tuple[int, bytes]]:
    """Yields the offset in bytes of each record's data, and the data.

    Raises OSError, or ValueError if the file ends within a record or a record differs from its checksums, as elsewhere.
    """
    at = 0
    with as_os_error(), path.open() if isinstance(path, UrlPath) else nullcontext() as file:
        read = tf_record_random_reader(str(path)).read if file is None else partial(_read, file)
        while at < size:
            try:
                data, end = read(at)
            except (tf.errors.DataLossError, IndexError, ValueError) as error:
                if compression := at == 0 and _compression(path):
                    raise ValueError(
                        f"it is compressed by {compression}, so that a record in it can only be read after all before "
                        "it: write it without the option compression_type"
                    ) from error
                raise ValueError(
                    f"it is damaged from byte {at} on, or ends at byte {size} within it, or the file is no TFRecord: "
                    f"{error}; {COPY_AGAIN}"
                ) from error
            yield at + HEAD, data
            at = end


def _compression(path: AnyPath) -> str | None:
    """Returns by what TensorFlow's writer compressed a file that is no TFRecord as it is; None if it is not."""
    with open_file(path) as file:
        start = file.read(2)
    # RFC 1952, 2.3.1; RFC 1950, 2.2: deflate, and a multiple of 31.
    is_zlib = len(start) == 2 and start[0] & 15 == 8 and int.from_bytes(start, "big") % 31 == 0
    return "GZIP" if start == b"\x1f\x8b" else "ZLIB" if is_zlib else None


def _read(file: IO[bytes], at: int) -> tuple[bytes, int]:
    """Reads the record from byte `at` on of a file behind a URL, as TensorFlow's reader those of other files.

    Returns its data and its end. Raises ValueError.
    """
    file.seek(at)
    (length,) = struct.unpack("<Q", _read_checked(file, LENGTH))
    return _read_checked(file, length), file.tell()


def _read_checked(file: IO[bytes], count: int) -> bytes:
    """Returns the next bytes, whose checksum follows them: a masked CRC-32C."""
    from google_crc32c import value

    data, checksum = file.read(count), file.read(TAIL)
    if len(data) < count or len(checksum) < TAIL:
        raise ValueError("truncated record")
    crc = value(data)
    if struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF) != checksum:
        raise ValueError("corrupted record")
    return data
