"""Changed image files through the decode stage of all decoders: a picture of the right shape, or an error."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import tensorflow as tf

from tests.support.decoding import PLAIN, decoder_of
from tests.support.images import cmyk, encoded, picture, turned, unmarked, with_alpha, ycck
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import EncodedImages
from tfpipe.data.images.whole import image_sizes
from tfpipe.data.images.windows import full_windows

TARGET = (16, 24)
DECODERS = ("native", "graph")
PICTURE = picture(48, 64, 3)
# Marks of JPEG, and sizes that are none.
PIECES = [
    b"\xff\xd8",
    b"\xff\xd9",
    b"\xff\xda",
    b"\xff\xc0",
    b"\xff\xc2",
    b"\xff\xc4",
    b"\xff\xdd",
    b"\xff\xee",
    b"\xff",
]
PIECES += [b"\0\0", b"\xff\xff", b"\x7f\xff", b"\x80\0", b"\0\1", bytes(64)]


def wholes() -> list[bytes]:
    """Files of each kind; most are JPEGs."""
    gray, inks = PICTURE.convert("L"), cmyk(PICTURE)
    return [
        *(
            encoded(PICTURE, **how)
            for how in ({}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 2})
        ),
        *(encoded(gray), turned(PICTURE), inks, unmarked(inks), ycck(PICTURE)),
        *(encoded(with_alpha(PICTURE), format="PNG"), encoded(PICTURE.quantize(16), format="GIF")),
        *(encoded(PICTURE, format="BMP"), encoded(PICTURE, format="WEBP")),
    ]


def changed_files(count: int, seed: int) -> Iterator[bytes]:
    """Files with something changed, cut out, put in or cut off, the header as often as all of the rest."""
    draw, files = random.Random(seed), wholes()
    for _ in range(count):
        contents = bytearray(draw.choice(files))
        for _ in range(draw.choice((1, 1, 2, 4, 16))):
            at = draw.randrange(min(len(contents), draw.choice((700, len(contents)))) or 1)
            kind = draw.randrange(6)
            if kind == 0:
                contents[at : at + 1] = bytes([draw.randrange(256)])
            elif kind == 1:
                contents[at : at + 1] = bytes([(contents[at] if at < len(contents) else 0) ^ (1 << draw.randrange(8))])
            elif kind == 2:
                piece = draw.choice(PIECES)
                contents[at : at + len(piece)] = piece
            elif kind == 3:
                contents[at:at] = draw.choice(PIECES)
            elif kind == 4:
                del contents[at : at + draw.choice((1, 2, 16, 200))]
            elif draw.random() < 0.3:
                del contents[at:]
        yield bytes(contents)


def fuzz_pictures(count: int, seed: int) -> Counter[str]:
    """How many files had which outcome.

    Raises:
        AssertionError: a picture has another shape than it should.
    """
    decoders = {f"{name}, {channels}": _decoder(name, channels) for name in DECODERS for channels in (3, 1)}
    outcomes: Counter[str] = Counter()
    for number, contents in enumerate(changed_files(count, seed)):
        channels = 1 if number % 8 == 0 else 3
        for name in DECODERS:
            try:
                crop = decoders[f"{name}, {channels}"](tf.constant(contents))
                assert crop.shape == (1, *TARGET, channels) and crop.dtype == tf.uint8
                outcomes[f"{name}: a picture"] += 1
            except tf.errors.OpError as error:
                assert error.message
                outcomes[f"{name}: an error"] += 1
    return outcomes


def _decoder(name: str, channels: int) -> Callable[[tf.Tensor], tf.Tensor]:
    decode = decoder_of(name, channels, TARGET).decode

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
    def whole(contents: tf.Tensor) -> tf.Tensor:
        sizes, zero = image_sizes(contents[None], tf.zeros([1, 2], tf.int32), PLAIN), tf.zeros([1], tf.int64)
        windows = Windows(zero, zero, full_windows(sizes), tf.zeros([1], tf.int32))
        return decode(EncodedImages(contents[None]), sizes, windows, tf.zeros(0, tf.bool))

    return whole
