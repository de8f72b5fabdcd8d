"""The results of a backend of Keras with the same data: `python keras_backend.py CONFIG FOLDER` prints it as JSON."""

import hashlib
import json
import os
import signal
import sys
import time
import warnings
import zipfile
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfpipe
from tfpipe.config.model import CallbackConfig
from tfpipe.errors import Stopped
from tfpipe.training import loop
from tfpipe.training.checkpointing.signals import Stop

STEPS, EPOCHS, STOPPED_AFTER = 3, 2, 5


def fitted(data: Any, shape: tuple[int, ...], callbacks: list[keras.callbacks.Callback]) -> np.ndarray:
    """The weights of a linear model after `fit`."""
    layers = [keras.Input(shape), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(8, kernel_initializer="zeros")])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(data, steps_per_epoch=STEPS, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    return model.get_weights()[0]


def fits(config: tfpipe.Config) -> dict[str, Any]:
    """`fit` of a dataset and of a Loader, which continues after what was trained."""
    shape = (*config.data.crop_image_size, config.data.num_channels)
    digest, loader = hashlib.sha256(), tfpipe.Loader(config)
    for _, batch in zip(range(STEPS), loader.dataset(), strict=False):
        for part in batch:
            digest.update(part.numpy().tobytes())
    loader.restart()
    with warnings.catch_warnings(record=True) as warned:
        # torch's own arrays give numpy's DeprecationWarning, which Python does not show.
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        weights = fitted(tfpipe.build_dataset(config), shape, [])
        batches, commit = loader.dataset(), tfpipe.keras.Commit(loader)
        same = (fitted(batches, shape, [commit]) == weights).all()
    return {
        "digest": digest.hexdigest(),
        "weights": weights.ravel()[:50].tolist(),
        "same": bool(same),
        "warned": [str(warning.message) for warning in warned],
        "counted": loader.state_dict()["crops"] // config.data.batch_size,
    }


class Evaluating(keras.callbacks.Callback):
    """Tests the model of a callback at an epoch's end, which takes JAX's variables away and gives them back."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        images = np.zeros((2, *self.model.input_shape[1:]), np.uint8)
        assert self.model.evaluate(images, np.zeros(2, np.int32), verbose=0)[0] > 0


class StopAfter(keras.callbacks.Callback):
    """Signals the process in a step, as a scheduler does."""

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self.stop = stop

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch + 1 == STOPPED_AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
            while not self.stop:
                time.sleep(0.001)


class Guarded(keras.callbacks.Callback):
    """Lets JAX copy nothing in the main thread, from an epoch's third step to its last; counts those steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.guarded = steps, 0
        self.guard = nullcontext()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 2 and keras.backend.backend() == "jax":
            self.guard = import_module("jax").transfer_guard("disallow")
            self.guard.__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Keras' `model` would give the variables their values.
        self.guarded += batch >= 2 and not getattr(self._model, "_jax_state_synced", False)
        if batch == self.steps - 1:
            self.guard.__exit__(None, None, None)


def runs(config: tfpipe.Config, folder: Path) -> dict[str, Any]:
    """A whole run, and one that is stopped and resumed; a callback saves the model at each epoch's end."""
    whole, parts = folder / "whole", folder / "parts"
    for run_dir in (whole, parts):
        run_dir.mkdir()
    by_callback = folder / "callback.keras"
    saving = CallbackConfig(name="ModelCheckpoint", args={"filepath": str(by_callback)})
    evaluating = CallbackConfig(name="tests.support.keras_backend:Evaluating")
    config = config.model_copy(update={"callbacks": [evaluating, saving]})
    curve = CallbackConfig(name="tests.support.own:Curve", args={"path": str(folder / "curve")})
    drawn = config.model_copy(update={"callbacks": [*config.callbacks, curve]})
    make, guarded = loop.make_callbacks, Guarded(config.training.steps_per_epoch)
    loop.make_callbacks = lambda *given: [guarded, *make(*given)]
    loop.train(config, tfpipe.World(), whole)
    loop.make_callbacks = lambda *given: [StopAfter(given[-1].stop), *make(*given)]
    try:
        loop.train(drawn, tfpipe.World(), parts)
    except Stopped as stopped:
        said = str(stopped)
    loop.make_callbacks = make
    loop.train(drawn, tfpipe.World(), parts, resume=True)
    paths = (whole / "model.keras", parts / "model.keras", by_callback)
    equal = [
        all((weights == alike[0]).all() for weights in alike)
        for alike in zip(*(keras.models.load_model(path).get_weights() for path in paths), strict=True)
    ]
    with zipfile.ZipFile(by_callback) as archive:
        plain = b"tfpipe" not in archive.read("config.json")
    return {
        "said": said,
        "curve": [line.split() for line in (folder / "curve").read_text().splitlines()],
        "plain": plain,
        "guarded": guarded.guarded,
        "equal": all(equal),
        "positions": [(run_dir / "positions-0.csv").read_text() for run_dir in (whole, parts)],
        "metrics": [(run_dir / "metrics.jsonl").read_text() for run_dir in (whole, parts)],
    }


if __name__ == "__main__":
    given = tfpipe.load_config(sys.argv[1])
    found = fits(given)
    if keras.backend.backend() != "tensorflow":
        found |= runs(given, Path(sys.argv[2]))
    print(json.dumps(found))
