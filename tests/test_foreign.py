"""The list of private names of other libraries is complete, and those of the installed versions are there."""

from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
from packaging.version import Version

from tests.support.commands import ROOT
from tests.support.foreign import NAMES, OF_S3FS, VERSIONS, uses
from tfpipe.errors import ConfigError
from tfpipe.training.run_model import RunModel


def test_private_modules_of_tensorflow_are_imported_in_one_place() -> None:
    """Where a version that lacks one is told in a sentence."""
    files = [path for path in (ROOT / "tfpipe").rglob("*.py") if "tensorflow.python" in path.read_text()]
    assert files == [ROOT / "tfpipe/util/tensorflow_api.py"]


@pytest.mark.parametrize("name", ["_compute_loss", "_loss_tracker", "_compile_metrics"])
def test_a_keras_without_one_of_them_is_refused(name: str) -> None:
    has = dict.fromkeys(("_compute_loss", "_loss_tracker", "_compile_metrics"))
    RunModel.check_names(SimpleNamespace(**has))
    del has[name]
    with pytest.raises(ConfigError, match=rf"Keras {keras.__version__} lacks {name}, .* pip install 'keras"):
        RunModel.check_names(SimpleNamespace(**has))


@pytest.mark.full("the gate installs no s3fs")
def test_the_names_of_s3fs_are_there() -> None:
    s3fs = import_module("s3fs")
    system = s3fs.S3FileSystem(anon=True, skip_instance_cache=True)
    assert all(hasattr(system, name) for name in OF_S3FS)
    # Which version is installed follows from what other packages ask of fsspec.
    oldest, newest = map(Version, VERSIONS["s3fs"])
    assert oldest <= Version(version("s3fs")) <= newest


def test_each_private_name_of_another_library_is_listed_with_its_reason() -> None:
    listed = {name for names in NAMES.values() for name in names}
    assert {*uses(ROOT / "tfpipe")} == listed


def test_the_installed_versions_are_those_that_were_tested() -> None:
    assert {name: version(name) for name in ("tensorflow", "keras")} == {
        name: VERSIONS[name][1] for name in ("tensorflow", "keras")
    }


def test_the_names_are_there() -> None:
    for name in NAMES["tensorflow"]:
        module, dot, attribute = name.rpartition(".")
        assert not dot or hasattr(import_module(module), attribute), name
    dataset = tf.data.Dataset.range(1)
    assert dataset.map(abs)._inputs() and iter(dataset)._dataset is not None
    assert iter(dataset)._iterator_resource is not None
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[keras.metrics.MeanSquaredError("m")])
    assert callable(model._compute_loss) and model._loss_tracker.name == "loss"
    (metric,) = model._compile_metrics._user_metrics
    assert metric.name == "m" and metric._direction == "down"
    assert int(model.optimizer._iterations) == 0
