"""Reads and examines images and their XMLs; runs in many processes, without TensorFlow."""

import hashlib
import io
import os
import re
import struct
import warnings
from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple, TypeVar

from PIL import Image

from tfpipe.data.annotations.voc import NOTHING, VocObjects, find_objects
from tfpipe.data.images.damage import Limits, find_damage, kind_of_other, kind_of_picture
from tfpipe.data.images.headers import Header, header_of
from tfpipe.data.sources.remote.fetcher import FetchError
from tfpipe.prepare.index_rows import Images, RawAnnotations, tabulate
from tfpipe.tools.check.kinds import HUGE_PIXELS
from tfpipe.util.files import read_whole

A = TypeVar("A")
B = TypeVar("B")
DIGEST_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)
FILE_NAME = re.compile(rb"<filename>([^<]*)</filename>")
EXIF = b"Exif\0\0"
ORIENTATION = 0x0112


Outcome = bytes | Exception
"""The contents of a file, or why it could not be read."""


def attempt(read: Callable[[A], B], of: A) -> B | Exception:
    """Returns what `read(of)` returns, or the error that it raises."""
    try:
        return read(of)
    except (OSError, ValueError, FetchError) as error:
        return error


class Seen(NamedTuple):
    """The findings on one image, as far as possible without TensorFlow."""

    codes: set[str]  # keys of kinds.KINDS
    reason: str  # reason that training would stop; "" if it would not
    digest: bytes  # digest of its contents; NO_DIGEST if it has none
    size: int  # size of the image file in bytes
    damage: str  # what is wrong with its data, "" if nothing; TensorFlow then decides whether it can decode the image


class Batch(NamedTuple):
    """Images to examine, and the contents of those that are not in a file each."""

    images: Images
    contents: list[Outcome] | None = None  # of the images; None: `look` reads the files at their paths
    texts: list[Outcome | None] | None = None  # of the XMLs, None for one that does not exist; likewise


def look(batch: Batch, classes: dict[str, int], limits: Limits) -> list[Seen]:
    """Decodes each image within `limits` completely, and parses its XML; reads each file once."""
    images = batch.images
    contents = map(attempt, repeat(read_whole), images.paths) if batch.contents is None else batch.contents
    pictures = [_picture(file, path, limits) for file, path in zip(contents, images.paths, strict=True)]
    texts = map(attempt, repeat(_read_xml), images.annotations) if batch.texts is None else batch.texts
    notes = [_annotation(*note) for note in zip(texts, images.annotations, images.paths, strict=True)]
    missing = ["no xml" in note.codes for note, _ in notes]
    existing = ["" if gone else xml for xml, gone in zip(images.annotations, missing, strict=True)]
    images = images._replace(annotations=existing)
    rows = RawAnnotations()
    for (_, header), (_, objects), xml in zip(pictures, notes, images.annotations, strict=True):
        rows.add_header(header or Header(1, 1, 3, "JPEG"))
        if xml:
            rows.add_objects(objects)
    odd = tabulate(images, rows, classes)["odd"].to_pylist()
    return [_together(*parts) for parts in zip(pictures, notes, odd, strict=True)]


def _together(picture: tuple[Seen, Header | None], note: tuple[Seen, VocObjects], odd: list[str]) -> Seen:
    seen, header = picture
    about, _ = note
    # For an unreadable file other oddities do not matter.
    others = set(odd) if header and not about.reason else set()
    reason = "; ".join(filter(None, (seen.reason, about.reason)))
    return seen._replace(codes=seen.codes | about.codes | others, reason=reason)


def _read_xml(path: str) -> bytes | None:
    return read_whole(path) if path else None


def _picture(contents: Outcome, path: str, limits: Limits) -> tuple[Seen, Header | None]:
    nothing = Seen(set(), "", NO_DIGEST, 0, "")
    if isinstance(contents, Exception):
        gone = isinstance(contents, FileNotFoundError | NotADirectoryError) or getattr(contents, "missing", False)
        reason = getattr(contents, "strerror", None) or str(contents)
        return nothing._replace(codes={"missing" if gone else "unreadable"}, reason=reason), None
    if not contents:
        return nothing._replace(codes={"empty"}, reason="the file is empty"), None
    digest = hashlib.blake2b(contents, digest_size=DIGEST_BYTES).digest()
    seen = nothing._replace(digest=digest, size=len(contents))
    try:
        header = header_of(contents, path)
    except (ValueError, OSError) as error:
        kind, other = kind_of_picture(contents), kind_of_other(contents)
        if kind:
            huge = isinstance(error.__cause__, Image.DecompressionBombError)
            reason = str(error.__cause__) if huge else f"a {kind} without a whole header"
            return seen._replace(codes={"undecodable"}, reason=reason), None
        return seen._replace(codes={"no image"}, reason=f"it is {other}" if other else ""), None
    codes = {"huge"} if header.height * header.width > HUGE_PIXELS else set()
    if EXIF in contents[:4096] and _is_turned(contents):
        codes.add("orientation")
    excess = limits.excess(contents, header.height * header.width)
    if excess:
        return seen._replace(codes={"undecodable"}, reason=excess), None
    return seen._replace(codes=codes, damage=find_damage(contents) or ""), header


def _is_turned(contents: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of corrupt EXIF data
            with Image.open(io.BytesIO(contents)) as image:
                return image.getexif().get(ORIENTATION, 1) in range(2, 9)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, struct.error):
        return False  # nothing reads the EXIF data, and the pixels are not affected


def _annotation(text: Outcome | None, xml: str, image: str) -> tuple[Seen, VocObjects]:
    nothing = Seen(set(), "", NO_DIGEST, 0, "")
    if text is None:
        return nothing._replace(codes={"no xml"} if xml else set()), NOTHING
    try:
        if isinstance(text, Exception):
            raise text
        objects = find_objects(text, xml)
    except (OSError, ValueError, FetchError) as error:
        return nothing._replace(codes={"bad xml"}, reason=str(error)), NOTHING
    named = FILE_NAME.search(text)
    stem = os.path.splitext(os.path.basename(image))[0]
    codes = set()
    if named and os.path.splitext(os.path.basename(named[1].decode(errors="replace").strip()))[0] != stem:
        codes.add("file name")
    return nothing._replace(codes=codes), objects
