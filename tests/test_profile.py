"""--profile and tfpipe report from the command line: runs with a known bottleneck, and TensorBoard on a trace."""

import gzip
import json
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT, Finished, finish, run_train, start, start_ranks
from tests.support.recorded import unpack
from tests.support.sample import SampleData, make_sample
from tfpipe import World
from tfpipe.cli import main
from tfpipe.data.runtime.clock import DELAY_MS
from tfpipe.data.runtime.tracing import Window
from tfpipe.tools.report.diagnosis import diagnose_run
from tfpipe.tools.report.runs import load_run
from tfpipe.training import loop

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


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Returns what tfpipe report --json says of a run."""
    out = folder / "report.json"
    assert main(["report", str(folder), "--json", str(out)]) == 0
    found, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert found["verdict"]["headline"] in printed and found["verdict"]["advice"] in printed
    return found


def profiled(config: Path, folder: Path, *sets: str, **environ: str) -> Finished:
    """Runs 30 steps of training, the steps 10 to 24 traced."""
    flags = [word for each in sets for word in ("--set", each)]
    done = run_train("-c", config, "-l", folder, "-n", "30", "--profile", "10:25", *flags, **environ)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize(
    ("name", "kind", "because", "advice"),
    [
        ("decode", "decode", "0.99 of 1 pipeline thread busy, 58 % of it with decode", "more CPUs"),
        ("python", "python", "transform calls Python", "data.transform"),
        ("compute", "compute", "1.0 %", "data.batch_size"),
        ("straggler", "straggler", "rank 2 (host vm) is 10.0 times slower than the others", "--profile-ranks 2"),
    ],
)
def test_what_bounds_a_recorded_run_is_told(
    name: str, kind: str, because: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = report(unpack(name, tmp_path), capsys)["verdict"]
    assert verdict["kind"] == kind
    assert because in verdict["because"] and advice in verdict["advice"]


def test_the_rank_that_a_recorded_run_waits_for_says_what_it_waits_for(tmp_path: Path) -> None:
    found = load_run(unpack("straggler", tmp_path) / "rank-2")
    assert found.trace.wait_fraction > 0.3 and found.at_once["read"] == 64
    assert diagnose_run(found).kind == "storage"


def test_slow_storage_is_told_of_a_run_that_ends_before_its_profile(
    sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, folder = sample.config(tmp_path / "c.json"), tmp_path / "run"
    flags = ("-n", "18", "--profile", "10:50", "--set", "data.annotations=none")
    done = run_train("-c", config, "-l", folder, *flags, **{DELAY_MS: "400"})
    assert done.code == 0 and "the steps 10 to 49, but the run has ended after 18" in done.err
    assert [step.number for step in load_run(folder).trace.steps] == list(range(10, 18))
    found = report(folder, capsys)
    assert found["verdict"]["kind"] == "storage", found["verdict"]
    assert "data.parallel.read=128" in found["verdict"]["advice"]


@pytest.mark.parametrize(
    ("flags", "traced"), [((), [0]), (("--profile-ranks", "0,2"), [0, 2]), (("--profile-ranks", "all"), [0, 1, 2])]
)
def test_the_ranks_that_are_asked_for_are_traced(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], traced: list[int]
) -> None:
    windows: list[Window | None] = []
    monkeypatch.setattr(loop, "train", lambda *args: windows.append(args[-1]))
    words = ["train", "-c", str(sample.config(tmp_path / "c.json")), "-l", str(tmp_path / "run")]
    for rank in range(3):
        monkeypatch.setattr(World, "detect", lambda *_, rank=rank: World(rank, 3))
        assert main([*words, "--profile", "8:20", *flags]) == 0
    assert windows == [Window(8, 20) if rank in traced else None for rank in range(3)]


FULL = pytest.mark.full("a bottleneck of a real run: make test has recorded ones, and a real one with slow storage")


@FULL
def test_slow_decoding_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = make_sample(tmp_path, images=64, val_images=8, scale=1.0)
    profiled(large.config(tmp_path / "c.json"), tmp_path / "run", "data.threads=1", "data.decoder=graph")
    found = report(tmp_path / "run", capsys)
    assert found["verdict"]["kind"] == "decode", found["verdict"]


@FULL
def test_a_python_map_is_told(sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "users_map.py").write_text(PYTHON_MAP)
    config, folder = sample.config(tmp_path / "c.json"), tmp_path / "run"
    profiled(config, folder, "data.transform=users_map:slow", PYTHONPATH=f"{ROOT}:{tmp_path}")
    found = report(folder, capsys)
    assert found["verdict"]["kind"] == "python", found["verdict"]
    assert "data.transform" in found["verdict"]["advice"]


@FULL
def test_a_slow_model_is_told(sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = {"data": {"crop_image_size": [64, 64]}, "model": {"name": "resnet18", "args": {"width": 64}}}
    profiled(sample.config(tmp_path / "c.json", **slow), tmp_path / "run")
    found = report(tmp_path / "run", capsys)
    assert found["verdict"]["kind"] == "compute", found["verdict"]


@FULL
def test_one_slow_rank_of_three_is_told(sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, folder = sample.config(tmp_path / "c.json"), tmp_path / "run"
    flags = ("-c", config, "-l", folder, "-n", "25", "--set", "training.interval=5")
    command = (*TRAIN, *flags, "--profile", "8:20", "--profile-ranks", "0,2")
    slow = ("env", f"{DELAY_MS}=300", *command, "--set", "data.parallel.read=16")
    done = finish(start_ranks(2, *command, ":", "-n", "1", *slow))
    assert done.code == 0, done.err
    found = report(folder, capsys)
    assert found["verdict"]["kind"] == "straggler", found["verdict"]
    assert "rank 2" in found["verdict"]["headline"] and "waits for input" in found["verdict"]["because"]
    # The ranks that were asked for have traces of their own.
    assert load_run(folder).trace is not None and not (folder / "rank-1").exists()
    assert diagnose_run(load_run(folder / "rank-2")).kind == "storage"


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


@pytest.mark.full("starts TensorBoard; test_report.py asks for the marks that it needs")
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
