"""Images and XMLs that are not what they should be, made in code, and what each leads to.

`says` is what training ends with, after "cannot use PATH of the train data: ", PATH for the file's own path; None where
training goes on. `codes` are what `tfpipe check` finds. What else may be done about a bad file is a column of its own.
"""

import gzip
import struct
from typing import NamedTuple

from tests.data.pictures import cmyk, gigapixel, png16, turned, unmarked, with_alpha, ycck
from tests.data.test_images import encoded, picture
from tests.data.xmls import bndbox, note, sides, thing
from tfpipe.data.voc import MAX_BYTES

HEIGHT, WIDTH = 48, 64
PICTURE = picture(HEIGHT, WIDTH, 7)
GOOD = encoded(PICTURE)
GOOD_XML = note(thing("<name>n01</name>", bndbox("4", "5", "40", "30")), size=sides(str(WIDTH), str(HEIGHT)))
SCAN = GOOD.index(b"\xff\xda") + 14


class Fault(NamedTuple):
    """One bad file."""

    name: str
    contents: bytes | None
    """None: there is no such file."""
    says: str | None
    codes: set[str]


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


FRAME = GOOD.index(b"\xff\xc0")
PNG = encoded(PICTURE, format="PNG")
GIF = encoded(PICTURE.quantize(32), format="GIF")
NO_FILE = "No such file or directory"
DECODING = "jpeg::Uncompress failed. Invalid JPEG data or crop window"

IMAGES_RAW = {
    "missing": None,
    "empty": b"",
    "one byte": b"\xff",
    "zeros": bytes(4096),
    "start of image only": GOOD[:3],
    "100 bytes": GOOD[:100],
    "half": GOOD[: len(GOOD) // 2],
    "last 40 bytes gone": GOOD[:-40],
    "no end of image": GOOD[:-2],
    "no scan": GOOD[: GOOD.index(b"\xff\xda")],
    "no Huffman tables": without(GOOD, b"\xff\xc4"),
    "no quantization tables": without(GOOD, b"\xff\xdb"),
    "no frame": without(GOOD, b"\xff\xc0"),
    "0 pixels high": patched(GOOD, FRAME + 5, b"\0\0"),
    "3,600 megapixels in the header": gigapixel(),
    "12 bits": patched(GOOD, FRAME + 4, b"\x0c"),
    "2 components": patched(GOOD, FRAME + 9, b"\x02"),
    "arithmetic coding in the header": patched(GOOD, FRAME, b"\xff\xc9"),
    "lossless in the header": patched(GOOD, FRAME, b"\xff\xc3"),
    "text": b"not an image",
    "HTML": b"<!DOCTYPE html><html>404 Not Found</html>",
    "gzip": gzip.compress(GOOD, mtime=0),
    "ZIP": b"PK\x03\x04" + bytes(100),
    "PDF": b"%PDF-1.4\n",
    "TIFF": encoded(PICTURE, format="TIFF"),
    "PNG cut off": PNG[: len(PNG) // 2],
    "PNG with a wrong checksum": patched(PNG, 29, b"\0\0\0\0"),
    "GIF cut off": GIF[:60],
    "BMP with a palette": encoded(PICTURE.quantize(32), format="BMP"),
    "damaged scan": damaged_scan(),
    "bytes between segments": GOOD[:2] + b"\x01\x02\x03" + GOOD[2:],
    "stray bytes in front of the end": GOOD[:-2] + b"\x11\x22\x33" + GOOD[-2:],
    "junk behind the end": GOOD + b"junk" * 50,
    "bad EXIF": GOOD[:2] + segment(0xE1, b"Exif\0\0MM\0*\xff\xff\xff\xff") + GOOD[2:],
    "turned by EXIF": turned(PICTURE),
    "gray": encoded(PICTURE.convert("L")),
    "CMYK": cmyk(PICTURE),
    "YCCK": ycck(PICTURE),
    "CMYK without a mark": unmarked(cmyk(PICTURE)),
    "PNG": encoded(with_alpha(PICTURE), format="PNG"),
    "16-bit PNG": png16(PICTURE),
    "GIF": GIF,
    "WebP": encoded(PICTURE, format="WEBP"),
}
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
XMLS_RAW = {
    "empty": "",
    "text": "hello",
    "zeros": b"\0" * 64,
    "JPEG": GOOD,
    "cut off": GOOD_XML[:-30],
    "two documents": GOOD_XML * 2,
    "closed by another tag": note(thing(more="<pose>Left</part>")),
    "without a name": note(thing(name="")),
    "without xmin": note(thing(box=bndbox(xmin=None))),
    "without a box": note(thing(box="")),
    "no number": note(thing(box=bndbox(ymax="tall"))),
    "infinite": note(thing(box=bndbox(ymax="1e999"))),
    "NaN": note(thing(box=bndbox(ymax="nan"))),
    "width of 1e300": note(thing(), size=sides("1e300", "3")),
    "document type": "<!DOCTYPE annotation>" + GOOD_XML,
    "entity of a file": '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + note(thing("<name>&e;</name>")),
    "entity of the network": '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd">' + GOOD_XML,
    "billion laughs": f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]>' + note(thing("<name>&l9;</name>")),
    "laughs in an attribute": f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]><annotation a="&l9;"></annotation>',
    "unknown entity": note(thing("<name>&nbsp;</name>")),
    "too large": note(" " * MAX_BYTES),
    "too deep": note("<a>" * 300 + "</a>" * 300),
    "control character": note(thing(more="<pose>\x07</pose>")),
    "not in its encoding": note(thing("<name>\xe9</name>")).encode("latin-1"),
    "UTF-16": GOOD_XML.encode("utf-16"),
    "swapped": note(thing("<name>n01</name>", bndbox("40", "30", "4", "5")), size=sides(str(WIDTH), str(HEIGHT))),
    "out of range": note(
        thing("<name>n01</name>", bndbox("-9", "5", "400", "30")), size=sides(str(WIDTH), str(HEIGHT))
    ),
    "empty box": note(thing("<name>n01</name>", bndbox("9", "5", "9", "30")), size=sides(str(WIDTH), str(HEIGHT))),
    "floats": note(thing("<name>n01</name>", bndbox("1e0", "5.0", "3.2e1", "+30.25")), size=sides("64.0", "48.")),
    "no size": note(thing("<name>n01</name>"), size=""),
    "size 0": note(thing("<name>n01</name>"), size=sides("0", "0")),
    "another size": note(thing("<name>n01</name>"), size=sides("640", "480")),
    "no object": note(size=sides(str(WIDTH), str(HEIGHT))),
    "another class": note(thing("<name>n02</name>"), size=sides(str(WIDTH), str(HEIGHT))),
    "unknown class": note(thing("<name>cow</name>"), size=sides(str(WIDTH), str(HEIGHT))),
    "file name %s": GOOD_XML.replace("<size>", "<filename>%s</filename><size>"),
}
