"""Live figures of a real run of two ranks, as Prometheus reads them, and the dashboard that draws them."""

import re
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.commands import ROOT, run_ranks
from tests.support.runs import read_intervals, read_metrics
from tests.support.sample import SampleData
from tfpipe.training.monitor.live import BY_RANK, interval_families

NAME = re.compile(r"\btfpipe_\w+")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def test_prometheus_reads_the_figures_of_all_ranks_while_the_run_lasts(sample: SampleData, tmp_path: Path) -> None:
    port, scraped, run_dir = free_port(), tmp_path / "scraped", tmp_path / "run"
    url = f"http://127.0.0.1:{port}/metrics"
    config = sample.config(
        tmp_path / "c.json",
        data={"test_filelist": None},
        training={"epochs": 2, "steps_per_epoch": 12, "interval": 5, "metrics_port": f"127.0.0.1:{port}"},
        callbacks=[{"name": "tests.support.own:Scrape", "args": {"url": url, "path": str(scraped)}, "ranks": "first"}],
    )
    done = run_ranks(2, sys.executable, ROOT / "train.py", "-c", config, "-l", run_dir)
    assert done.code == 0, done.err
    assert f"live metrics: {url}" in done.err
    found = {
        sample.name: {tuple(other.labels.values()): other.value for other in family.samples}
        for family in text_string_to_metric_families(scraped.read_text())
        for sample in family.samples
    }
    assert found["tfpipe_run_steps_total"] == {(): 12} and found["tfpipe_batches_total"] == {("0",): 12}
    assert found["tfpipe_images_total"] == {("0",): 12 * 16} and found["tfpipe_delay_seconds_total"][("0",)] >= 0
    interval = [line["interval"] for line in read_intervals(run_dir) if line["epoch"] == 1][-1]
    assert found["tfpipe_run_images_per_second"] == {(): interval["images_per_second"]}
    for name, key, factor, _ in BY_RANK:
        ranks = {(rank["host"], str(rank["rank"])): pytest.approx(factor * rank[key]) for rank in interval["ranks"]}
        assert found[f"tfpipe_rank_{name}"] == ranks and len(ranks) == 2
    assert found["tfpipe_run_metric"][("loss",)] == read_metrics(run_dir)[0]["loss"]
    drawn = set(NAME.findall((ROOT / "docs/examples/grafana.json").read_text()))
    created = {name for name in found if name.endswith("_created")}
    assert drawn == (found.keys() - created) | {"tfpipe_straggler_times"}, "the dashboard draws what is served"


def test_a_straggler_is_a_family_of_its_own() -> None:
    ranks = [{"rank": rank, "host": "n0", **{key: 2.0 for _, key, *_ in BY_RANK}} for rank in range(2)]
    straggler = {"rank": 1, "host": 'n"0', "times": 1.75, "because": "input"}
    interval = SimpleNamespace(images_per_second=5.0, input_wait_fraction=0.25, ranks=ranks, straggler=straggler)
    text = scrape_text(interval)
    assert 'tfpipe_straggler_times{because="input",host="n\\"0",rank="1"} 1.75' in text
    interval.straggler = None
    assert "straggler" not in scrape_text(interval)


def scrape_text(interval: Any) -> str:
    class Collector:
        def collect(self) -> list:
            return list(interval_families(interval))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry).decode()
