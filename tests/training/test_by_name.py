"""Errors in the user's own code: the config's key, the line that raised, the reason; and arguments that do not fit."""

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tfpipe.config import Config
from tfpipe.errors import ConfigError
from tfpipe.training import by_name
from tfpipe.training.compile import build_loss, build_metrics, build_optimizer
from tfpipe.training.models import build_model

# Each function and method that raises does so in a line that ends with its own comment.
MODULE = """
import keras
from keras import layers, ops

def of_key(labels, logits, scale=1.0):
    return {}["absent"]  # of_key

def of_shapes(labels, logits):
    return ops.reshape(logits, (7, 11))  # of_shapes

class Loss(keras.losses.Loss):
    def call(self, labels, logits):
        raise TypeError("an argument of its own")  # Loss

class Broken(keras.losses.Loss):
    def __init__(self, gamma=1.0):
        raise ValueError("gamma is odd")  # Broken

def network(shape, classes, width=8):
    return keras.Sequential([layers.Dense(width, activation="no such")])  # network

class Late(layers.Layer):
    def call(self, pixels):
        return pixels.absent  # Late

def late(shape, classes):
    return Late()

def nothing(shape, classes):
    return None

class Metric(keras.metrics.Metric):
    def update_state(self, labels, logits, sample_weight=None):
        1 / 0  # Metric

class Optimizer(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        raise RuntimeError("not today")  # Optimizer

class Callback(keras.callbacks.Callback):
    def __init__(self, period=1):
        period["x"]  # Callback
"""

LABELS, LOGITS = np.zeros(4, np.int32), np.zeros((4, 3), np.float32)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[str, Path]:
    """The name and the file of a module that no test has imported before."""
    name = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name, tmp_path / f"{name}.py"


def use(kind: str, name: str, args: dict[str, Any]) -> None:
    """Builds what a config names, and calls it as training does."""
    section: Any = {"name": name, "args": args}
    data = {"train_filelist": Path("unused"), "crop_image_size": (16, 16)}
    sections = {"data": data, kind: [section] if kind in ("metrics", "callbacks") else section}
    config = Config.model_validate(sections)
    if kind == "callbacks":
        by_name.build(name, args, "callbacks[0]", keras.callbacks, keras.callbacks.Callback)
    elif kind == "metrics":
        build_metrics(config, 3)[-1].update_state(LABELS, LOGITS)
    elif kind == "loss":
        build_loss(config, 3)(LABELS, LOGITS)
    elif kind == "model":
        build_model(config, 3)
    else:
        build_optimizer(config, 1, 10).apply([np.ones(2, np.float32)], [keras.Variable(np.ones(2, np.float32))])


@pytest.mark.parametrize(
    ("kind", "name", "key", "reason"),
    [
        ("loss", "of_key", "loss.name", "KeyError"),
        ("loss", "of_shapes", "loss.name", "InvalidArgumentError"),
        ("loss", "Loss", "loss.name", "TypeError"),
        ("loss", "Broken", "loss.args", "ValueError"),
        ("model", "network", "model.args", "ValueError"),
        ("model", "late", "model.name", "AttributeError"),
        ("metrics", "of_key", "metrics[0].name", "KeyError"),
        ("metrics", "Metric", "metrics[0].name", "ZeroDivisionError"),
        ("optimizer", "Optimizer", "optimizer.name", "RuntimeError"),
        ("callbacks", "Callback", "callbacks[0].args", "TypeError"),
    ],
)
def test_an_error_in_the_users_code_is_told_with_its_line(
    own: tuple[str, Path], kind: str, name: str, key: str, reason: str
) -> None:
    module, path = own
    mark = "Late" if name == "late" else name
    line = next(number for number, text in enumerate(MODULE.splitlines(), 1) if text.endswith(f"# {mark}"))
    with pytest.raises(ConfigError) as caught:
        use(kind, f"{module}:{name}", {"learning_rate": 0.1} if kind == "optimizer" else {})
    assert re.match(
        rf"{re.escape(key)}: (model.name )?(\w+:)?{name} raised {reason} at {path}:{line}, in ", str(caught.value)
    )
    assert "do not fit" not in str(caught.value)
    assert caught.value.__cause__ is not None, "--debug shows the traceback"


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (
            "loss",
            "of_key",
            "loss.args {'gama': 1} do not fit M:of_key: got an unexpected keyword argument 'gama'; it takes (",
        ),
        ("loss", "Broken", "loss.args {'gama': 1} do not fit Broken: got an"),
        ("model", "network", "model.args {'gama': 1} do not fit model.name M:network: got an"),
        ("metrics", "of_key", "metrics[0].args {'gama': 1} do not fit M:of_key: got an"),
        ("callbacks", "Callback", "callbacks[0].args {'gama': 1} do not fit Callback: got an"),
    ],
)
def test_only_arguments_that_do_not_fit_are_called_so(own: tuple[str, Path], kind: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        use(kind, f"{own[0]}:{name}", {"gama": 1})
    assert str(caught.value).startswith(said.replace("M:", f"{own[0]}:"))


def test_what_is_no_model_is_refused(own: tuple[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"model.name: \w+:nothing returned None; accepted: a keras.Model"):
        use("model", f"{own[0]}:nothing", {})
