"""What older versions of TensorFlow lack is made up for, and a newer one that lacks a private name is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import torch

from tests.support.commands import WARM, run
from tfpipe.util import tensorflow_api
from tfpipe.util.tensorflow_api import model_proto, shareable, unbounded_threads


def test_a_tensor_is_shared_by_its_own_protocol_or_by_a_capsule(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = tf.constant(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    address = np.asarray(memoryview(tensor)).ctypes.data
    capsule = tf.experimental.dlpack.to_dlpack
    monkeypatch.setattr(tf.experimental.dlpack, "to_dlpack", lambda given: capsule(given.tensor))
    # Before 2.20 a tensor has no __dlpack__.
    for given in (tensor, SimpleNamespace(tensor=tensor)):
        shared = torch.from_dlpack(shareable(given))
        assert shared.data_ptr() == address and (shared.numpy() == tensor.numpy()).all()


def test_threads_outside_the_pool_are_asked_for_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unbounded_threads() == {"use_unbounded_threadpool": True}
    assert unbounded_threads(False) == {"use_unbounded_threadpool": False}
    monkeypatch.setattr(tf.data.Dataset, "map", lambda self, map_func, num_parallel_calls=None: self)
    assert unbounded_threads() == {}


def test_a_pipeline_without_a_model_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    options = tf.data.Options()
    options.autotune.enabled = False
    plain = tf.data.Dataset.range(2)
    assert model_proto(iter(plain.with_options(options))) is None
    assert model_proto(iter(plain.prefetch(1))).nodes
    monkeypatch.delattr(tf.data.experimental, "get_model_proto")
    assert model_proto(iter(plain.prefetch(1))) is None


def test_a_version_without_a_private_name_is_refused() -> None:
    code = (
        "import sys, tensorflow.python.lib.io.tf_record as module\n"
        "del module.tf_record_random_reader\n"
        f"sys.modules.pop('{tensorflow_api.__name__}', None)\n"
        f"import {tensorflow_api.__name__}\n"
    )
    done = run(*WARM, "-c", code)
    assert done.code == 1
    said = done.err.splitlines()[-1]
    assert said.startswith(
        f"tfpipe.errors.ConfigError: TensorFlow {tf.__version__} lacks what tfpipe uses (cannot import"
    )
    assert "tf_record_random_reader" in said and "pip install 'tfpipe[tensorflow]'" in said


def test_an_old_version_is_refused_when_it_is_imported() -> None:
    code = (
        "import sys, tensorflow as tf\n"
        "tf.__version__ = '2.14.1'\n"
        f"sys.modules.pop('{tensorflow_api.__name__}', None)\n"
        f"import {tensorflow_api.__name__}\n"
    )
    done = run(*WARM, "-c", code)
    assert done.code == 1 and "TensorFlow 2.14.1" in done.err and "is older than 2.15" in done.err


def test_a_build_whose_libraries_have_other_names_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_api, "LIBRARIES", ("libtensorflow_of_nobody.so.2",))
    tensorflow_api.make_symbols_global()
