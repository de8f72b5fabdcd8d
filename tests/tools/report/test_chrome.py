"""A trace in Chrome's format: its lanes, arrows and nesting, on one clock for all ranks."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfpipe.data.runtime.recording import Recording, TracedBatch
from tfpipe.native import EventKind, core
from tfpipe.tools.report.chrome import chrome_events
from tfpipe.tools.report.runs import Ranks
from tfpipe.tools.report.trace import Span, Step, Trace

BEGAN_S = 1_700_000_000.0
BEGAN_NS = round(1e9 * BEGAN_S)
OP, RUN = "crop/decode/TfpipeCrops:TfpipeCrops", "ExecutorState::Process"


def batch(number: int, began_s: float, ready_s: float, reduce_s: float = 0.0) -> TracedBatch:
    """A batch that is taken 10 ms after the wait for it began, and trained in 80 ms."""
    times_s = (BEGAN_S + began_s, BEGAN_S + ready_s, BEGAN_S + began_s + 0.01, BEGAN_S + began_s + 0.09)
    return TracedBatch(number, *times_s, reduce_s, np.array([[2 * number, 0], [2 * number + 1, 0]]))


def event(
    kind: EventKind, ms: float, sample: int, thread: int = 7, call: int = 1, parts_ms: tuple = (0, 0, 0)
) -> tuple:
    """An event `ms` after the trace's beginning."""
    parts = (round(1e6 * part) for part in parts_ms)
    return (BEGAN_NS + round(1e6 * ms), sample, call, thread, *parts, int(kind), 0)


def trace(rank: int = 0, later_s: float = 0.0) -> Trace:
    """Two steps of a rank: a thread reads sample 2, another one decodes samples 2 and 3 in one call."""
    events = [
        event(EventKind.READ, 1.0, 2, thread=9),
        event(EventKind.READ_END, 8.9, 2, thread=9),
        *(event(EventKind.DECODE, 20.1, position) for position in (2, 3)),
        event(EventKind.IMAGE, 21.0, 0, parts_ms=(0.100021, 2.999977, 0.900002)),
        event(EventKind.IMAGE, 25.0, 1, parts_ms=(0.100007, 3.999983, 0.900010)),
    ]
    batches = [batch(1, 0.0, 0.005, reduce_s=0.03), batch(2, 0.1, 0.02)]
    recording = Recording(rank, f"host{rank}", batches, {2: "/data/a.JPEG"}, np.array(events, core().event))
    calls = (
        Span("reader", "read", 0.0009, 0.008, RUN, "run 1"),
        Span("decoder", "decode", 0.02, 0.012, RUN),
        Span("decoder", "decode", 0.0205, 0.01, OP),
    )
    gpu = (Span("GPU:0 Stream #1", "conv", 0.05, 0.01),)
    steps = (Step(1, 0.0, 0.09, 0.01), Step(2, 0.1, 0.09, 0.01))
    origin_ns = BEGAN_NS + round(1e9 * later_s)
    return Trace(Path("t"), 0.19, steps, (), calls, gpu, origin_ns, recording)


def lanes(events: list[dict[str, Any]]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """The spans of each lane, by process and the lane's name."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[tuple[int, str], list[dict[str, Any]]] = {(pid, names[pid, tid]): [] for pid, tid in sorted(names)}
    for one in events:
        if one["ph"] == "X":
            found[one["pid"], names[one["pid"], one["tid"]]].append(one)
    return found


def check_nesting(spans: list[dict[str, Any]]) -> None:
    """Asserts that no two spans of a lane cross."""
    open_ends: list[float] = []
    for span in spans:
        end = span["ts"] + span["dur"]
        while open_ends and open_ends[-1] <= span["ts"] + 1e-4:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + 1e-3, span
        open_ends.append(end)


def test_steps_batches_threads_and_devices_have_lanes() -> None:
    found = lanes(list(chrome_events([Ranks(Path("run"), (trace(),))])))
    assert [lane for _, lane in found] == [
        *("training steps", "batches ready", "crop thread 1", "read thread 1", "GPU:0 Stream #1")
    ]
    steps = found[0, "training steps"]
    assert [(span["name"], round(span["ts"]), round(span["dur"])) for span in steps[:4]] == [
        *(("step 1", 0, 90_000), ("wait for input", 0, 10_000), ("compute", 10_000, 50_000), ("reduce", 60_000, 30_000))
    ]
    assert steps[0]["args"] == {
        **{"batch": 1, "positions": "2 3", "wait_ms": 10, "delay_ms": 5},
        "slowest": "read of 2, 7.9 ms: /data/a.JPEG",
    }
    assert [span["name"] for span in steps[4:]] == ["step 2", "wait for input", "compute"]
    (read,) = found[0, "read thread 1"]
    assert read["name"] == "read call" and read["args"]["file"] == "/data/a.JPEG" and read["args"]["position"] == 2


def test_the_parts_of_the_decoder_fill_its_images() -> None:
    spans = lanes(list(chrome_events([Ranks(Path("run"), (trace(),))])))[0, "crop thread 1"]
    check_nesting(spans)
    names = [span["name"] for span in spans]
    image = ["image", "header", "decode", "resize"]
    assert names == ["crop call", "decode + resize", *image, *image]
    assert [span["args"]["position"] for span in spans if span["name"] == "image"] == [2, 3]
    parts_us = sum(span["dur"] for span in spans if span["name"] in image[1:])
    assert parts_us == pytest.approx(sum(span["dur"] for span in spans if span["name"] == "image"))


def test_an_arrow_leads_from_ready_to_taken() -> None:
    events = list(chrome_events([Ranks(Path("run"), (trace(),))]))
    arrows = defaultdict(list)
    for one in events:
        if one["ph"] in "sf":
            arrows[one["id"]].append((one["ph"], one["tid"], round(one["ts"])))
    assert sorted(arrows.values()) == [[("s", 2, 5_000), ("f", 1, 10_001)], [("s", 2, 20_000), ("f", 1, 110_001)]]
    # An arrow begins and ends within a span, or a viewer drops it.
    for ends in arrows.values():
        for _, tid, ts in ends:
            assert any(e["ph"] == "X" and e["tid"] == tid and e["ts"] - 1 < ts < e["ts"] + e["dur"] for e in events)


def test_ranks_are_on_one_clock() -> None:
    both = Ranks(Path("run"), (trace(rank=0, later_s=0.0), trace(rank=1, later_s=0.25)))
    found = lanes(list(chrome_events([both])))
    assert found[1, "crop thread 1"][0]["ts"] - found[0, "crop thread 1"][0]["ts"] == pytest.approx(250_000)


def test_spans_that_cross_are_cut() -> None:
    crossing = Span("decoder", "visit", 0.0318, 0.001, RUN)
    one = trace()
    events = chrome_events([Ranks(Path("run"), (replace(one, calls=(*one.calls, crossing)),))])
    spans = lanes(list(events))[0, "crop thread 1"]
    check_nesting(spans)
    assert "visit call" in {span["name"] for span in spans}
