"""Reads and examines images and their XMLs.

`look` runs in many processes, without TensorFlow; `try_in_tensorflow` decides, as the pipeline would, about the
images that libjpeg-turbo doubts.
"""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import is_stated
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.objects import NOTHING, Objects
from tfpipe.data.images.damage import JPEG, describe, excess, find_damage, kind_of_other, kind_of_picture
from tfpipe.data.images.headers import Header, check_turned, header_of
from tfpipe.data.sources.remote.fetcher import FetchError
from tfpipe.prepare.index_rows import Images, RawAnnotations, tabulate
from tfpipe.tools.check.result import HUGE_PIXELS
from tfpipe.util.files import read_whole
from tfpipe.util.progress import progress
from tfpipe.util.resources import usable_cpus

A = TypeVar("A")
B = TypeVar("B")
DIGEST_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)
FILE_NAME = re.compile(rb"<filename>([^<]*)</filename>")
# Parts of the messages on a truncated JPEG: damage.CUT_OFF, and Pillow's.
CUT_OFF = ("premature end", "truncated")

Outcome = bytes | Exception
"""The contents of a file, or why it could not be read."""


def attempt(read: Callable[[A], B], of: A) -> B | Exception:
    """Returns the result of `read(of)`, or the error that it raises."""
    try:
        return read(of)
    except (OSError, ValueError, FetchError) as error:
        return error


class Findings(NamedTuple):
    """The findings on one image, as far as possible without TensorFlow."""

    codes: set[str]  # keys of result.KINDS
    reason: str = ""  # reason that training would stop; "" if it would not
    digest: bytes = NO_DIGEST  # digest of its contents; NO_DIGEST if it has none
    size: int = 0  # size of the image file in bytes
    damage: str = ""  # what is wrong with its data, "" if nothing; TensorFlow then decides whether it can decode it


class Note(NamedTuple):
    """The findings on the XML of an image."""

    code: str = ""  # key of result.KINDS, "" for none
    reason: str = ""  # reason that training would stop; "" if it would not
    objects: Objects = NOTHING


class Chunk(NamedTuple):
    """Images to examine, and the contents of those that are not in a file each."""

    images: Images
    contents: list[Outcome] | None = None  # of the images; None: `look` reads the files at their paths
    texts: list[Outcome | None] | None = None  # of the XMLs, None for one that does not exist; likewise
    stated: np.ndarray | None = None  # float32 [n, 2]: stated heights and widths, as in Catalog


def look(chunk: Chunk, classes: dict[str, int], most_pixels: int) -> list[Findings]:
    """Decodes each image of at most `most_pixels` completely, and parses its XML; reads each file once."""
    images = chunk.images
    contents = chunk.contents or [attempt(read_whole, path) for path in images.paths]
    files = zip(contents, images.paths, strict=True)
    pictures = [_picture(file, path, most_pixels, images.turn) for file, path in files]
    texts = chunk.texts or [attempt(read_whole, path) if path else None for path in images.annotations]
    parts = zip(texts, images.annotations, images.paths, pictures, strict=True)
    parse = partial(parse_annotation, form=images.form, classes=len(classes))
    notes = [_annotation(text, xml, path, header, parse) for text, xml, path, (_, header) in parts]
    gone = [note.code == "no xml" for note in notes]
    images = images._replace(annotations=["" if no else xml for xml, no in zip(images.annotations, gone, strict=True)])
    rows = RawAnnotations()
    for (_, header), note in zip(pictures, notes, strict=True):
        rows.add(header or Header(1, 1, 3, "JPEG"), note.objects)
    odd = tabulate(images, rows, classes)["odd"].to_pylist()
    seen = [_merge_findings(*parts) for parts in zip(pictures, notes, odd, strict=True)]
    if chunk.stated is None:
        return seen
    headers = [header for _, header in pictures]
    return list(map(_with_stated, seen, chunk.stated.tolist(), headers, images.paths))


def _with_stated(seen: Findings, stated: list[float], header: Header | None, path: str) -> Findings:
    """Adds what is wrong with the height and width that a table or shards state for an image."""
    if header is None or not is_stated(np.array([stated]))[0]:
        return seen
    try:
        check_turned(stated, header[:2], path, header.orientation > 4)
    except ValueError as error:
        reason = "; ".join(filter(None, (seen.reason, str(error))))
        return seen._replace(codes=seen.codes | {"size turned"}, reason=reason)
    return seen if stated == list(header[:2]) else seen._replace(codes=seen.codes | {"size differs"})


def _merge_findings(picture: tuple[Findings, Header | None], note: Note, odd: list[str]) -> Findings:
    seen, header = picture
    # For an unreadable file other oddities do not matter.
    others = set(odd) if header and not note.reason else set()
    reason = "; ".join(filter(None, (seen.reason, note.reason)))
    return seen._replace(codes=seen.codes | others | ({note.code} - {""}), reason=reason)


def _picture(contents: Outcome, path: str, most_pixels: int, turn: bool) -> tuple[Findings, Header | None]:
    if isinstance(contents, Exception):
        gone = isinstance(contents, FileNotFoundError | NotADirectoryError) or getattr(contents, "missing", False)
        reason = getattr(contents, "strerror", None) or str(contents)
        return Findings({"missing" if gone else "unreadable"}, reason), None
    if not contents:
        return Findings({"empty"}, "the file is empty"), None
    digest = hashlib.blake2b(contents, digest_size=DIGEST_BYTES).digest()
    seen = Findings(set(), digest=digest, size=len(contents))
    try:
        header = header_of(contents, path).turned(turn)
    except (ValueError, OSError) as error:
        kind, other = kind_of_picture(contents), kind_of_other(contents)
        if kind:
            huge = isinstance(error.__cause__, Image.DecompressionBombError)
            reason = str(error.__cause__) if huge else f"a {kind} without a whole header"
            return seen._replace(codes={"undecodable"}, reason=reason), None
        return seen._replace(codes={"no image"}, reason=f"it is {other}" if other else ""), None
    codes = {"huge"} if header.height * header.width > HUGE_PIXELS else set()
    if header.orientation > 1:
        codes.add("orientation")
    if too_much := excess(contents, header.height * header.width, most_pixels):
        return seen._replace(codes={"undecodable"}, reason=too_much), None
    return seen._replace(codes=codes, damage=find_damage(contents) or ""), header


def _annotation(
    text: Outcome | None, xml: str, image: str, header: Header | None, parse: Callable[[bytes, str], Objects]
) -> Note:
    if text is None:
        return Note("no xml" if xml else "")
    try:
        if isinstance(text, Exception):
            raise text
        objects = parse(text, xml)
        if header is not None:
            check_turned(objects.size, header[:2], xml, header.orientation > 4)
    except (OSError, ValueError, FetchError) as error:
        return Note("bad xml", str(error))
    file_name = FILE_NAME.search(text)
    stem = os.path.splitext(os.path.basename(image))[0]
    other = file_name and os.path.splitext(os.path.basename(file_name[1].decode(errors="replace").strip()))[0] != stem
    return Note("file name" if other else "", objects=objects)


class Doubt(NamedTuple):
    """An image that looks damaged."""

    read: Callable[[], Outcome]  # reads the image again
    damage: str  # what is wrong with it


def try_in_tensorflow(doubts: Sequence[Doubt], config: DataConfig, show: bool) -> list[tuple[str, str]]:
    """Returns, for each doubt, its code of result.KINDS, "" for none, and the reason. Loads TensorFlow."""
    from tfpipe.data.images.whole import Decoding

    with ThreadPoolExecutor(usable_cpus()) as pool:
        decoded = pool.map(partial(_decode, channels=config.num_channels, how=Decoding.of(config)), doubts)
        return list(progress(decoded, len(doubts), "trying the doubtful ones with TensorFlow", "image", show))


def _decode(doubt: Doubt, channels: int, how: Any) -> tuple[str, str]:
    import tensorflow as tf

    from tfpipe.data.images.whole import decode_image
    from tfpipe.data.runtime.op_errors import reason

    contents = doubt.read()
    if isinstance(contents, Exception):
        return "unreadable", str(contents)
    try:
        decode_image(tf.constant(contents), channels, how)
    except tf.errors.OpError as error:
        fault = describe(contents, reason(error))
        return "truncated" if any(part in fault.lower() for part in CUT_OFF) else "undecodable", fault
    # Other formats, e.g. a PNG, are doubtful only because they are no JPEGs.
    return ("damaged", doubt.damage) if contents.startswith(JPEG) else ("", "")
