"""Explains damage in an image file without TensorFlow, which says of a JPEG only that decoding failed."""

import re
import struct

from tfpipe.data.images.by_pillow import NO_IMAGE, OPTIONAL, decode
from tfpipe.data.images.headers import START_OF_IMAGE, TOO_LARGE
from tfpipe.native import core

JPEG = START_OF_IMAGE
NO_HEADER = "a JPEG without a whole header"
# In libjpeg-turbo's words, as TensorFlow prints them.
CUT_OFF = "Premature end of JPEG file"
CORRUPT = "Corrupt JPEG data: bytes are missing or left over, or a code has no meaning"
# A marker other than those of restart intervals; fill bytes may precede it, and 0xFF 0x00 is a byte of the data.
MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")
TABLES, START_OF_SCAN, END_OF_IMAGE = 0xDB, 0xDA, 0xD9
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Start of a frame's payload: bits per component, height, width, number of components.
FRAME = struct.Struct(">BHHB")
# Processes that TensorFlow decodes: baseline, extended and progressive, and two that hardly any program writes.
ARITHMETIC = frozenset((0xC9, 0xCA))
DECODED = frozenset((0xC0, 0xC1, 0xC2)) | ARITHMETIC
PICTURES = {JPEG: "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WebP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}
# Other content found in files with an image's name, by first bytes.
OTHERS = {b"\x1f\x8b": "gzip-compressed", b"PK\x03\x04": "a ZIP archive", b"%PDF": "a PDF"}
HEIC = re.compile(rb"(?s)....ftyp(hei|hev|mif)")
HTML = re.compile(rb"\s*<(?:!doctype html|html|\?xml|head)", re.IGNORECASE)

# Start of a scan's header: the marker, and the first byte of a length below 256.
SCAN = b"\xff\xda\0"
# Most scans of a JPEG that is decoded: progressive files have about ten, and each costs a pass over the whole image.
MOST_SCANS = 100
# Messages of files beyond `data.max_pixels` and MOST_SCANS, between which the limit stands.
TOO_MANY_PIXELS = " pixels are more than data.max_pixels, "
RAISE_IT = ": raise it if the file is as it should be, or leave the file out"
TOO_MANY_SCANS = " scans are more than the most that are decoded, "
FEWER_SCANS = ": write the file with fewer, e.g. by jpegtran, or leave it out"


def excess(contents: bytes, pixels: int, most_pixels: int) -> str:
    """Returns why a file, whose header states `pixels`, is not decoded; "" if it is."""
    scans = contents.count(SCAN) if contents.startswith(JPEG) else 0
    if pixels > most_pixels:
        return f"{pixels}{TOO_MANY_PIXELS}{most_pixels}{RAISE_IT}"
    return f"{scans}{TOO_MANY_SCANS}{MOST_SCANS}{FEWER_SCANS}" if scans > MOST_SCANS else ""


def find_damage(contents: bytes) -> str | None:
    """Returns what is wrong with a JPEG file, None if nothing is; TensorFlow may still decode it.

    Decodes the whole file by the decoder in C, which notices all that libjpeg-turbo warns of. If that refuses the kind
    of JPEG, finds only files that are cut off, or at which Pillow's decoder ends.
    """
    if not contents.startswith(JPEG):
        return "it is no JPEG"
    try:
        height, width = _check_segments(contents)
    except ValueError as damage:
        return str(damage)
    is_damaged = core().is_damaged(contents, height, width)
    if is_damaged is None:
        return _error_of_pillow(contents)
    return CORRUPT if is_damaged else None


def _check_segments(contents: bytes) -> tuple[int, int]:
    """Returns the height and width of a JPEG, from its start to the end of its last scan.

    Raises ValueError if a segment is missing, damaged or of an unsupported process, the file is cut off, or TensorFlow
    refuses its size.
    """
    at, frame, arithmetic, tables, scans = len(JPEG), b"", False, set(), 0
    while marker := MARKER.search(contents, at):
        kind, stray, begin = marker[1][0], marker.start() - at, marker.end() + 2
        if stray and not scans:
            raise ValueError(f"Corrupt JPEG data: {stray} extraneous bytes before marker 0x{kind:02x}")
        if kind == END_OF_IMAGE:
            break
        at = marker.end() + int.from_bytes(contents[marker.end() : begin], "big")
        segment = contents[begin:at]
        if kind == TABLES:
            while segment:
                tables.add(segment[0] & 15)
                segment = segment[65 + 64 * (segment[0] >> 4) :]
        elif kind in FRAMES:
            frame, arithmetic = segment, kind in ARITHMETIC
            _check_frame(kind, frame)
        elif kind == START_OF_SCAN:
            if not frame:
                raise ValueError(NO_HEADER)
            scans += 1
            for table in frame[8 : 6 + 3 * frame[5] : 3]:
                if table not in tables:
                    raise ValueError(f"Quantization table 0x{table:02x} was not defined")
    if not scans:
        raise ValueError(NO_HEADER)
    if marker is None:
        raise ValueError(CUT_OFF)
    if arithmetic:
        raise ValueError("a JPEG with arithmetic coding, if its header is right")
    return FRAME.unpack_from(frame)[1:3]


def _check_frame(kind: int, frame: bytes) -> None:
    """Checks the header of a frame, without its marker and length; raises ValueError."""
    if len(frame) < FRAME.size:
        raise ValueError(NO_HEADER)
    depth, height, width, components = FRAME.unpack_from(frame)
    if depth != 8:
        raise ValueError(f"Unsupported JPEG data precision {depth}")
    if kind not in DECODED:
        raise ValueError(f"Unsupported JPEG process: SOF type 0x{kind:02x}")
    if not height or not width or components not in (1, 3, 4) or len(frame) < FRAME.size + 3 * components:
        raise ValueError(NO_HEADER)
    if height * width * components >= TOO_LARGE:
        raise ValueError(f"{width} x {height} pixels are more than TensorFlow decodes")


def _error_of_pillow(contents: bytes) -> str | None:
    """Returns the error at which Pillow's libjpeg-turbo ends, which says nothing of warnings; None if there is none."""
    try:
        decode(contents, 3)
    except ValueError as error:
        return None if "too large" in str(error) else str(error)  # for Pillow, not for TensorFlow
    return None


def kind_of_picture(contents: bytes) -> str:
    """Returns the image format, one of PICTURES, by the first bytes; "" for any other."""
    return next((kind for start, kind in PICTURES.items() if contents.startswith(start)), "")


def kind_of_other(contents: bytes) -> str:
    """Describes a file that is no image, e.g. "a PDF"; "" if its content is not recognized."""
    if HTML.match(contents):
        return "HTML or XML, as a failed download leaves it"
    if contents and not contents.strip(b"\0"):
        return "nothing but zeros"
    if HEIC.match(contents):
        return f"a HEIC, which pillow-heif opens: pip install '{OPTIONAL['HEIF'][1]}'"
    return next((kind for start, kind in OTHERS.items() if contents.startswith(start)), "")


def describe(contents: bytes, message: str) -> str:
    """Explains why an image cannot be used; `message` is TensorFlow's error, or by_pillow's."""
    if not contents:
        return "the file is empty"
    if TOO_MANY_PIXELS in message or TOO_MANY_SCANS in message:
        return message
    if contents.startswith(JPEG):
        return find_damage(contents) or message
    if message.startswith(NO_IMAGE) and (kind := kind_of_picture(contents)):
        return f"a {kind} without a whole header"
    kind = kind_of_other(contents)
    return f"{message}; it is {kind}" if kind else message
