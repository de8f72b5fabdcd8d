"""The list of private names of other libraries is complete, and those of the installed versions are there."""

from importlib import import_module
from importlib.metadata import version

import keras
import tensorflow as tf

from tests.support.commands import ROOT
from tests.support.foreign import NAMES, VERSIONS, uses


def test_each_private_name_of_another_library_is_listed_with_its_reason() -> None:
    listed = {name for names in NAMES.values() for name in names}
    assert {*uses(ROOT / "tfpipe")} == listed


def test_the_installed_versions_are_those_that_were_tested() -> None:
    assert {name: version(name) for name in ("tensorflow", "keras")} == {
        name: VERSIONS[name] for name in ("tensorflow", "keras")
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
