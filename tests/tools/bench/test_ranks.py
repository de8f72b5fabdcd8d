"""The bench of several ranks: when they count, and what is made of it; test_two_ranks.py has real ranks."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sample import SampleData
from tfpipe import World
from tfpipe.config import load_config
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.bench import BenchPlan
from tfpipe.tools.bench.machine import Machine
from tfpipe.tools.bench.ranks import RanksReport
from tfpipe.tools.bench.text import as_json, render
from tfpipe.tools.measure import Count, Segment, measure


def test_a_rank_goes_on_until_all_are_there_and_counts_only_what_is_between() -> None:
    delivered = []

    def source() -> Iterator[Count]:
        for images in range(1, 1000):
            delivered.append(images)
            yield Count(images, 2 * images)

    polls = iter([False, False, True, False, False, False, True])
    arrived_at = []

    def arrive() -> Callable[[], bool]:
        arrived_at.append(delivered[-1])
        return lambda: next(polls)

    made = measure(source(), seconds=0, lead_in_s=0, arrive=arrive)
    # 1; here, 2 and 3 while others warm up; 4 counts; here again, 5, 6 and 7 while others measure.
    assert (made.images, made.crops) == (1, 2)
    assert arrived_at == [1, 4] and delivered[-1] == 7


def segment(images: int, seconds: float, cpu_seconds: float) -> Segment:
    return Segment(images, 2 * images, seconds, cpu_seconds, 0.0)


def report(sample: SampleData, tmp_path: Path) -> RanksReport:
    """A report of two turns: three ranks of 100, 200 and 300 images/s, then half of it; one alone of 500, then 400."""
    together = [[segment(100 * n, turn, 0.5 * n) for n in (1, 2, 3)] for turn in (1.0, 2.0)]
    one = [segment(500, 1.0, 2.0), segment(400, 1.0, 1.6)]
    data = load_config(sample.config(tmp_path / "c.json")).data
    return RanksReport(data, Machine(8, 2, 2, 64, "2.21.0"), Machine(8, 6, 6, 64, "2.21.0"), together, one)


def test_the_total_is_the_sum_and_the_ratio_is_taken_turn_by_turn(sample: SampleData, tmp_path: Path) -> None:
    found = report(sample, tmp_path)
    assert found.totals == pytest.approx([600, 300])
    # A rank's median over its two turns.
    assert found.each == pytest.approx((150, 75, 225))
    assert found.ratio == pytest.approx(((600 / 500 + 300 / 400) / 2, 300 / 400, 600 / 500))
    # 5000 us an image over the three, 4000 us alone.
    assert found.cpu_ratio.median == pytest.approx(4000 / 5000)

    lines = render(found).splitlines()
    assert lines[-1] == "images_per_second: 450.0"
    rows = [" ".join(line.split()) for line in lines]
    assert "1 rank 450 400 to 500 (6 pipeline threads)" in rows
    assert "3 ranks 450 300 to 600 (2 pipeline threads each)" in rows
    assert "3 ranks / 1 rank 0.975 0.750 to 1.200" in rows
    read = json.loads(json.dumps(as_json(found)))
    assert (read["images_per_second"], read["ratio_to_one_rank"]) == pytest.approx((450, 0.975))
    assert read["turns"][1][2]["images"] == 300 and read["machine_alone"]["threads"] == 6


@pytest.mark.parametrize("plan", [BenchPlan(stages=True), BenchPlan(headspace=True)])
def test_what_is_of_one_rank_is_refused(plan: BenchPlan) -> None:
    with pytest.raises(ConfigError, match="--stages and --headspace are of one rank"):
        plan.check(World(1, 2))
