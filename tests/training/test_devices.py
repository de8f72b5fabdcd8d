"""The threads and the GPU that a rank gives TensorFlow."""

import logging
from typing import Any

import pytest
import tensorflow as tf

from tfpipe import World
from tfpipe.training.loop import configure_devices


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings that TensorFlow gets; its own ones stay, and it sees four GPUs."""
    told: dict[str, Any] = {}
    config = tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: ["gpu0", "gpu1", "gpu2", "gpu3"])
    monkeypatch.setattr(config.experimental, "set_memory_growth", lambda gpu, enable: None)
    monkeypatch.setattr(config, "set_visible_devices", lambda gpu, kind: told.update({kind: gpu}))
    for name in ("inter", "intra"):
        put = f"set_{name}_op_parallelism_threads"
        monkeypatch.setattr(config.threading, put, lambda threads, name=name: told.update({name: threads}))
    return told


def test_one_process_uses_one_gpu_and_says_how_to_use_all(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    configure_devices(World(), interop=3)
    assert settings == {"GPU": "gpu0", "inter": 3}
    assert "1 of 4 GPUs used: mpirun -n 4 " in caplog.text


def test_a_rank_has_a_gpu_and_its_share_of_the_cpus(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    configure_devices(World(5, 8, local_rank=5, local_size=8, threads=6), intraop=2)
    assert settings == {"GPU": "gpu1", "inter": 6, "intra": 2}
    assert caplog.text == ""
