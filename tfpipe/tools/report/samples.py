"""Computes from a recording how long each sample was read and decoded."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tfpipe.data.runtime.recording import Recording
from tfpipe.native import EventKind


class SampleTime(NamedTuple):
    """A time that a sample spent in a stage."""

    position: int  # in the stream
    stage: str  # "read", or "decode" with the resize
    seconds: float


class Decoded(NamedTuple):
    """Work of the decoder in C, an image or a whole call; times in nanoseconds, the first since 1970."""

    position: int | None  # in the stream; None for a call, or if the call was not marked
    thread: int
    start_ns: int
    parts_ns: tuple[int, int, int]
    """Parts of an image: header; decode; resize, which includes the conversion of colours and mirroring. Parts of a
    call: allocation of the crops; the images; freeing the JPEGs."""

    @property
    def ns(self) -> int:
        """Sum of the parts."""
        return sum(self.parts_ns)


def sample_times(recording: Recording) -> dict[int, list[SampleTime]]:
    """Returns the known times of the samples, by position."""
    result: dict[int, list[SampleTime]] = {}
    began_ns: dict[int, int] = {}
    for event in recording.events.tolist():
        when_ns, position, kind = event[0], event[1], event[-2]
        if kind == EventKind.READ:
            began_ns[position] = when_ns
        elif kind == EventKind.READ_END and position in began_ns:
            seconds = 1e-9 * (when_ns - began_ns.pop(position))
            result.setdefault(position, []).append(SampleTime(position, "read", seconds))
    for image in decoded_images(recording.events):
        if image.position is not None:
            result.setdefault(image.position, []).append(SampleTime(image.position, "decode", 1e-9 * image.ns))
    return result


def decoded_images(events: np.ndarray) -> Iterator[Decoded]:
    """Yields the IMAGE events; a refused image, which another decoder decodes, is left out."""
    # An address belongs to another call later: the samples handed over last with it count, all at the same time.
    handed: dict[int, tuple[int, list[int]]] = {}
    for when_ns, sample, call, thread, *parts_ns, kind, refused in events.tolist():
        if kind == EventKind.DECODE:
            if call not in handed or handed[call][0] != when_ns:
                handed[call] = (when_ns, [])
            handed[call][1].append(sample)
        elif kind == EventKind.IMAGE and not refused:
            _, positions = handed.get(call, (0, []))
            yield Decoded(positions[sample] if sample < len(positions) else None, thread, when_ns, tuple(parts_ns))


def decoder_calls(events: np.ndarray) -> Iterator[Decoded]:
    """Yields the calls of the decoder's op."""
    for when_ns, _, _, thread, *parts_ns, _, _ in events[events["kind"] == EventKind.CALL].tolist():
        yield Decoded(None, thread, when_ns, tuple(parts_ns))
