"""Loads TFRecords of ImageNet made by other tools: scans them once, then treats them like `tfpipe pack`'s output."""

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import tensorflow as tf
from tensorflow.python.lib.io.tf_record import tf_record_random_reader

from tfpipe.data.catalog.labels import class_table
from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.catalogs import Classes, catalog_of
from tfpipe.data.sources.data_files import RECORDS, check_files, data_files
from tfpipe.data.sources.packed.examples import HEAD, TAIL, Parsed, is_sound, masked, parse_example
from tfpipe.data.sources.packed.manifest import PREFIX
from tfpipe.data.sources.packed.members import Member
from tfpipe.data.sources.packed.scan import ScannedSource, rows_of
from tfpipe.data.sources.packed.shards import COPY_AGAIN, Shards
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, open_file
from tfpipe.data.sources.rows import Rows
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

# End of a TFRecord file's name: the number of files, where it states one, and a suffix of RECORDS; or one of the two.
SUFFIX = "|".join(map(re.escape, RECORDS))
SHARD = re.compile(rf"(?:-\d+-of-(\d+)(?:{SUFFIX})?|{SUFFIX})$")
ReadData = Callable[[int, int], bytes | None]


class TfRecords(ScannedSource):
    """ImageNet's TFRecords as TensorFlow's and the TPUs' scripts write them."""

    kind = "TFRecords"
    stored_as = "tfrecord"

    def shards_of(self, split: str) -> Sequence[AnyPath]:
        """Returns the TFRecord files of `split`, sorted: train-00000-of-01024 ...; see data_files."""
        return data_files(self.about, split, self.config.remote, lambda name: SHARD.search(name) is not None)

    def checked(self, split: str) -> Sequence[AnyPath]:
        shards = self.shards_of(split)
        expected = f"{PREFIX[split]}-*-of-*, as TFRecords of ImageNet are named, or one of *{' *'.join(RECORDS)}"
        check_files(shards, self.about, split, "TFRecord file", expected)
        match = SHARD.search(shards[0].name)
        if match is not None and match[1] and len(shards) != int(match[1]):
            pattern = f"{shards[0].name[: match.start()]}-*-of-{match[1]}"
            raise ConfigError(f"{shards[0].parent}: {len(shards)} of {int(match[1])} shards {pattern} are there")
        return shards

    def scan(self, path: AnyPath, size: int, ledger: Ledger) -> Rows:
        del ledger
        return _scan_shard(path, size)

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
        images = self.scanned(split, world)
        rows = images.rows
        if not rows.names:
            raise ConfigError(f"the TFRecords in {self.display_name} hold no record of the {split} data")
        if config.classes is not None:
            classes = class_table(config, FileList.of([]))
        else:
            train = rows if split == "train" else self.scanned("train", world).rows
            # If no record has a class name, classes are named by number.
            classes = tuple(train.labels.distinct() or map(str, range(1, int(train.more["number"].max()) + 1)))
        labels = _labels(rows, classes, self.display_name)
        # Boxes that have a label of their own are of another class than their image, whichever.
        others = Classes(classes, dict.fromkeys(rows.box_labels.names, len(classes)))
        catalog = catalog_of(config, split, rows, others, self.display_name, labels)
        return catalog, images.as_shards(labels, self.opened(images.shards))


def _labels(rows: Rows, classes: tuple[str, ...], folder: str) -> np.ndarray:
    """Returns int32 [n]: class numbers, by synset if a record has one, else from its label, which counts from 1."""
    numbers = rows.more["number"]
    synsets = rows.labels.values({name: number for number, name in enumerate(classes)})
    labels = np.where(rows.labels.numbers < 0, numbers - 1, synsets).astype(np.int32)
    unknown = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if unknown.size:
        first = int(unknown[0])
        raise ConfigError(
            f"{unknown.size} of {len(labels)} records in {folder} have a label that is no class, e.g. "
            f'{rows.names[first]}: "{rows.labels.text(first) or ""}", {numbers[first]}; the {len(classes)} classes are '
            f"{', '.join(classes[:3])} ...; set data.classes to a list or file of all of them"
        )
    return labels


def _scan_shard(path: AnyPath, size: int) -> Rows:
    images, labels, numbers = list[Member](), list[str | None](), list[int]()
    objects = list[tuple[int, np.ndarray, Sequence[str | None]]]()
    for count, (start, data) in enumerate(_records(path, size)):
        parsed = _parse(data, path, count)
        name = parsed.filename or f"{path.name}:{count}"
        images.append(Member(name, start + data.index(parsed.contents), len(parsed.contents)))
        labels.append(parsed.synset or None)
        numbers.append(parsed.label)
        box_labels = [None if label == parsed.label else str(label) for label in parsed.box_labels]
        objects.append((count, parsed.boxes, box_labels))
    return rows_of(path, images, labels, objects, more={"number": np.array(numbers, np.int64)})


def _parse(data: bytes, path: AnyPath, count: int) -> Parsed:
    try:
        return parse_example(data)
    except ValueError as error:
        raise ValueError(f"record {count} of {path}: {error}") from error


def _records(path: AnyPath, size: int) -> Iterator[tuple[int, bytes]]:
    """Yields the offset in bytes of each record's data, and the data.

    Raises ValueError if the file ends within a record, or a record differs from its checksums, as in any other file.
    """
    at = count = 0
    with open_file(path) as file:
        read = _remote_data(file) if isinstance(path, UrlPath) else _local_data(path)
        while file.seek(at) == at and (head := file.read(HEAD)):
            if len(head) == HEAD and not is_sound(head):
                raise ValueError(
                    f"record {count} of {path}: its head at byte {at} does not match its checksum: it was damaged, or "
                    f"the file is no TFRecord; {COPY_AGAIN}"
                )
            length = struct.unpack_from("<Q", head)[0] if len(head) == HEAD else size
            end = at + HEAD + length + TAIL
            if end > size:
                raise ValueError(
                    f"record {count} of {path}: the shard ends at byte {size}, within this record of byte {at}; "
                    f"{COPY_AGAIN}"
                )
            data = read(at, length)
            if data is None:
                raise ValueError(
                    f"record {count} of {path}: its {length} bytes from byte {at + HEAD} on do not match their "
                    f"checksum: they were damaged; {COPY_AGAIN}"
                )
            yield at + HEAD, data
            at = end
            count += 1


def _local_data(path: Path) -> ReadData:
    """Returns what reads the data of a record, by its offset and length; None for data unlike its checksum."""
    reader = tf_record_random_reader(str(path))

    def read(at: int, length: int) -> bytes | None:
        del length
        try:
            return reader.read(at)[0]
        except tf.errors.DataLossError:
            return None

    return read


def _remote_data(file: IO[bytes]) -> ReadData:
    """Returns the same of a file behind a URL, which TensorFlow cannot read; `file` stands after the record's head."""
    from google_crc32c import value

    def read(at: int, length: int) -> bytes | None:
        del at
        data, checksum = file.read(length), file.read(TAIL)
        return data if struct.unpack("<I", checksum)[0] == masked(value(data)) else None

    return read
