"""Images and XMLs that are not what they should be, made in code, and what each leads to.

Other reactions to a bad file than to stop would be a column more.
"""

import gzip
import struct
import zlib
from typing import NamedTuple

from tests.support.images import cmyk, encoded, gigapixel, picture, png16, scans, turned, unmarked, with_alpha, ycck
from tests.support.scans import segment
from tests.support.xmls import bndbox, note, sides, thing
from tfpipe.data.annotations.objects import MAX_BYTES
from tfpipe.data.images.by_pillow import formats
from tfpipe.data.images.damage import FEWER_SCANS, RAISE_IT, TOO_MANY_SCANS

HEIGHT, WIDTH = 48, 64
PICTURE = picture(HEIGHT, WIDTH, 7)
GOOD = encoded(PICTURE)
NAMED, SIDES = "<name>n01</name>", sides(str(WIDTH), str(HEIGHT))
GOOD_XML = note(thing(NAMED, bndbox("4", "5", "40", "30")), size=SIDES)
# Codes of `tfpipe check`, and messages.
BAD_XML, UNDECODABLE, NO_IMAGE = {"bad xml"}, {"undecodable"}, {"no image"}
NO_HEADER, NO_XML = "a JPEG without a whole header", "PATH is not XML: ..."
DOCTYPE = "PATH has a document type (<!DOCTYPE), which may draw in other files: take it out"
SCAN = GOOD.index(b"\xff\xda") + 14


class Fault(NamedTuple):
    name: str
    contents: bytes | str | None
    """None: there is no such file."""
    says: str | None
    """The end of training, after "cannot use PATH of the train data: "; PATH for the file's own path, "..." at its
    end where a library continues in words of its own. None: training continues."""
    codes: set[str]
    """Codes that `tfpipe check` finds."""


def patched(contents: bytes, at: int, new: bytes) -> bytes:
    return contents[:at] + new + contents[at + len(new) :]


def without(contents: bytes, marker: bytes) -> bytes:
    while marker in contents:
        at = contents.index(marker)
        (length,) = struct.unpack(">H", contents[at + 2 : at + 4])
        contents = contents[:at] + contents[at + 2 + length :]
    return contents


def damaged_scan() -> bytes:
    """Bytes of the scan changed, no marker made."""
    return patched(
        GOOD, SCAN + 300, bytes(value ^ 0x5A for value in GOOD[SCAN + 300 : SCAN + 340]).replace(b"\xff", b"\x7f")
    )


def huge_png() -> bytes:
    """A PNG whose header claims 60,000 x 60,000 pixels, with the right checksum."""
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + PNG[24:29]
    return patched(PNG, 12, header + struct.pack(">I", zlib.crc32(header)))


FRAME = GOOD.index(b"\xff\xc0")
PNG = encoded(PICTURE, format="PNG")
GIF = encoded(PICTURE.quantize(32), format="GIF")
UNKNOWN = f"it is no {', '.join(formats()[:-1])} or {formats()[-1]} image"
TOO_LARGE = "it is too large: Image size (3600000000 pixels) exceeds limit of 178956970 pixels, ..."

IMAGES = [
    Fault("missing", None, "No such file or directory", {"missing"}),
    Fault("empty", b"", "the file is empty", {"empty"}),
    Fault("zeros", bytes(4096), f"{UNKNOWN}; it is nothing but zeros", NO_IMAGE),
    Fault("start of image only", GOOD[:3], NO_HEADER, UNDECODABLE),
    Fault("half", GOOD[: len(GOOD) // 2], "Premature end of JPEG file", {"truncated"}),
    Fault("no end of image", GOOD[:-2], "Premature end of JPEG file", {"truncated"}),
    Fault("no scan", GOOD[: GOOD.index(b"\xff\xda")], NO_HEADER, UNDECODABLE),
    Fault("no Huffman tables", without(GOOD, b"\xff\xc4"), None, set()),
    Fault("no quantization tables", without(GOOD, b"\xff\xdb"), "Quantization table 0x00 was not defined", UNDECODABLE),
    Fault("no frame", without(GOOD, b"\xff\xc0"), NO_HEADER, UNDECODABLE),
    Fault("0 pixels high", patched(GOOD, FRAME + 5, b"\0\0"), NO_HEADER, UNDECODABLE),
    Fault(
        "3,600 megapixels in the header",
        gigapixel(),
        f"3600000000 pixels are more than data.max_pixels, 178956970{RAISE_IT}",
        UNDECODABLE,
    ),
    Fault("300 scans", scans(PICTURE, 300), f"300{TOO_MANY_SCANS}100{FEWER_SCANS}", UNDECODABLE),
    Fault("3,600 megapixels in a PNG's header", huge_png(), TOO_LARGE, UNDECODABLE),
    Fault(
        "3,600 megapixels in a GIF's header",
        patched(GIF, 6, struct.pack("<HH", 60_000, 60_000)),
        TOO_LARGE,
        UNDECODABLE,
    ),
    Fault("12 bits", patched(GOOD, FRAME + 4, b"\x0c"), "Unsupported JPEG data precision 12", UNDECODABLE),
    Fault("2 components", patched(GOOD, FRAME + 9, b"\x02"), NO_HEADER, UNDECODABLE),
    Fault("arithmetic coding in the header", patched(GOOD, FRAME, b"\xff\xc9"), None, {"damaged"}),
    Fault(
        "lossless in the header",
        patched(GOOD, FRAME, b"\xff\xc3"),
        "Unsupported JPEG process: SOF type 0xc3",
        UNDECODABLE,
    ),
    Fault("text", b"not an image", UNKNOWN, NO_IMAGE),
    Fault(
        "HTML",
        b"<!DOCTYPE html><html>404 Not Found</html>",
        f"{UNKNOWN}; it is HTML or XML, as a failed download leaves it",
        NO_IMAGE,
    ),
    Fault("gzip", gzip.compress(GOOD, mtime=0), f"{UNKNOWN}; it is gzip-compressed", NO_IMAGE),
    Fault("ZIP", b"PK\x03\x04" + bytes(100), f"{UNKNOWN}; it is a ZIP archive", NO_IMAGE),
    Fault("HEIC", b"\0\0\0\x18ftypheic" + bytes(9), f"{UNKNOWN}; it is a HEIC, which pillow-heif opens: ...", NO_IMAGE),
    Fault("TIFF cut off", encoded(PICTURE, format="TIFF")[:5000], "a damaged TIFF: ...", {"truncated"}),
    Fault("PNG cut off", PNG[: len(PNG) // 2], "Invalid PNG data, ...", UNDECODABLE),
    Fault(
        "PNG with a wrong checksum",
        patched(PNG, 29, b"\0\0\0\0"),
        "a PNG without a whole header",
        UNDECODABLE,
    ),
    Fault("GIF cut off", GIF[:60], "a GIF without a whole header", UNDECODABLE),
    Fault("BMP with a palette", encoded(PICTURE.quantize(32), format="BMP"), None, {"not jpeg"}),
    Fault("gray PNG with alpha", encoded(PICTURE.convert("LA"), format="PNG"), None, {"gray", "not jpeg"}),
    Fault(
        "animated WebP",
        encoded(PICTURE, format="WEBP", save_all=True, append_images=[PICTURE.rotate(180)]),
        None,
        {"not jpeg"},
    ),
    *(Fault(kind, encoded(PICTURE, format=kind), None, {"not jpeg"}) for kind in ("TIFF", "AVIF", "JPEG2000", "PPM")),
    Fault("transparent WebP", encoded(with_alpha(PICTURE), format="WEBP"), None, {"not jpeg"}),
    Fault(
        "GIF of a small frame",
        patched(GIF, 6, struct.pack("<HH", PICTURE.width + 1, PICTURE.height)),
        None,
        {"not jpeg", "size differs"},
    ),
    Fault("damaged scan", damaged_scan(), None, {"damaged"}),
    Fault(
        "bytes between segments",
        GOOD[:2] + b"\x01\x02\x03" + GOOD[2:],
        "Corrupt JPEG data: 3 extraneous bytes before marker 0xe0",
        UNDECODABLE,
    ),
    Fault("stray bytes in front of the end", GOOD[:-2] + b"\x11\x22\x33" + GOOD[-2:], None, set()),
    Fault("junk after the end", GOOD + b"junk" * 50, None, set()),
    Fault("bad EXIF", GOOD[:2] + segment(0xE1, b"Exif\0\0MM\0*\xff\xff\xff\xff") + GOOD[2:], None, set()),
    Fault("turned by EXIF", turned(PICTURE), None, {"orientation"}),
    Fault("gray", encoded(PICTURE.convert("L")), None, {"gray"}),
    Fault("CMYK", cmyk(PICTURE), None, {"cmyk"}),
    Fault("YCCK", ycck(PICTURE), None, {"cmyk"}),
    Fault("CMYK without a mark", unmarked(cmyk(PICTURE)), None, {"cmyk"}),
    Fault("PNG", encoded(with_alpha(PICTURE), format="PNG"), None, {"not jpeg"}),
    Fault("16-bit PNG", png16(PICTURE), None, {"not jpeg"}),
    Fault("GIF", GIF, None, {"not jpeg"}),
    Fault("WebP", encoded(PICTURE, format="WEBP"), None, {"not jpeg"}),
]
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
XMLS = [
    Fault(
        "relative boxes",
        note(thing(NAMED, bndbox("0.1", "0.2", "0.5", "1"))),
        "PATH: all boxes are from 0 to 1, e.g. [0.2, 0.1, 1.0, 0.5] (ymin, xmin, ymax, xmax), so relative to the "
        "image's size; accepted: boxes in pixels, or a <size> of width 1 and height 1",
        BAD_XML,
    ),
    Fault("empty", "", NO_XML, BAD_XML),
    Fault("cut off", GOOD_XML[:-30], NO_XML, BAD_XML),
    Fault(
        "another root",
        GOOD_XML.replace("annotation>", "labels>"),
        "PATH is no annotation: it is a <labels>, not an <annotation>",
        BAD_XML,
    ),
    Fault("without a name", note(thing(name="")), "PATH: line 1: <object> without <name>", BAD_XML),
    Fault("without a box", note(thing(box="")), "PATH: line 1: <object> without <bndbox/ymin>", BAD_XML),
    Fault(
        "no number",
        note(thing(box=bndbox(ymax="tall"))),
        'PATH: line 1: <bndbox/ymax> is "tall", not a number',
        BAD_XML,
    ),
    Fault(
        "width of 1e300",
        note(thing(), size=sides("1e300", "3")),
        'PATH: line 1: <size/width> is "1e300", more pixels than an image has',
        BAD_XML,
    ),
    Fault("document type", "<!DOCTYPE annotation>" + GOOD_XML, DOCTYPE, BAD_XML),
    Fault(
        "entity of a file",
        '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + note(thing("<name>&e;</name>")),
        DOCTYPE,
        BAD_XML,
    ),
    Fault(
        "billion laughs",
        f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]>' + note(thing("<name>&l9;</name>")),
        NO_XML,
        BAD_XML,
    ),
    Fault(
        "too large",
        note(" " * MAX_BYTES),
        "PATH is too large for an annotation: 1000092 bytes, at most 1000000 are read",
        BAD_XML,
    ),
    Fault("too deep", note("<a>" * 300 + "</a>" * 300), NO_XML, BAD_XML),
    Fault("not in its encoding", note(thing("<name>\xe9</name>")).encode("latin-1"), NO_XML, BAD_XML),
    Fault("UTF-16", GOOD_XML.encode("utf-16"), None, set()),
    Fault("swapped", note(thing(NAMED, bndbox("40", "30", "4", "5")), size=SIDES), None, {"box swapped"}),
    Fault("out of range", note(thing(NAMED, bndbox("-9", "5", "400", "30")), size=SIDES), None, {"box out of range"}),
    Fault("empty box", note(thing(NAMED, bndbox("9", "5", "9", "30")), size=SIDES), None, {"box empty"}),
    Fault(
        "floats", note(thing(NAMED, bndbox("1e0", "5.0", "3.2e1", "+30.25")), size=sides("64.0", "48.")), None, set()
    ),
    Fault("no size", note(thing(NAMED), size=""), None, {"no size"}),
    Fault("size 0", note(thing(NAMED), size=sides("0", "0")), None, {"no size"}),
    Fault("another size", note(thing(NAMED), size=sides("640", "480")), None, {"size differs"}),
    Fault("no object", note(size=SIDES), None, {"no object"}),
    Fault("another class", note(thing("<name>n02</name>"), size=SIDES), None, {"class differs"}),
    Fault("unknown class", note(thing("<name>cow</name>"), size=SIDES), None, {"class unknown"}),
    Fault("file name %s", GOOD_XML.replace("<size>", "<filename>%s</filename><size>"), None, {"file name"}),
]
