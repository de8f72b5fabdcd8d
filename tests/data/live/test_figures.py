"""A Loader's figures as Prometheus reads them."""

import importlib
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tfpipe
from tests.support.sample import SampleData
from tfpipe import ConfigError, Loader, World, load_config, serve_metrics


@pytest.fixture(params=["tfpipe", "tfpipe.torch", "tfpipe.jax"])
def loader(request: pytest.FixtureRequest, sample: SampleData, tmp_path: Path) -> Loader:
    config = load_config(sample.config(tmp_path / "config.json", data={"batch_size": 8}))
    ready = {"ready": True} if request.param == "tfpipe" else {}
    with importlib.import_module(request.param).Loader(config, "train", World(1, 2, backend="none"), **ready) as loader:
        yield loader


def scrape(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    with urlopen(url, timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert all(family.documentation for family in families)
    return {
        sample.name: {tuple(other.labels.values()): other.value for other in family.samples}
        for family in families
        for sample in family.samples
    }


def test_prometheus_reads_what_the_loader_counts_until_it_is_closed(loader: Loader) -> None:
    with serve_metrics(loader, port=0) as exporter:
        assert scrape(exporter.url)["tfpipe_batches_total"] == {("1",): 0}
        for _ in range(20):
            next(loader)
        found, stats = scrape(exporter.url), loader.stats()
        assert found["tfpipe_batches_total"] == {("1",): 20} and found["tfpipe_images_total"] == {("1",): 160}
        assert found["tfpipe_wait_seconds_total"] == {("1",): pytest.approx(stats["wait_s"])}
        assert ("tfpipe_delay_seconds_total" in found) == ("delay_s" in stats) == (type(loader) is Loader)
        if type(loader) is Loader:
            assert found["tfpipe_delay_seconds_total"] == {("1",): pytest.approx(20 * stats["delay_s"])}
        assert found["tfpipe_queue_batches"][("1",)] >= 0 and found["tfpipe_left_out_samples_total"] == {("1",): 0}
        elements = found["tfpipe_stage_elements_total"]
        assert list(elements) == [("1", stage) for stage in stats["stages"]] and max(elements.values()) >= 20
        with pytest.raises(ConfigError, match=rf"127.0.0.1, port {exporter.port}: .*take another port"):
            serve_metrics(loader, exporter.port)
    with pytest.raises(OSError):
        scrape(exporter.url)


def test_without_prometheus_client_the_error_names_the_extra(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'tfpipe\[metrics\]'"):
        tfpipe.serve_metrics(loader, port=0)


def test_files_left_out_are_counted(sample: SampleData, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no JPEG")
    paths = sample.train.read_text().splitlines()[:15]
    with tfpipe.load(
        [*(str(sample.train.parent / path) for path in paths), str(bad)],
        labels=[0] * 16,
        classes=["all"],
        image_size=32,
        batch_size=4,
        on_error="skip",
        max_bad_fraction=1.0,
    ) as loader:
        for _ in range(8):
            next(loader)
        left_out = len(loader.dropped())
        assert left_out >= 1
        with serve_metrics(loader, port=0) as exporter:
            assert scrape(exporter.url)["tfpipe_left_out_samples_total"] == {("0",): left_out}
