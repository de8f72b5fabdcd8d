"""Boxes that move with their crops, against arithmetic of one box at a time."""

import numpy as np
import pytest

from tfpipe.data.targets.boxes import Frame, moved_boxes

WIDTH = 224
CROP = (WIDTH, WIDTH)


def by_hand(
    box: np.ndarray, size: np.ndarray, window: np.ndarray, place: np.ndarray, flip: bool, min_visible: float
) -> list[float] | None:
    """The box in its crop, in Python's floats: xmin, ymin, xmax, ymax; None if it is left out."""
    edges, seen = [], 1.0
    for axis in (0, 1):
        low, high = (float(box[axis + end]) * int(size[axis]) - int(window[axis]) for end in (0, 2))
        inside = [min(max(edge, 0.0), float(window[2 + axis])) for edge in (low, high)]
        scale, start = int(place[2 + axis]) / int(window[2 + axis]), int(place[axis])
        inside = [min(max(start + edge * scale, 0.0), float(WIDTH)) for edge in inside]
        seen *= (inside[1] - inside[0]) / ((high - low) * scale) if high > low else 0.0
        edges.append(inside)
    (top, bottom), (left, right) = edges
    if flip:
        left, right = WIDTH - right, WIDTH - left
    return None if seen == 0 or seen < min_visible else [left, top, right, bottom]


@pytest.mark.parametrize("kind", ["stretch", "letterbox", "cover"])
def test_ten_thousand_boxes_are_within_a_ten_thousandth_of_a_pixel(kind: str) -> None:
    random_, count, min_visible = np.random.default_rng(1), 10_000, 0.25
    size = random_.integers(1, 5000, (count, 2))
    begin = (random_.random((count, 2)) * size).astype(int)
    window = np.concatenate([begin, 1 + (random_.random((count, 2)) * (size - begin)).astype(int)], 1)
    corners = np.sort(random_.random((count, 2, 2)), axis=1).astype(np.float32)
    boxes = corners.reshape(count, 4)
    flip = random_.random(count) < 0.5
    place = np.tile([0, 0, WIDTH, WIDTH], (count, 1))
    if kind == "letterbox":
        place[:, 1], place[:, 3] = 40, WIDTH - 80
    if kind == "cover":
        place[:] = -16, -58, 256, 341
    frames = Frame(*(np.array(part, kind) for part, kind in ((size, np.int32), (window, np.int32), (flip, bool))))
    moved, kept = (part.numpy() for part in moved_boxes(boxes, frames, place.astype(np.int32), CROP, min_visible))
    expected = [by_hand(*parts, min_visible) for parts in zip(boxes, size, window, place, flip.tolist(), strict=True)]
    # A share of exactly the smallest one may fall on either side of it.
    assert np.mean(kept == [each is not None for each in expected]) > 0.9999
    assert 0.05 < kept.mean() < 0.9
    both = [number for number in np.flatnonzero(kept) if expected[number] is not None]
    assert np.abs(moved[both] - np.array([expected[number] for number in both])).max() < 1e-4


def test_a_box_that_is_seen_as_far_as_asked_for_is_kept() -> None:
    """The whole of it, or a half; of the one that the window cuts only the half is seen."""
    boxes = np.array([[0.5, 0.25, 0.75, 0.5], [0.25, 0, 0.75, 1]], np.float32)
    frames = Frame(np.full((2, 2), 128, np.int32), np.tile(np.int32([64, 0, 64, 128]), (2, 1)), np.zeros(2, bool))
    place = np.tile(np.int32([0, 0, 32, 32]), (2, 1))
    for min_visible, kept in ((0.5, [True, True]), (0.51, [True, False]), (1.0, [True, False])):
        assert moved_boxes(boxes, frames, place, (32, 32), min_visible)[1].numpy().tolist() == kept


@pytest.mark.parametrize("size", [[640, 480], [333, 500], [10_000, 7_919]])
def test_a_box_that_ends_at_the_windows_edge_has_no_part_in_the_crop_however_it_was_rounded(size: list[int]) -> None:
    """Whole pixels, in float32 shares of the image; one pixel further in, a box is kept even of the smallest crop."""
    random_, count = np.random.default_rng(2), 2000
    sides = np.array(size)
    edge = 1 + (random_.random((count, 2)) * (sides - 2)).astype(int)
    begin = (random_.random((count, 2)) * edge).astype(int)
    boxes = (np.concatenate([begin, edge], 1) / np.tile(sides, 2)).astype(np.float32)
    for inside in (0, 1):
        window = np.concatenate([edge - [inside, inside], sides - edge + inside], 1).astype(np.int32)
        frames = Frame(np.tile(np.int32(size), (count, 1)), window, random_.random(count) < 0.5)
        place = np.tile(np.int32([0, 0, 32, 32]), (count, 1))
        moved, kept = (part.numpy() for part in moved_boxes(boxes, frames, place, (32, 32), 0.0))
        assert (kept == bool(inside)).all()
        assert (moved[kept, 2:] > moved[kept, :2]).all()


def test_a_box_without_an_area_in_the_crop_is_left_out() -> None:
    boxes = np.array([[0, 0, 0.5, 0.5], [0, 0, 1, 1], [0.5, 0.2, 0.9, 0.2]], np.float32)
    frames = Frame(np.full((3, 2), 100, np.int32), np.tile(np.int32([50, 0, 50, 100]), (3, 1)), np.zeros(3, bool))
    moved, kept = moved_boxes(boxes, frames, np.tile(np.int32([0, 0, 10, 10]), (3, 1)), (10, 10), 0.0)
    assert kept.numpy().tolist() == [False, True, False]
    assert moved[1].numpy().tolist() == [0, 0, 10, 10]
