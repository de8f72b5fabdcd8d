"""The page of a run: self-contained, with a text for each figure, and with rank, batch and file of what was slow."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.late import LATE_S, delay_one
from tests.support.pages import findings_of, read_page, titles_of
from tests.support.recorded import unpack
from tests.support.sample import SampleData
from tfpipe import Config, World
from tfpipe.cli import main
from tfpipe.data.runtime.recording import Recording, TracedBatch
from tfpipe.data.runtime.tracing import Window
from tfpipe.errors import ConfigError
from tfpipe.native import core
from tfpipe.tools.bench.bench import trace
from tfpipe.tools.report.figures import POINTS, RANKS, Line, chosen_ranks, thin
from tfpipe.tools.report.page import WORST, sample_pictures, timeline, worst_batches, write_page
from tfpipe.tools.report.runs import load_run
from tfpipe.tools.report.text import as_json, render


def test_a_late_file_is_named_at_once_with_its_rank_and_batch(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(num_parallel_readers=1, prefetch_buffer_size=0, decoder="graph")
    late = delay_one(monkeypatch, config, 45)
    trace(config, World(), Window(1, 8), tmp_path / "run")  # without its first batch
    assert main(["report", str(tmp_path / "run"), "--html", str(tmp_path / "out.html")]) == 0
    page = read_page(tmp_path / "out.html")
    (finding,) = [text for text in findings_of(page) if text.startswith("slowest batch")]
    number = int(re.search(r"rank 0 \(host .*\) waited .* ms for batch (\d+)", finding)[1])
    assert late in finding and "to read" in finding
    # One click leads to the batch, with its samples, and the pointer on the timeline's bar shows the same.
    (link,) = page.xpath("//ul[@class='findings']/li[starts-with(., 'slowest batch')]/a/@href")
    (row,) = page.xpath(f"//tr[@id='{link[1:]}']")
    assert [cell.text_content() for cell in row[:2]] == ["0", str(number)] and float(row[2].text) >= 1000 * LATE_S
    (first, *_) = row.xpath(".//details//tbody/tr")
    assert first[0].text_content() == late and float(first[2].text_content()) >= 1000 * LATE_S
    assert [text for text in titles_of(page) if text.startswith(f"rank 0, batch {number}, {late}: wait for input")]
    # The crops are drawn, since the data is there.
    (picture,) = page.xpath("//img")
    assert picture.get("src").startswith("data:image/jpeg;base64,") and "as training sees them" in picture.get("alt")


def test_a_straggler_a_stall_and_a_resume_are_told(tmp_path: Path) -> None:
    run_dir = unpack("straggler", tmp_path)
    with (run_dir / "metrics.jsonl").open("a") as file:
        for seconds in (30.5, 61.0):  # it is reported again while it lasts
            stall = {"seconds": seconds, "in": "input", "rank": 0}
            file.write(json.dumps({"epoch": 1, "step": 17, "stall": stall}) + "\n")
    start = {"time": 1.8e9, "event": "start", "step": 0, "epoch": 0, "ranks": 3, "host": "n1", "pid": 7}
    failure = {"time": 1.8e9 + 130, "event": "failure", "step": 20, "epoch": 1}
    events: list[dict[str, Any]] = [
        {**start, "versions": {"keras": "3.15.1"}},
        {"time": 1.8e9 + 60, "event": "checkpoint", "step": 8, "epoch": 0, "file": "step-8.npz", "seconds": 0.1},
        {**start, "time": 1.8e9 + 90, "step": 8},
        {"time": 1.8e9 + 99, "event": "stop", "step": 20, "epoch": 1, "by": "SIGTERM"},
        {**start, "time": 1.8e9 + 120, "step": 20},
        {**failure, "reason": "rank 2: cannot use /a.jpg"},
        {**failure, "reason": "rank 0: rank 2 on host n1 has failed: cannot use /a.jpg"},
        {**start, "time": 1.8e9 + 140, "step": 24},
        {"time": 1.8e9 + 150, "event": "end", "step": 25, "epoch": 1},
    ]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"time": 1')
    write_page(load_run(run_dir), tmp_path / "out.html")
    page = read_page(tmp_path / "out.html")
    straggler, stall_text, killed, stopped, failed, *more = findings_of(page)
    assert more == [] and "rank 2 (host vm) is 10.0 times slower" in straggler
    assert "rank 0: step 17 of epoch 1 was open for 61 s, waiting for its input" in stall_text
    assert "ended without a word" in killed and "by SIGTERM after step 20" in stopped
    assert failed.startswith("failed: rank 2: cannot use /a.jpg, 2027-01-15"), "once, by the rank that has failed"
    headline, _, change = page.xpath("//section[@class='verdict']/p")
    assert "all ranks wait for rank 2" in headline.text_content() and "--profile-ranks 2" in change.text_content()
    # The curve's points tell rank and step, and the table of numbers the same.
    assert any(re.fullmatch(r"rank 2, step 10: 220\.2 ms", text) for text in titles_of(page))
    assert {"stall of 61 s in step 17", "resumed after step 8", "resumed after step 20"} <= set(titles_of(page))
    cells = page.xpath("//figure[@id='wait-by-rank']//tbody/tr[1]/td/text()")
    assert cells == ["10", "3.7", "16.24", "220.2"]
    kinds = page.xpath("//section[@aria-labelledby='events']//tbody/tr/td[2]/text()")
    assert kinds == ["start", "checkpoint", "resume", "stop", "resume", "failure", "failure", "resume", "end"]
    versions = page.xpath("//section[@aria-labelledby='config']//dd/text()")
    assert versions == ["3.15.1"] and "cannot be drawn" in page.xpath("string(//section[@aria-labelledby='pictures'])")


def failing(images: Any, labels: Any) -> Any:
    raise LookupError("no such statistics")


def test_a_page_says_why_a_transform_draws_no_crops(sample: SampleData, tmp_path: Path) -> None:
    config = sample.config(tmp_path / "c.json", data={"transform": f"{__name__}:failing"})
    picture, text = sample_pictures(config)
    assert picture == "" and text.startswith("The crops cannot be drawn here: ") and "no such statistics" in text


@pytest.mark.parametrize("name", ["decode", "bench", "compute"])
def test_every_recorded_run_has_a_page(tmp_path: Path, name: str) -> None:
    write_page(load_run(unpack(name, tmp_path)), tmp_path / "out.html")
    page = read_page(tmp_path / "out.html")
    stages = page.xpath("//section[@aria-labelledby='stages']//tbody/tr/th/text()")
    assert {"read", "crop"} <= set(stages)


def test_a_run_that_fails_before_its_first_interval_has_a_page_with_the_reason(tmp_path: Path) -> None:
    start = {"time": 1.0, "event": "start", "step": 0, "epoch": 0, "ranks": 2, "host": "n1", "pid": 7, "versions": {}}
    failure = {"time": 2.0, "event": "failure", "step": 0, "epoch": 0, "reason": "rank 1: cannot use /x/cat.jpg"}
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (start, failure)))
    run = load_run(tmp_path)
    assert as_json(run)["verdict"]["kind"] == "none" and "NOTHING MEASURED" in render([run])
    assert "NOTHING MEASURED" in render([run, run]) and "input wait" not in render([run, run])
    write_page(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "NOTHING MEASURED" in page and "rank 1: cannot use /x/cat.jpg" in page and "nan %" not in page


def recording(rank: int, count: int, file: str) -> Recording:
    """Batches 0 to `count` of one sample each; batch n waits n ms."""
    batches = [
        TracedBatch(n, 10.0 + n, 9.5 + n, 10.0 + 1.001 * n, 11.0 + n, 0.1, np.array([[n, 0]])) for n in range(count)
    ]
    return Recording(rank, "n1", batches, dict.fromkeys(range(count), file), np.zeros(0, core().event))


def test_the_longest_waits_of_all_ranks_come_first_whatever_the_files_name() -> None:
    odd = "<b>&\x07\udce4.JPEG"
    worst = worst_batches([recording(0, 30, "a.JPEG"), recording(3, 40, odd)])
    assert len(worst) == WORST and [(each.row.rank, each.row.batch) for each in worst[:2]] == [(3, 39), (3, 38)]
    assert {(each.row.rank, each.row.batch) for each in worst[10:12]} == {(3, 29), (0, 29)}
    assert worst[0].row.wait_ms == pytest.approx(39, abs=0.01) and worst[0].samples == [(odd, "", "")]
    svg = timeline(worst).svg
    assert "rank 3, batch 39" in svg and "\x07" not in svg
    svg.encode()


def test_of_many_ranks_those_that_wait_longest_are_drawn() -> None:
    lines = [Line(f"rank {rank}", [1, 2], [rank, rank + 1]) for rank in range(50)]
    names = [line.name for line in chosen_ranks(lines)]
    assert names == [*(f"rank {rank}" for rank in range(49, 50 - RANKS, -1)), "median of 50 ranks"]
    assert chosen_ranks(lines[:RANKS]) == lines[:RANKS]
    long = thin(Line("x", list(range(10_000)), [1.0] * 5000 + [3.0] * 5000))
    assert len(long.x) == len(long.y) == POINTS and np.mean(long.y) == pytest.approx(2, abs=0.02)


def test_what_is_missing_or_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = unpack("compute", tmp_path)
    assert main(["report", str(run_dir), str(run_dir), "--html", str(tmp_path / "x.html")]) == 2
    assert "--html writes the page of one run, and 2 are given" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="cannot write"):
        write_page(load_run(run_dir), tmp_path / "no" / "x.html")


def test_a_page_is_safe(tmp_path: Path) -> None:
    run_dir = unpack("compute", tmp_path)
    config = {"<script>": "<i>", "data": {"remote": {"options": {"headers": {"Authorization": "Bearer secret"}}}}}
    (run_dir / "config.json").write_text(json.dumps(config))
    run = replace(load_run(unpack("decode", tmp_path)), folder=run_dir)
    write_page(run, tmp_path / "x.html")
    page = read_page(tmp_path / "x.html")
    config["data"]["remote"]["options"]["headers"] = "***"
    assert page.xpath("string(//details/pre)") == json.dumps(config, indent=2) and not page.xpath("//i")


def test_what_a_page_needs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = unpack("compute", tmp_path)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", str(run_dir), "--html", str(tmp_path / "x.html")]) == 2
    read = capsys.readouterr().err
    assert "--html needs Jinja2" in read and "pip install 'tfpipe[profile]'" in read
