"""Images and XMLs that are not what they should be, made in code, and what each leads to.

Other reactions to a bad file than to stop would be a column more.
"""

import gzip
import struct
import zlib
from typing import NamedTuple

from tests.support.images import cmyk, encoded, gigapixel, picture, png16, scans, turned, unmarked, with_alpha, ycck
from tests.support.xmls import bndbox, note, sides, thing
from tfpipe.data.annotations.voc import MAX_BYTES
from tfpipe.data.images.damage import FEWER_SCANS, RAISE_IT, TOO_MANY_SCANS

HEIGHT, WIDTH = 48, 64
PICTURE = picture(HEIGHT, WIDTH, 7)
GOOD = encoded(PICTURE)
GOOD_XML = note(thing("<name>n01</name>", bndbox("4", "5", "40", "30")), size=sides(str(WIDTH), str(HEIGHT)))
SCAN = GOOD.index(b"\xff\xda") + 14


class Fault(NamedTuple):
    """One bad file."""

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
    """A JPEG without the segments of this marker."""
    while marker in contents:
        at = contents.index(marker)
        (length,) = struct.unpack(">H", contents[at + 2 : at + 4])
        contents = contents[:at] + contents[at + 2 + length :]
    return contents


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


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
UNKNOWN = "Unknown image file format. One of JPEG, JPEG XL, PNG, GIF, BMP, WebP required"

IMAGES = [
    Fault("missing", None, "No such file or directory", {"missing"}),
    Fault("empty", b"", "the file is empty", {"empty"}),
    Fault(
        "one byte",
        b"\xff",
        UNKNOWN,
        {"no image"},
    ),
    Fault(
        "zeros",
        bytes(4096),
        f"{UNKNOWN}; it is nothing but zeros",
        {"no image"},
    ),
    Fault("start of image only", GOOD[:3], "a JPEG without a whole header", {"undecodable"}),
    Fault("100 bytes", GOOD[:100], "a JPEG without a whole header", {"undecodable"}),
    Fault("half", GOOD[: len(GOOD) // 2], "Premature end of JPEG file", {"truncated"}),
    Fault("last 40 bytes gone", GOOD[:-40], "Premature end of JPEG file", {"truncated"}),
    Fault("no end of image", GOOD[:-2], "Premature end of JPEG file", {"truncated"}),
    Fault("no scan", GOOD[: GOOD.index(b"\xff\xda")], "a JPEG without a whole header", {"undecodable"}),
    Fault("no Huffman tables", without(GOOD, b"\xff\xc4"), None, set()),
    Fault(
        "no quantization tables", without(GOOD, b"\xff\xdb"), "Quantization table 0x00 was not defined", {"undecodable"}
    ),
    Fault("no frame", without(GOOD, b"\xff\xc0"), "a JPEG without a whole header", {"undecodable"}),
    Fault("0 pixels high", patched(GOOD, FRAME + 5, b"\0\0"), "a JPEG without a whole header", {"undecodable"}),
    Fault(
        "3,600 megapixels in the header",
        gigapixel(),
        f"3600000000 pixels are more than data.max_pixels, 178956970{RAISE_IT}",
        {"undecodable"},
    ),
    Fault("300 scans", scans(PICTURE, 300), f"300{TOO_MANY_SCANS}100{FEWER_SCANS}", {"undecodable"}),
    Fault(
        "3,600 megapixels in a PNG's header",
        huge_png(),
        "PNG size too large for int: 60000 by 60000",
        {"undecodable"},
    ),
    Fault(
        "3,600 megapixels in a GIF's header",
        patched(GIF, 6, struct.pack("<HH", 60_000, 60_000)),
        "a GIF of more than 178956970 pixels, which is not decoded",
        {"undecodable"},
    ),
    Fault("12 bits", patched(GOOD, FRAME + 4, b"\x0c"), "Unsupported JPEG data precision 12", {"undecodable"}),
    Fault("2 components", patched(GOOD, FRAME + 9, b"\x02"), "a JPEG without a whole header", {"undecodable"}),
    Fault("arithmetic coding in the header", patched(GOOD, FRAME, b"\xff\xc9"), None, {"damaged"}),
    Fault(
        "lossless in the header",
        patched(GOOD, FRAME, b"\xff\xc3"),
        "Unsupported JPEG process: SOF type 0xc3",
        {"undecodable"},
    ),
    Fault(
        "text",
        b"not an image",
        UNKNOWN,
        {"no image"},
    ),
    Fault(
        "HTML",
        b"<!DOCTYPE html><html>404 Not Found</html>",
        f"{UNKNOWN}; it is HTML or XML, as a failed download leaves it",
        {"no image"},
    ),
    Fault(
        "gzip",
        gzip.compress(GOOD, mtime=0),
        f"{UNKNOWN}; it is gzip-compressed",
        {"no image"},
    ),
    Fault(
        "ZIP",
        b"PK\x03\x04" + bytes(100),
        f"{UNKNOWN}; it is a ZIP archive",
        {"no image"},
    ),
    Fault(
        "PDF",
        b"%PDF-1.4\n",
        f"{UNKNOWN}; it is a PDF",
        {"no image"},
    ),
    Fault(
        "TIFF",
        encoded(PICTURE, format="TIFF"),
        f"{UNKNOWN}; it is a TIFF",
        {"no image"},
    ),
    Fault("PNG cut off", PNG[: len(PNG) // 2], "Invalid PNG data, ...", {"undecodable"}),
    Fault(
        "PNG with a wrong checksum",
        patched(PNG, 29, b"\0\0\0\0"),
        "Invalid PNG. Failed to initialize decoder",
        {"undecodable"},
    ),
    Fault(
        "GIF cut off",
        GIF[:60],
        "Invalid GIF data ...",
        {"undecodable"},
    ),
    Fault(
        "BMP with a palette",
        encoded(PICTURE.quantize(32), format="BMP"),
        "a BMP with a palette, of 16 bits, or of colours in another order than BGR, which is not read as it should be: "
        "convert it",
        {"undecodable"},
    ),
    Fault(
        "animated WebP",
        encoded(PICTURE, format="WEBP", save_all=True, append_images=[PICTURE.rotate(180)]),
        "an animated WebP, which is not read: convert it",
        {"undecodable"},
    ),
    Fault("transparent WebP", encoded(with_alpha(PICTURE), format="WEBP"), None, {"not jpeg"}),
    Fault(
        "GIF of a small frame",
        patched(GIF, 6, struct.pack("<HH", PICTURE.width + 1, PICTURE.height)),
        "a GIF whose first frame is smaller than its screen, which is not read as it should be: convert it",
        {"undecodable"},
    ),
    Fault("damaged scan", damaged_scan(), None, {"damaged"}),
    Fault(
        "bytes between segments",
        GOOD[:2] + b"\x01\x02\x03" + GOOD[2:],
        "Corrupt JPEG data: 3 extraneous bytes before marker 0xe0",
        {"undecodable"},
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
    Fault("GIF", GIF, None, {"gray", "not jpeg"}),
    Fault("WebP", encoded(PICTURE, format="WEBP"), None, {"not jpeg"}),
]
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
XMLS = [
    Fault(
        "relative boxes",
        note(thing("<name>n01</name>", bndbox("0.1", "0.2", "0.5", "1"))),
        "PATH: all boxes are from 0 to 1, e.g. [0.2, 0.1, 1.0, 0.5] (ymin, xmin, ymax, xmax), so relative to the "
        "image's size; accepted: boxes in pixels, or a <size> of width 1 and height 1",
        {"bad xml"},
    ),
    Fault("empty", "", "PATH is not XML: ...", {"bad xml"}),
    Fault(
        "text",
        "hello",
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault("zeros", b"\0" * 64, "PATH is not XML: ...", {"bad xml"}),
    Fault(
        "JPEG",
        GOOD,
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "cut off",
        GOOD_XML[:-30],
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "two documents",
        GOOD_XML * 2,
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "closed by another tag",
        note(thing(more="<pose>Left</part>")),
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "another root",
        GOOD_XML.replace("annotation>", "labels>"),
        "PATH is no annotation: it is a <labels>, not an <annotation>",
        {"bad xml"},
    ),
    Fault("without a name", note(thing(name="")), "PATH: line 1: <object> without <name>", {"bad xml"}),
    Fault(
        "without xmin", note(thing(box=bndbox(xmin=None))), "PATH: line 1: <object> without <bndbox/xmin>", {"bad xml"}
    ),
    Fault("without a box", note(thing(box="")), "PATH: line 1: <object> without <bndbox/ymin>", {"bad xml"}),
    Fault(
        "no number",
        note(thing(box=bndbox(ymax="tall"))),
        'PATH: line 1: <bndbox/ymax> is "tall", not a number',
        {"bad xml"},
    ),
    Fault(
        "infinite",
        note(thing(box=bndbox(ymax="1e999"))),
        'PATH: line 1: <bndbox/ymax> is "1e999", more pixels than an image has',
        {"bad xml"},
    ),
    Fault(
        "NaN", note(thing(box=bndbox(ymax="nan"))), 'PATH: line 1: <bndbox/ymax> is "nan", not a number', {"bad xml"}
    ),
    Fault(
        "width of 1e300",
        note(thing(), size=sides("1e300", "3")),
        'PATH: line 1: <size/width> is "1e300", more pixels than an image has',
        {"bad xml"},
    ),
    Fault(
        "document type",
        "<!DOCTYPE annotation>" + GOOD_XML,
        "PATH has a document type (<!DOCTYPE), which may draw in other files: take it out",
        {"bad xml"},
    ),
    Fault(
        "entity of a file",
        '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + note(thing("<name>&e;</name>")),
        "PATH has a document type (<!DOCTYPE), which may draw in other files: take it out",
        {"bad xml"},
    ),
    Fault(
        "entity of the network",
        '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd">' + GOOD_XML,
        "PATH has a document type (<!DOCTYPE), which may draw in other files: take it out",
        {"bad xml"},
    ),
    Fault(
        "billion laughs",
        f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]>' + note(thing("<name>&l9;</name>")),
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "laughs in an attribute",
        f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]><annotation a="&l9;"></annotation>',
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "unknown entity",
        note(thing("<name>&nbsp;</name>")),
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "too large",
        note(" " * MAX_BYTES),
        "PATH is too large for an annotation: 1000092 bytes, at most 1000000 are read",
        {"bad xml"},
    ),
    Fault(
        "too deep",
        note("<a>" * 300 + "</a>" * 300),
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "control character",
        note(thing(more="<pose>\x07</pose>")),
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "not in its encoding",
        note(thing("<name>\xe9</name>")).encode("latin-1"),
        "PATH is not XML: ...",
        {"bad xml"},
    ),
    Fault(
        "UTF-16",
        GOOD_XML.encode("utf-16"),
        None,
        set(),
    ),
    Fault(
        "swapped",
        note(thing("<name>n01</name>", bndbox("40", "30", "4", "5")), size=sides(str(WIDTH), str(HEIGHT))),
        None,
        {"box swapped"},
    ),
    Fault(
        "out of range",
        note(thing("<name>n01</name>", bndbox("-9", "5", "400", "30")), size=sides(str(WIDTH), str(HEIGHT))),
        None,
        {"box out of range"},
    ),
    Fault(
        "empty box",
        note(thing("<name>n01</name>", bndbox("9", "5", "9", "30")), size=sides(str(WIDTH), str(HEIGHT))),
        None,
        {"box empty"},
    ),
    Fault(
        "floats",
        note(thing("<name>n01</name>", bndbox("1e0", "5.0", "3.2e1", "+30.25")), size=sides("64.0", "48.")),
        None,
        set(),
    ),
    Fault("no size", note(thing("<name>n01</name>"), size=""), None, {"no size"}),
    Fault("size 0", note(thing("<name>n01</name>"), size=sides("0", "0")), None, {"no size"}),
    Fault("another size", note(thing("<name>n01</name>"), size=sides("640", "480")), None, {"size differs"}),
    Fault("no object", note(size=sides(str(WIDTH), str(HEIGHT))), None, {"no object"}),
    Fault(
        "another class", note(thing("<name>n02</name>"), size=sides(str(WIDTH), str(HEIGHT))), None, {"class differs"}
    ),
    Fault(
        "unknown class", note(thing("<name>cow</name>"), size=sides(str(WIDTH), str(HEIGHT))), None, {"class unknown"}
    ),
    Fault("file name %s", GOOD_XML.replace("<size>", "<filename>%s</filename><size>"), None, {"file name"}),
]
