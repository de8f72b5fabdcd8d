"""The threads and the GPU that a rank gives TensorFlow, and what is told of the GPUs that the backend sees."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfpipe import World
from tfpipe.training import devices
from tfpipe.training.devices import check_gpus, configure_devices, log_devices, mover


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
    assert check_gpus(World()) == 4
    assert "1 of 4 GPUs used: mpirun -n 4 " in caplog.text


def test_a_rank_has_a_gpu_and_its_share_of_the_cpus(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    configure_devices(World(5, 8, local_rank=5, local_size=8, threads=6), intraop=2)
    assert settings == {"GPU": "gpu1", "inter": 6, "intra": 2}
    assert caplog.text == ""


def sees(monkeypatch: pytest.MonkeyPatch, backend: str, gpus: int) -> None:
    """Makes a backend the one that computes, and lets it see that many GPUs, and the others see nine."""
    counts = {"tensorflow": 9, "jax": 9, "torch": 9, backend: gpus}
    local = lambda: [SimpleNamespace(platform="cpu"), *[SimpleNamespace(platform="gpu")] * counts["jax"]]  # noqa: E731
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [None] * counts["tensorflow"])
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=local))
    cuda = SimpleNamespace(device_count=lambda: counts["torch"])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize("backend", devices.REMEDIES)
def test_the_backend_that_computes_is_asked_for_its_gpus(
    backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sees(monkeypatch, backend, 2)
    log_devices(World())
    assert "1 rank, each with all CPUs; 2 GPUs on this host" in caplog.text
    assert "1 of 2 GPUs used: mpirun -n 2 " in caplog.text


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_tensorflow_leaves_the_gpus_to_another_backend(
    backend: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    configure_devices(World())
    assert settings == {"GPU": []}


@pytest.mark.parametrize("backend", devices.REMEDIES)
def test_a_gpu_that_the_backend_does_not_see_is_named_with_the_remedy(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only devices of GPUs count, and only if the user has not hidden them."""
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidiactl").touch()
    sees(monkeypatch, backend, 0)
    check_gpus(World())
    (tmp_path / "nvidia0").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    check_gpus(World())
    assert caplog.text == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    check_gpus(World())
    assert f"{tmp_path}/nvidia0 is there, and KERAS_BACKEND={backend} sees no GPU" in caplog.text
    assert devices.REMEDIES[backend] in caplog.text
    caplog.clear()
    sees(monkeypatch, backend, 1)
    check_gpus(World())
    assert caplog.text == ""


def test_the_loaders_thread_copies_to_the_gpu_of_this_thread_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For PyTorch: to the device of the thread that asks, from pinned memory; on a CPU nothing is copied."""
    import torch

    part = tf.constant([[1, 2], [3, 4]], tf.uint8)
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert mover()(part).data_ptr() == np.asarray(part).ctypes.data
    calls: list[Any] = []
    moved = SimpleNamespace(to=lambda device, **how: calls.append((str(device), how)))
    monkeypatch.setattr(torch, "from_dlpack", lambda _: SimpleNamespace(pin_memory=lambda: moved))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    put = mover()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    put(part)
    assert calls == [("cuda:3", {"non_blocking": True})]
