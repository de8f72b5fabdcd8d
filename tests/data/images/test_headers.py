"""Headers: what Pillow says of an image, faster."""

import io
import struct
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.sample import SampleData
from tfpipe.data.images.headers import Header, header_of, jpeg_header, read_header


def encode(kind: str = "JPEG", mode: str = "RGB", **how: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (301, 20)).save(buffer, kind, **how)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "components", "kind", "quick"),
    [
        pytest.param(encode(), 3, "JPEG", True, id="baseline"),
        pytest.param(encode(progressive=True), 3, "JPEG", True, id="progressive"),
        pytest.param(encode(mode="L"), 1, "JPEG", True, id="gray"),
        pytest.param(encode(mode="CMYK"), 4, "JPEG", True, id="cmyk"),
        pytest.param(encode(exif=b"Exif\0\0" + bytes(9000)), 3, "JPEG", False, id="after-a-thumbnail"),
        pytest.param(b"\xff\xd8\xff" + encode()[2:], 3, "JPEG", False, id="filled"),
        pytest.param(encode("PNG"), 3, "PNG", False, id="png"),
        pytest.param(encode("GIF", "P"), 3, "GIF", False, id="gif"),
        pytest.param(encode("BMP"), 3, "BMP", False, id="bmp"),
    ],
)
def test_a_header_says_size_components_and_format(
    tmp_path: Path, content: bytes, components: int, kind: str, quick: bool
) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    header = Header(20, 301, components, kind)
    assert read_header(str(tmp_path / "a.jpg")) == header
    assert jpeg_header(content[:4096]) == (header if quick else None)


def test_the_samples_images_are_as_pillow_has_them(sample: SampleData) -> None:
    for path in sample.train.read_text().split():
        with Image.open(path) as image:
            found = Header(image.height, image.width, len(image.getbands()), "JPEG")
        assert read_header(path) == found


@pytest.mark.parametrize(
    "content",
    [b"", b"no image", encode()[:20], encode("TIFF")[:20], encode("PNG")[:18], encode("BMP")[:20], encode("WEBP")[:40]],
    ids=["empty", "text", "half a JPEG", "half a TIFF", "half a PNG", "half a BMP", "half a WebP"],
)
def test_what_is_no_whole_image_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.jpg is no JPEG, PNG, GIF, BMP, WEBP, TIFF.* image"):
        read_header(str(tmp_path / "a.jpg"))
    with pytest.raises(ValueError, match=r"a\.jpg is no JPEG, PNG, GIF, BMP, WEBP, TIFF.* image"):
        header_of(content, "a.jpg")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"a\.jpg"):
        read_header(str(tmp_path / "a.jpg"))


@pytest.mark.parametrize("marker", [0xC9, 0xDA])
def test_a_frame_that_libjpeg_does_not_see_is_not_the_header(marker: int) -> None:
    """After an arithmetic-coded frame or a scan, whose sizes count, a forged file may hold a small one."""
    first = struct.pack(">BBHBHHB", 0xFF, marker, 17, 8, 60_000, 60_000, 3) + bytes(9)
    assert jpeg_header(encode()) is not None
    assert jpeg_header(encode()[:2] + first + encode()[2:]) is None
