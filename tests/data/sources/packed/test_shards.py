"""Places of records: within their shards, whatever numbers a table has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.data.catalog.paths import FileList
from tfpipe.data.sources.packed.shards import Records, Shards
from tfpipe.errors import ConfigError

INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (31, 63))
PLACES = st.tuples(st.integers(-2, 4) | INT32, st.integers(-2, 90) | INT64, st.integers(-2, 90) | INT64)
NAMES = FileList.of(f"a/{number}.jpg" for number in range(9))


def shards_of(places: list[tuple[int, int, int]], paths: int) -> Shards:
    columns = zip(*places, strict=True) if places else ([], [], [])
    shard, offset, length = (np.array(column, np.int64) for column in columns)
    images = np.arange(len(places), dtype=np.int32)
    return Shards("raw", list("pqrs"[:paths]), Records(images, images, shard.astype(np.int32), offset, length))


@given(st.lists(PLACES, max_size=9), st.lists(st.integers(0, 100), max_size=4), st.sampled_from([None, 12]))
def test_exactly_the_records_within_their_shards_are_accepted(
    places: list[tuple[int, int, int]], sizes: list[int], length: int | None
) -> None:
    """With whole numbers of Python, which do not overflow."""

    def is_within(shard: int, offset: int, size: int) -> bool:
        within = 0 <= shard < len(sizes) and 0 <= offset and 0 <= size and offset + size <= sizes[shard]
        return within and (length is None or (size == length and (offset - places[0][1]) % length == 0))

    wrong = [number for number, place in enumerate(places) if not is_within(*place)]
    if not wrong:
        shards_of(places, len(sizes)).check_places(sizes, NAMES, "pack again", length)
        return
    with pytest.raises(ConfigError, match=rf"the record of a/{wrong[0]}\.jpg is .*; pack again"):
        shards_of(places, len(sizes)).check_places(sizes, NAMES, "pack again", length)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((7, 0, 12), "the record of a/0.jpg is in shard 7, and there are 2, counted from 0; do"),
        ((1, -3, 12), "q: the record of a/0.jpg is 12 bytes from byte -3 on, and the shard has 24; do"),
        ((0, 0, 11), "p: the record of a/0.jpg is 11 bytes from byte 0 on, and pixels are 12 bytes each"),
    ],
)
def test_the_place_is_named(place: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        shards_of([place], 2).check_places([24, 24], NAMES, "do", 12)
    assert message in str(refused.value)
