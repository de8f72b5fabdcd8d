"""What only Pillow opens: formats, EXIF's orientation as cameras and damage write it, and the log's count."""

import io
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin

from tests.support.images import encoded, picture, turned
from tfpipe.data.images import by_pillow
from tfpipe.data.images.by_pillow import ByPillow, decode
from tfpipe.data.images.headers import header_of
from tfpipe.native import native

SIZE = (24, 32)
EXIF = b"Exif\0\0"  # begins a JPEG's


def exif_of(orientation: int, order: str = ">") -> bytes:
    exif = Image.Exif()
    exif.endian = order
    exif[0x010F], exif[0x0112] = "Maker", orientation
    return exif.tobytes()


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_are_applied_as_pillow_does(orientation: int, kind: str, order: str) -> None:
    how = {"tiffinfo": {0x0112: orientation}} if kind == "TIFF" else {"exif": exif_of(orientation, order)}
    contents = encoded(picture(*SIZE, 3), format=kind, **how)
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(contents))).convert("RGB")
    assert header_of(contents, "a").turned(True)[:2] == shown.size[::-1]
    assert (decode(contents, 3, turn=True)[0] == np.asarray(shown)).all()
    plain = header_of(contents, "a")
    pixels, _ = decode(contents, 3)
    assert pixels.shape[:2] == plain[:2]
    if kind in ("JPEG", "PNG", "WEBP"):  # what turns the others is part of their format
        assert plain[:2] == SIZE and plain.orientation == orientation
    else:
        assert (pixels == np.asarray(shown)).all()


CHANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3)


@given(CHANGES, st.integers(1, 8), st.sampled_from("<>"))
def test_a_spoilt_orientation_is_the_same_to_c_and_python(
    changes: list[tuple[int, int]], orientation: int, order: str
) -> None:
    exif = bytearray(exif_of(orientation, order))
    for at, value in changes:
        if len(EXIF) <= at < len(exif):
            exif[at] = value
    jpeg = encoded(picture(*SIZE), exif=bytes(exif))
    found = native().sizes([jpeg], [[0, 0]], turn=1).numpy()[0].tolist()
    assert tuple(found) == header_of(jpeg, "a").turned(True)[:2]
    assert native().sizes([jpeg], [[0, 0]]).numpy()[0].tolist() == list(SIZE)


@pytest.mark.parametrize("exif", [b"", EXIF, EXIF + b"MM", EXIF + b"II*\0\xff\xff\xff\xff", EXIF + b"MM\0*" + bytes(3)])
def test_no_orientation_is_the_plain_one(exif: bytes) -> None:
    assert header_of(encoded(picture(*SIZE), exif=exif), "a").orientation == 1
    assert header_of(encoded(picture(*SIZE), format="PNG", exif=exif), "a").orientation == 1


def app1(jpeg: bytes, *segments: bytes) -> bytes:
    """Returns a JPEG with these APP1 segments."""
    return jpeg[:2] + b"".join(b"\xff\xe1" + (len(one) + 2).to_bytes(2, "big") + one for one in segments) + jpeg[2:]


XMP = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta>%s</x:xmpmeta>"
TAGS = [b'tiff:Orientation="%d"', b"<tiff:Orientation>%d</tiff:Orientation>", b"tiff:Orientation = '%d'", b"%d"]


@given(
    st.lists(st.tuples(st.sampled_from(["exif", "xmp"]), st.integers(0, 9), st.integers(0, 3)), max_size=3),
    st.sampled_from([1, 3, 4]),
)
def test_orientations_of_exif_and_xmp_are_pillows(segments: list[tuple[str, int, int]], kind: int) -> None:
    parts = []
    for name, orientation, form in segments:
        size = {1: 1, 3: 2, 4: 4}[kind]
        value = orientation.to_bytes(size, "little") + bytes(4 - size)
        tag = 0x0112 if form else 0x0110
        entry = tag.to_bytes(2, "little") + kind.to_bytes(2, "little") + (1).to_bytes(4, "little") + value
        exif = EXIF + b"II*\0\x08\0\0\0\x01\0" + entry + bytes(4)
        tag_of_xmp = TAGS[form]
        parts.append(exif if name == "exif" else XMP % (tag_of_xmp % orientation))
    # Pillow joins several of EXIF, and takes the last of XMP.
    parts = [part for number, part in enumerate(parts) if part[:5] not in [other[:5] for other in parts[:number]]]
    jpeg = app1(encoded(picture(*SIZE)), *parts)
    with Image.open(io.BytesIO(jpeg)) as image:
        expected = image.getexif().get(0x0112, 1)
    expected = expected if isinstance(expected, int) and 1 <= expected <= 8 else 1
    assert header_of(jpeg, "a").orientation == expected
    swapped = native().sizes([jpeg], [[0, 0]], turn=1).numpy()[0].tolist()
    assert swapped == (list(SIZE[::-1]) if expected > 4 else list(SIZE))


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_png_may_state_its_orientation_in_a_raw_profile_or_in_xmp(orientation: int) -> None:
    raw = exif_of(orientation, ">").hex()
    profile, xmp = PngImagePlugin.PngInfo(), PngImagePlugin.PngInfo()
    profile.add_text("Raw profile type exif", f"\nexif\n{len(raw) // 2:8}\n{raw}\n", zip=True)
    xmp.add_itxt("XML:com.adobe.xmp", f'<x tiff:Orientation="{orientation}"/>')
    for info in (profile, xmp):
        contents = encoded(picture(*SIZE), format="PNG", pnginfo=info)
        assert header_of(contents, "a").orientation == orientation
        with Image.open(io.BytesIO(contents)) as image:
            assert (decode(contents, 3, turn=True)[0] == np.asarray(ImageOps.exif_transpose(image))).all()


def test_a_png_with_a_long_text_or_profile_is_whole() -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("history", "x" * 3_000_000, zip=True)
    plain = np.asarray(picture(*SIZE))
    for more in ({"pnginfo": info}, {"icc_profile": bytes(3_000_000)}):
        assert (decode(encoded(picture(*SIZE), format="PNG", **more), 3)[0] == plain).all()


def test_a_pgm_of_16_bits_has_its_range_in_its_header() -> None:
    levels = np.arange(0, 65536, 4096, np.uint16).reshape(4, 4)
    contents = b"P5 4 4 65535\n" + levels.astype(">u2").tobytes()
    assert (decode(contents, 1)[0][..., 0] == levels >> 8).all()
    small = b"P5 4 4 1023\n" + (levels >> 6).astype(">u2").tobytes()
    assert np.abs(decode(small, 1)[0][..., 0].astype(int) - (levels >> 8)).max() <= 1


def test_the_first_exif_counts() -> None:
    """A segment of XMP comes before it, which has the same marker; another one of EXIF after it."""
    jpeg = turned(picture(*SIZE), 6)
    xmp = b"\xff\xe1\0\x20http://ns.adobe.com/xap/1.0/\0 "
    at = jpeg.index(b"\xff\xe1")
    length = int.from_bytes(jpeg[at + 2 : at + 4], "big") + 2
    other = turned(picture(*SIZE), 3)[at : at + length]
    both = jpeg[:at] + xmp + jpeg[at : at + length] + other + jpeg[at + length :]
    assert header_of(both, "a").orientation == 6
    assert native().sizes([both], [[0, 0]], turn=1).numpy()[0].tolist() == list(SIZE[::-1])


def test_damage_is_a_value_error_that_names_the_format() -> None:
    for kind in ("TIFF", "AVIF", "JPEG2000", "GIF", "BMP"):
        contents = encoded(picture(90, 120), format=kind)
        for end in (len(contents) // 2, len(contents) - 200):
            with pytest.raises(ValueError, match=f"{kind}|it is no "):
                decode(contents[:end], 3)


def test_the_log_counts_images_by_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, by_pillow.__name__)
    decoder, gif, tiff = ByPillow(), encoded(picture(9, 9), format="GIF"), encoded(picture(9, 9), format="TIFF")
    for number in range(25):
        assert decoder.decode(tiff if number % 2 else gif, 3, False).shape == (9, 9, 3)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and ": 1 GIF so far" in lines[0] and ": 5 GIF, 5 TIFF so far" in lines[1]
    assert all(line.endswith(" ms each") for line in lines)
