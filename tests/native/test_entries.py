"""Entry points: the same pixels from any window, and those of a changed file or of forged bytes are not followed."""

import random
import struct

import numpy as np
from PIL import Image

from tests.support.core import DAMAGED, Core, generated_jpeg, window_of
from tests.support.examples import examples
from tests.support.images import encoded, picture

SIZE = (200, 240)
HEAD = 32  # bytes, as entries.c has them


def test_crops_are_the_same_with_and_without(core: Core) -> None:
    draw, found, count = random.Random(3), 0, examples(300)
    for _ in range(count):
        jpeg, size = generated_jpeg(draw, draw.choice((20, 120, 300)))
        entries = core.entries(jpeg, draw.choice((1, 2, 3, 8, 255)))
        windows, channels = [window_of(draw, size) for _ in range(draw.randint(1, 3))], draw.choice((3, 1))
        asked = jpeg, size, windows, (draw.randint(1, 40), draw.randint(1, 40)), channels
        plain = core.crops(*asked)
        assert not isinstance(plain, int) and np.array_equal(core.crops(*asked, entries=entries), plain)
        found += bool(entries)
    assert found > count / 4


def test_the_codes_before_a_window_are_not_read(core: Core) -> None:
    """They are damaged after the entry points were found, and the crop is what it was."""
    jpeg = encoded(picture(*SIZE), subsampling=0)
    entries, window = core.entries(jpeg, 8), (160, 100, 40, 60)
    expected = core.crops(jpeg, SIZE, [window], (40, 60))
    start = jpeg.index(b"\xff\xda")
    at = start + (len(jpeg) - start) // 3
    # As many bytes without stuffing as before; none of those that are hashed.
    changed = bytes(byte ^ 1 if 1 < byte < 254 else byte for byte in jpeg[at : at + 200])
    spoilt = jpeg[:at] + changed + jpeg[at + 200 :]
    assert np.array_equal(core.crops(spoilt, SIZE, [window], (40, 60), entries=entries), expected)
    assert not np.array_equal(core.crops(spoilt, SIZE, [window], (40, 60)), expected)


def test_a_change_within_a_window_is_noticed(core: Core) -> None:
    jpeg = encoded(picture(*SIZE), subsampling=0)
    entries, window = core.entries(jpeg, 8), (0, 0, *SIZE)
    draw, start, differ = random.Random(1), jpeg.index(b"\xff\xda") + 1024, 0
    for _ in range(60):
        at = draw.randrange(start, len(jpeg) - 1024)
        spoilt = jpeg[:at] + bytes([jpeg[at] ^ 1 << draw.randrange(8)]) + jpeg[at + 1 :]
        plain, used = (core.crops(spoilt, SIZE, [window], SIZE, entries=each) for each in (None, entries))
        differ += not np.array_equal(used, plain)
        assert np.array_equal(used, plain) or isinstance(used, int)
    assert differ, "no entry point was compared with where the codes end"


def test_a_file_that_has_changed_is_decoded_from_its_start(core: Core) -> None:
    draw = random.Random(2)
    jpeg = encoded(picture(*SIZE))
    entries, window = core.entries(jpeg, 4), (90, 100, 60, 70)
    others = [
        encoded(picture(*SIZE, seed=1)),
        jpeg + b"\0",
        jpeg[:-1] + b"\xd8",
        jpeg[:2] + b"\xff\xfe\0\x03x" + jpeg[2:],
        encoded(picture(*SIZE), subsampling=0),
        encoded(picture(*SIZE).convert("L")),
    ]
    for other in others:
        asked = other, SIZE, [window], (60, 70)
        assert np.array_equal(core.crops(*asked, entries=entries), core.crops(*asked))
    for _ in range(200):
        length = draw.randrange(len(entries) + 1)
        forged = bytearray(entries[:length])
        if forged and draw.random() < 0.7:
            forged = bytearray(entries)
            forged[draw.randrange(len(forged))] ^= 1 << draw.randrange(8)
        asked = jpeg, SIZE, [window], (60, 70)
        assert np.array_equal(core.crops(*asked, entries=bytes(forged)), core.crops(*asked))


def test_files_with_restart_intervals_and_those_that_are_refused_have_none(core: Core) -> None:
    image = picture(60, 90)
    damaged = encoded(image)[:-400]
    files = [encoded(image, restart_marker_rows=1), encoded(image, progressive=True), damaged, b"", b"\xff\xd8"]
    assert [core.entries(file, 8) for file in files] == [b""] * len(files)
    assert [core.entries(encoded(image), every) for every in (0, -1, 256)] == [b""] * 3


def test_each_row_has_its_own_entry_points(core: Core) -> None:
    """Of 23 MCUs in a row and 4 rows, every eighth: 3 a row; the first is at the first bit, where DC is 0."""
    entries = core.entries(encoded(picture(4 * 16, 23 * 16)), 8)
    kind, every, bits, lowest, count = entries[16], entries[17], entries[18:22], entries[22:28], entries[28:32]
    assert (kind, every, *struct.unpack("<I", count)) == (1, 8, 12)
    record_bits = sum(bits)
    assert len(entries) == HEAD + (12 * record_bits + 7) // 8 + 8
    records = int.from_bytes(entries[HEAD:], "little")
    fields, offsets = [], []
    for number in range(12):
        record, values = records >> number * record_bits, []
        for width in bits:
            values.append(record & (1 << width) - 1)
            record >>= width
        offsets.append(values[0])
        fields.append([value + low for value, low in zip(values[1:], struct.unpack("<3h", lowest), strict=True)])
    assert offsets[0] == 0 and offsets == sorted(set(offsets)) and fields[0] == [0, 0, 0]
    assert len({tuple(field) for field in fields}) == 12


def test_one_that_leads_beyond_the_data_is_damage(core: Core) -> None:
    """A forged offset with its hash made anew: it is not followed out of the file's memory."""
    jpeg = encoded(Image.new("RGB", (400, 300), (9, 99, 9)))
    entries = bytearray(core.entries(jpeg, 4))
    entries[HEAD:] = b"\xff" * (len(entries) - HEAD)
    entries[8:16] = struct.pack("<Q", hashed(bytes(entries)))
    assert core.crops(jpeg, (300, 400), [(280, 380, 20, 20)], (20, 20), entries=bytes(entries)) == DAMAGED


def hashed(entries: bytes) -> int:
    """The second hash of entries.c."""
    (seed,), rest, whole = struct.unpack("<Q", entries[:8]), entries[16:], 0x9E3779B97F4A7C15
    words = [rest[at : at + 8] for at in range(0, len(rest) - 7, 8)]
    for word in words:
        seed = (seed ^ int.from_bytes(word, "little")) * whole % 2**64
        seed ^= seed >> 32
    seed = (seed ^ int.from_bytes(rest[8 * len(words) :], "little")) * whole % 2**64
    return seed ^ seed >> 32
