"""--profile and tfpipe report from the command line: real runs with a known bottleneck, and TensorBoard on a trace."""

import gzip
import json
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT, finish, run, run_train, start, start_ranks
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.data.catalog import load_catalog
from tfpipe.data.filelist import scan, write_filelist
from tfpipe.tools.bench import chains, traced
from tfpipe.tools.report.runs import load_run
from tfpipe.tools.sample import write_sample
from tfpipe.tracing import Window

TRAIN = (sys.executable, ROOT / "train.py")
# Pure Python that holds the GIL, 30 ms a batch.
PYTHON_MAP = """
import time
import numpy as np
import tensorflow as tf

def slow(images, labels):
    def work(images):
        end = time.perf_counter() + 0.03
        while time.perf_counter() < end:
            sum(range(100))
        return images
    return tf.ensure_shape(tf.numpy_function(work, [images], tf.uint8), images.shape), labels
"""


def report(folder: Path, *args: str | Path) -> dict[str, Any]:
    """What tfpipe report --json says of a run."""
    out = folder / "report.json"
    done = run(sys.executable, "-m", "tfpipe", "report", folder, "--json", out, *args)
    assert done.code == 0, done.err
    found = json.loads(out.read_text())
    assert found["verdict"]["headline"] in done.out and found["verdict"]["advice"] in done.out
    return found


def profiled(config: Path, folder: Path, *sets: str, steps: int = 30, **environ: str) -> dict[str, Any]:
    """The report on a training run of so many steps, traced from the tenth on."""
    flags = [word for each in sets for word in ("--set", each)]
    done = run_train("-c", config, "-l", folder, "-n", str(steps), "--profile", f"10:{steps - 5}", *flags, **environ)
    assert done.code == 0, done.err
    return report(folder)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """64 images of ImageNet's size."""
    root = tmp_path_factory.mktemp("large")
    write_sample(root / "tree", images=64, val_images=8, scale=1.0)
    for split, images in scan(root / "tree", show=False).items():
        write_filelist(root / f"{split}.txt", images)
    return SampleData(root / "tree", root / "train.txt", root / "val.txt")


def test_slow_storage_is_told(sample: SampleData, tmp_path: Path) -> None:
    found = profiled(sample.config(tmp_path / "c.json"), tmp_path / "run", "data.storage_delay_ms=400")
    assert found["verdict"]["kind"] == "storage", found["verdict"]
    assert "data.parallel.read=128" in found["verdict"]["advice"]
    assert found["input_wait_fraction"] > 0.5


def test_slow_decoding_is_told(large: SampleData, tmp_path: Path) -> None:
    config = large.config(tmp_path / "c.json")
    found = profiled(config, tmp_path / "run", "data.threads=1", "data.decoder=graph")
    assert found["verdict"]["kind"] == "decode", found["verdict"]
    times = {stage["name"]: stage["busy_s"] for stage in found["trace"]["stages"]}
    assert max(times, key=times.get) == "decode"


def test_a_python_map_is_told(sample: SampleData, tmp_path: Path) -> None:
    (tmp_path / "users_map.py").write_text(PYTHON_MAP)
    found = profiled(
        sample.config(tmp_path / "c.json"),
        tmp_path / "run",
        "data.transform=users_map:slow",
        PYTHONPATH=f"{ROOT}:{tmp_path}",
    )
    assert found["verdict"]["kind"] == "python", found["verdict"]
    assert "data.transform" in found["verdict"]["advice"]


def test_a_slow_model_is_told(sample: SampleData, tmp_path: Path) -> None:
    config = sample.config(
        tmp_path / "c.json", data={"crop_image_size": [64, 64]}, model={"name": "resnet18", "args": {"width": 64}}
    )
    found = profiled(config, tmp_path / "run")
    assert found["verdict"]["kind"] == "compute", found["verdict"]


def test_one_slow_rank_of_three_is_told(sample: SampleData, tmp_path: Path) -> None:
    flags = (
        "-c",
        sample.config(tmp_path / "c.json"),
        "-l",
        tmp_path / "run",
        "-n",
        "25",
        "--set",
        "training.interval=5",
    )
    command = (*TRAIN, *flags, "--profile", "8:20", "--profile-ranks", "0,2")
    slow = (*command, "--set", "data.storage_delay_ms=300", "--set", "data.parallel.read=16")
    done = finish(start_ranks(2, *command, ":", "-n", "1", *slow))
    assert done.code == 0, done.err
    found = report(tmp_path / "run")
    assert found["verdict"]["kind"] == "straggler", found["verdict"]
    assert "rank 2" in found["verdict"]["headline"] and "waits for input" in found["verdict"]["because"]
    # The ranks that were asked for have traces of their own, and the slow one's says what it waits for.
    assert load_run(tmp_path / "run").trace is not None and not (tmp_path / "run" / "rank-1").exists()
    slowest = load_run(tmp_path / "run" / "rank-2")
    assert slowest.trace.wait_fraction > 0.3 and slowest.at_once["read"] == 64


def test_a_run_too_short_for_its_profile_says_so(sample: SampleData, tmp_path: Path) -> None:
    config = sample.config(tmp_path / "c.json")
    done = run_train("-c", config, "-l", tmp_path / "run", "-n", "6", "--profile", "3:50")
    assert done.code == 0 and "the steps 3 to 49, but the run has ended after 6" in done.err
    assert [step.number for step in load_run(tmp_path / "run").trace.steps] == [3, 4, 5]
    wrong = run_train("-c", config, "-l", tmp_path / "other", "--profile", "20:10")
    assert wrong.code == 2 and "FIRST:END" in wrong.err


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """The address of one that shows `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = start(
        sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", str(port)
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=30)


def ask(address: str, patience_s: float = 60) -> Any:
    """The JSON at an address, once it is there."""
    end = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.urlopen(address, timeout=patience_s) as answer:
                body = answer.read()
            found = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            if found:
                return found
        except (OSError, ValueError):
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, f"nothing at {address}"
        time.sleep(0.5)


def test_tensorboard_opens_a_trace(sample: SampleData, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run_train("-c", sample.config(tmp_path / "c.json"), "-l", folder, "-n", "20", "--profile", "8:16")
    assert done.code == 0, done.err
    with tensorboard(folder) as address:
        plugin = f"{address}/data/plugin/profile"
        (name,) = ask(f"{plugin}/runs")
        tools = ask(f"{plugin}/run_tools?run={name}")
        assert {"overview_page", "trace_viewer@", "input_pipeline_analyzer"} <= set(tools)
        host = ask(f"{plugin}/hosts?run={name}&tag=overview_page")[0]["hostname"]
        tables = ask(f"{plugin}/data?run={name}&tag=overview_page&host={host}")
    (steps,) = [table for table in tables if any(column["id"] == "stepnum" for column in table.get("cols", []))]
    # TensorBoard leaves some steps at the edges out.
    assert 4 <= len(steps["rows"]) <= 8
    assert "input-bound" in json.dumps(tables)


def test_the_stages_of_a_trace_add_up_to_what_they_cost_alone(large: SampleData, tmp_path: Path) -> None:
    """Of an image, over all threads: the CPU time of bench's chain up to `crop` against the trace's busy time."""
    # One thread on two CPUs: none waits for another to leave one.
    sets = ["data.threads=1", "data.prefetch_buffer_size=2", "data.parallel.read=4"]
    config, world = load_config(large.config(tmp_path / "c.json"), sets), World(threads=2)
    chain = next(
        each
        for each in chains.prefixes(config, world, load_catalog(config.data, "train", world))
        if each.name == "crop"
    )
    ratios = []
    for turn in range(7):
        alone_us = chain.measure(0.7, 0.3).cpu_us
        traced.trace(config, world, Window(20, 60), tmp_path / str(turn))
        trace = load_run(tmp_path / str(turn)).trace
        inside = ("visit", "read", "parse", "crop", "decode", "tf.data")
        traced_us = 1e6 * sum(stage.busy_s for stage in trace.stages if stage.name in inside) / trace.images
        ratios.append(traced_us / alone_us)
    assert 0.9 < statistics.median(ratios) < 1.1, ratios
