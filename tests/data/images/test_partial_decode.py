"""The top of a JPEG: the pixels of a whole decode, and never those of a JPEG that is damaged there or cut off."""

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.images import encoded, picture
from tfpipe.data.images.headers import jpeg_header
from tfpipe.data.images.partial_decode import TOGETHER, decode_top

END = b"\xff\xd9"


def whole(jpeg: bytes, colorspace: str = "RGB") -> np.ndarray:
    return simplejpeg.decode_jpeg(jpeg, colorspace)


def thumbnail() -> bytes:
    """Another JPEG within the header, and a frame of its own with it."""
    exif = Image.Exif()
    exif[0x010E] = encoded(picture(20, 30)).decode("latin-1")
    return exif.tobytes()


@given(
    st.integers(1, 400),
    st.integers(1, 90),
    st.integers(0, 400),
    st.sampled_from(["444", "422", "420", "440", "411", "Gray"]),
    st.sampled_from(["RGB", "GRAY"]),
    st.integers(0, 99),
)
def test_its_rows_are_those_of_the_whole(
    height: int, width: int, rows: int, sampling: str, colorspace: str, seed: int
) -> None:
    pixels = np.asarray(picture(height, width, seed))
    if sampling == "Gray":
        jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[..., :1]), 90, "GRAY", "Gray")
    else:
        jpeg = simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling)
    top = decode_top(jpeg, colorspace, rows)
    assert (top is not None) == (-(-(rows + 1) // TOGETHER) * TOGETHER < height)
    if top is not None:
        assert rows < len(top) <= rows + TOGETHER
        assert (top[:rows] == whole(jpeg, colorspace)[:rows]).all()


@pytest.mark.parametrize(
    "options",
    [
        {"restart_marker_rows": 1},
        {"restart_marker_blocks": 3},
        {"optimize": True},
        {"exif": thumbnail()},
        {"icc_profile": bytes(100_000)},
        {"comment": END + b"\xff\xc0\x00\x11\x08\x00\x01\x00\x01\x03"},
    ],
    ids=str,
)
def test_it_is_so_however_the_jpeg_was_written(options: dict) -> None:
    jpeg = encoded(picture(200, 120), **options)
    for rows in (1, 50, 120):
        assert (decode_top(jpeg, "RGB", rows)[:rows] == whole(jpeg)[:rows]).all()


@pytest.mark.parametrize(
    "contents",
    [
        encoded(picture(200, 120), progressive=True),
        encoded(picture(200, 120).convert("CMYK")),
        encoded(picture(200, 120), format="PNG"),
        encoded(picture(200, 120))[:300],
        b"\xff\xd8",
        b"",
    ],
    ids=["progressive", "cmyk", "png", "header", "start", "empty"],
)
def test_of_others_there_is_none(contents: bytes) -> None:
    assert decode_top(contents, "RGB", 10) is None


def scan(jpeg: bytes) -> int:
    """Where the data of the pixels begin."""
    return jpeg.index(b"\xff\xda") + 14


@pytest.mark.parametrize("rest", [b"", bytes(500)], ids=["cut off", "zeros"])
@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 3}], ids=str)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_jpeg_that_is_cut_off_is_refused_wherever_that_is(share: float, options: dict, rest: bytes) -> None:
    jpeg = encoded(picture(200, 120), **options)
    start = scan(jpeg)
    assert decode_top(jpeg + rest, "RGB", 60) is not None
    assert decode_top(jpeg[: start + int(share * (len(jpeg) - start))] + rest, "RGB", 60) is None


@pytest.mark.parametrize("marker", [b"\xff", b"\xff\x01", b"\xff\xd0"], ids=["fill", "TEM", "RST0"])
def test_a_frame_that_only_a_marker_without_a_length_leads_to_is_not_taken(marker: bytes) -> None:
    """What follows the marker, taken as a length, leads into a comment: to a frame of 200 rows and 1024 columns."""
    jpeg = encoded(picture(200, 120), comment=bytes(65_000))
    odd = bytearray(jpeg[:2] + marker + jpeg[2:])
    at = 4 + int.from_bytes(odd[4:6], "big")
    odd[at : at + 10] = b"\xff\xc0\x00\x11\x08\x00\xc8\x04\x00\x03"
    assert decode_top(bytes(odd), "RGB", 60) is None and jpeg_header(bytes(odd)) is None
    assert (whole(bytes(odd)) == whole(jpeg)).all()


def test_damage_is_seen_above_and_not_below() -> None:
    jpeg = encoded(picture(200, 120))
    start = scan(jpeg)
    for share, seen in ((0.1, True), (0.3, True), (0.8, False)):
        at = start + int(share * (len(jpeg) - start))
        damaged = jpeg[:at] + END + jpeg[at + 2 :]
        top = decode_top(damaged, "RGB", 60)
        assert (top is None) == seen
        if not seen:
            assert (top[:60] == whole(jpeg)[:60]).all()
            with pytest.raises(ValueError, match="premature end"):
                whole(damaged)


def test_the_file_itself_is_left_as_it_is() -> None:
    jpeg = encoded(picture(200, 120))
    before = bytes(bytearray(jpeg))
    assert decode_top(jpeg, "RGB", 10) is not None
    assert jpeg == before and Image.open(io.BytesIO(jpeg)).size == (120, 200)
