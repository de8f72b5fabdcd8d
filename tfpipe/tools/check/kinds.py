"""The kinds of oddity of files and lists, and how training reacts to each."""

from typing import Literal, NamedTuple

from tfpipe.data.catalog.index import ODD

Harm = Literal["stops", "wrong", "handled"]
HUGE_PIXELS = 50e6


class Kind(NamedTuple):
    """One kind of oddity."""

    harm: Harm
    """"stops": training ends there, or does not begin. "wrong": it continues with wrong data. "handled": it does the
    right thing."""
    meaning: str  # description of the oddity and of training's reaction


KINDS = {
    "missing": Kind("stops", "there is no such file; training stops there and names it"),
    "unreadable": Kind("stops", "the file cannot be read; training stops there and names it"),
    "empty": Kind("stops", "a file of 0 bytes; training stops there and names it"),
    "no image": Kind("stops", "not an image, whatever its name; training stops there and names it"),
    "truncated": Kind("stops", "a JPEG that ends too early; training stops there and names it"),
    "undecodable": Kind("stops", "an image that cannot be decoded; training stops there and names it"),
    "bad xml": Kind("stops", "an XML that cannot be read, is malformed, or lacks a number; training stops there"),
    "unknown label": Kind("stops", "a label that is no class; training does not begin"),
    "damaged": Kind("wrong", "a damaged JPEG that can be decoded; trained on, with what may be garbled in it"),
    "listed twice": Kind("wrong", "an image that is in the data several times; trained on as often in each epoch"),
    "in both lists": Kind("wrong", "a path in both the training and the test data; the test uses training images"),
    "contents in both": Kind(
        "wrong", "the same bytes in the training and in the test data; the test uses training images"
    ),
    "same contents": Kind("handled", "the same bytes as another image of the split; trained on as any other"),
    "no xml": Kind("handled", "no XML; the whole image is the crop, or, if objects have the labels, there is none"),
    "file name": Kind("handled", 'the XML\'s <filename> is another, or "%s"; its own path counts, not that'),
    "orientation": Kind("handled", "turned by EXIF; ignored, since boxes were drawn without"),
    "huge": Kind("handled", f"more than {HUGE_PIXELS / 1e6:.0f} million pixels; slow, and takes memory"),
    **{code: Kind("handled", meaning) for code, meaning in ODD.items()},
}
CODES = tuple(KINDS)
# Codes of a file that cannot be read or decoded.
UNUSABLE = ("missing", "unreadable", "empty", "no image", "truncated", "undecodable")
STOPS = tuple(code for code in CODES if KINDS[code].harm == "stops")


def bits(codes: set[str]) -> int:
    """Encodes a set of codes as an integer; bit i stands for CODES[i]."""
    return sum(1 << CODES.index(code) for code in codes)
