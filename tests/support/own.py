"""A user's own losses, optimizers, metrics and callbacks, such that work and such that are refused."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import keras
from keras import ops


def focal(labels: Any, logits: Any, gamma: float = 2.0) -> Any:
    """The focal loss of each crop (Lin et al. 2017)."""
    assert labels.dtype == "int32" and len(labels.shape) == 1
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return (1 - ops.exp(-losses)) ** gamma * losses


class Focal(keras.losses.Loss):
    """The same as a class."""

    def __init__(self, gamma: float = 2.0, **how: Any) -> None:
        super().__init__(**how)
        self.gamma = gamma

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return focal(y_true, y_pred, self.gamma)


def mean_loss(labels: Any, logits: Any) -> Any:
    return ops.mean(focal(labels, logits))


class Signs(keras.optimizers.Optimizer):
    """Steps of one size, by the sign of a running mean of the gradients."""

    def __init__(self, learning_rate: float = 0.01, decay: float = 0.9, **how: Any) -> None:
        super().__init__(learning_rate, **how)
        self.decay = decay

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.means = self.add_optimizer_variables(variables, "mean")

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        mean = self.means[self._get_variable_index(variable)]
        self.assign(mean, self.decay * mean + (1 - self.decay) * gradient)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * ops.sign(mean))


def no_rate(momentum: float = 0.0) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum)


def any_rate(learning_rate: float) -> str:
    return f"no optimizer, {learning_rate}"


def scaled(learning_rate: float = 0.1) -> Any:
    """An optimizer around another."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(learning_rate))


def confident(labels: Any, logits: Any, above: float = 0.5) -> Any:
    """Whether a crop's own class is given more than this probability."""
    of_class = ops.take_along_axis(ops.softmax(logits), ops.expand_dims(labels, 1), axis=1)[:, 0]
    return ops.cast(of_class > above, "float32")


class Recall(keras.metrics.Metric):
    """The recall of one class."""

    def __init__(self, of_class: int = 0, name: str = "recall") -> None:
        super().__init__(name=name)
        self.of_class = of_class
        self.hits = self.add_weight(name="hits", initializer="zeros")
        self.crops = self.add_weight(name="crops", initializer="zeros")

    def update_state(self, labels: Any, logits: Any, sample_weight: Any = None) -> None:
        mine = ops.cast(ops.equal(ops.cast(labels, "int32"), self.of_class), "float32")
        hit = ops.cast(ops.equal(ops.argmax(logits, axis=1), self.of_class), "float32")
        self.hits.assign_add(ops.sum(mine * hit))
        self.crops.assign_add(ops.sum(mine))

    def result(self) -> Any:
        return ops.divide_no_nan(self.hits, self.crops)


class Begun(Recall):
    """A variable that is no sum of floats from 0 on."""

    def __init__(self, dtype: str, value: float) -> None:
        super().__init__()
        self.kept = self.add_weight(name="kept", dtype=dtype, initializer=keras.initializers.Constant(value))


class PerClass(Recall):
    """Two numbers as the result."""

    def result(self) -> Any:
        return ops.stack([1.0 * self.hits, 1.0 * self.crops])


class Diary(keras.callbacks.Callback):
    """Writes down what it is called for, with the batch or the loss."""

    def __init__(self, path: str, stop_batch: int | None = None, stop_epoch: int | None = None) -> None:
        super().__init__()
        self.path, self.stop_batch, self.stop_epoch = Path(path), stop_batch, stop_epoch

    def write(self, *entry: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.write("begin", self.params["epochs"])

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.write("epoch", epoch)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.write("batch", batch)
        self.model.stop_training = batch == self.stop_batch

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.write("end", sorted(logs))
        logs["from_diary"] = epoch + 0.5
        self.model.stop_training = epoch == self.stop_epoch

    def on_train_end(self, logs: dict | None = None) -> None:
        self.write("done")


class Curve(keras.callbacks.Callback):
    """Writes down the loss of each batch."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        with self.path.open("a") as file:
            file.write(f"{batch} {(logs or {})['loss']!r}\n")


class Halving(keras.callbacks.ReduceLROnPlateau):
    """A callback of Keras' that sets the learning rate, with a name of its own."""


class Slow(keras.callbacks.Callback):
    """Lets a step take a tenth of a second, so that a test can meet a run at a step of its choice."""

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        time.sleep(0.1)


def shared(shares: Any, logits: Any, power: float = 1.0) -> Any:
    """The cross-entropy of shares of classes."""
    assert shares.dtype == "float32" and shares.shape[-1] == logits.shape[-1]
    return keras.losses.categorical_crossentropy(shares, logits, from_logits=True) ** power


class Shared(keras.losses.Loss):
    """The same as a class."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return shared(y_true, y_pred)


class Scrape(keras.callbacks.Callback):
    """Writes what an address answers to a file when a rank's second epoch begins."""

    def __init__(self, url: str, path: str) -> None:
        super().__init__()
        self.url, self.path = url, path

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if epoch == 1:
            with urlopen(self.url, timeout=60) as answer:
                Path(self.path).write_bytes(answer.read())


def centred(images: Any, labels: Any) -> tuple[Any, Any]:
    """Floats about 0, as some models take them; of floats alone, or of bytes."""
    if images.dtype == "uint8":
        return ops.cast(images, "float32") / 127.5 - 1, labels
    return 2.0 * images - 1.0, labels


def one_hot(images: Any, labels: Any) -> tuple[Any, Any]:
    return images, ops.one_hot(labels, 8)
