"""Fine-tuning: the weights that a network starts from, and the layers that are not trained."""

import io
import logging
import os
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np

from tfpipe.config import Config
from tfpipe.errors import ConfigError
from tfpipe.training.models import ALIASES

logger = logging.getLogger(__name__)

IMAGENET_CLASSES = 1000
SUFFIXES = (".keras", ".weights.h5")


def weighted_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers that have weights, in the model's order; those of a model within it in its place."""
    layers: list[keras.Layer] = []
    for layer in model.layers:
        inner = weighted_layers(layer) if isinstance(layer, keras.Model) else []
        # A model written as a class may have weights outside its layers: then it counts as one.
        if len(layer.weights) > sum(len(part.weights) for part in inner):
            inner = [layer]
        layers += inner
    return layers


def load_weights(network: keras.Model, config: Config) -> None:
    """Gives `network` the weights `model.weights`; leaves its last layer as it is if that has other shapes there.

    Raises ConfigError if they cannot be read, do not fit, or would have to be downloaded.
    """
    source = config.model.weights
    if source is None:
        return
    untrained = _load_imagenet(network, config) if source == "imagenet" else _load_file(network, Path(source))
    names = ", ".join(f"{layer.name} {_shapes(layer)}" for layer in untrained)
    logger.info("weights: %s%s", source, f"; {names} starts untrained, it has another shape there" if names else "")


def freeze(network: keras.Model, frozen: list[str] | int | None) -> None:
    """Freezes the layers that `model.freeze` names or counts; frozen batch normalisation runs as in inference.

    Raises ConfigError if there are no such layers, or none would be trained.
    """
    layers = weighted_layers(network)
    if isinstance(frozen, int):
        if not 0 < abs(frozen) < len(layers):
            raise ConfigError(
                f"model.freeze: received {frozen}; {network.name} has {len(layers)} layers with weights; accepted: "
                f"1 to {len(layers) - 1} for the first ones, -1 for all but the last"
            )
        fixed = layers[:frozen]
    else:
        for pattern in frozen or []:
            if not any(fnmatchcase(layer.name, pattern) for layer in layers):
                names = ", ".join(layer.name for layer in layers)
                raise ConfigError(
                    f'model.freeze: no layer with weights is named "{pattern}"; those of {network.name} are {names}'
                )
        fixed = [layer for layer in layers if any(fnmatchcase(layer.name, pattern) for pattern in frozen or [])]
    for layer in fixed:
        layer.trainable = False
    if not network.trainable_weights:
        raise ConfigError(f"model.freeze: {frozen} leaves no weight of {network.name} to train")
    if fixed:
        logger.info("frozen: %d of %d layers with weights, the last is %s", len(fixed), len(layers), fixed[-1].name)


def _load_file(network: keras.Model, path: Path) -> list[keras.Layer]:
    """Loads a file of the whole network, or of the model within it, as Keras saves either; returns untrained layers."""
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f'model.weights: received {path}; accepted: a {" or ".join(SUFFIXES)} file, or "imagenet"')
    layers, before = weighted_layers(network), {id(weight): weight.numpy() for weight in network.weights}
    models = [network, *(layer for layer in network.layers if isinstance(layer, keras.Model))]
    missing: list[list[keras.Layer]] = []
    for model in models:
        # Marked, so that those that the file has are seen: Keras skips those that do not fit without an error.
        for weight in network.weights:
            if keras.backend.is_float_dtype(weight.dtype):
                weight.assign(np.full(weight.shape, np.nan))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # each layer that does not fit
                model.load_weights(path, skip_mismatch=True)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ConfigError(f"model.weights: cannot read {path}: {error}") from error
        missing.append([layer for layer in layers if any(np.isnan(weight.numpy()).any() for weight in layer.weights)])
        if missing[-1] in ([], layers[1:][-1:]):
            break
    else:
        _misfit(network, str(path), min(missing, key=len), len(layers))
    for layer in missing[-1]:
        for weight in layer.weights:
            weight.assign(before[id(weight)])
    return missing[-1]


def _load_imagenet(network: keras.Model, config: Config) -> list[keras.Layer]:
    """Copies the weights that Keras has of a keras.applications model trained on ImageNet; returns untrained layers."""
    name = ALIASES.get(config.model.name, config.model.name)
    build = getattr(keras.applications, name, None)
    if not callable(build):
        raise ConfigError(
            f'model.weights "imagenet" is of the models of keras.applications, model.name is {name}: give a '
            f"{' or '.join(SUFFIXES)} file"
        )
    layers = weighted_layers(network)
    args = {key: value for key, value in config.model.args.items() if key != "weights"}
    missing: list[str] = []
    # The file with the last layers is of no use for other classes, and not of all sizes of images.
    for top in (True, False) if network.output_shape[-1] == IMAGENET_CLASSES else (False,):
        shape = {} if top else {"input_shape": tuple(network.input_shape[1:])}
        try:
            with _without_downloads():
                given = weighted_layers(build(weights="imagenet", include_top=top, **shape, **args))
        except NotCached as error:
            missing.append(str(error))
            continue
        if [_shapes(layer) for layer in given] == [_shapes(layer) for layer in layers[: len(given)]]:
            for layer, trained in zip(layers, given, strict=False):
                layer.set_weights(trained.get_weights())
            return layers[len(given) :]
    if missing:
        folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "models"
        raise ConfigError(
            f"model.weights \"imagenet\": {name}'s are not in Keras' cache {folder}, and nothing is downloaded: put "
            f"there {' or '.join(missing)}"
        )
    _misfit(network, "imagenet", layers, len(layers))


class NotCached(Exception):
    """The URL of a file that is not in Keras' cache."""


class _Refusing(urllib.request.OpenerDirector):
    def open(self, fullurl: Any, data: Any = None, timeout: Any = None) -> Any:
        raise NotCached(getattr(fullurl, "full_url", fullurl))


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Makes Keras raise NotCached, instead of saying that it downloads a file, and downloading it."""
    before = urllib.request._opener  # type: ignore[attr-defined]
    urllib.request.install_opener(_Refusing())
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        urllib.request.install_opener(before)


def _misfit(network: keras.Model, source: str, missing: list[keras.Layer], count: int) -> NoReturn:
    first = f"{missing[0].name} {_shapes(missing[0])}"
    raise ConfigError(
        f"model.weights {source} does not fit {network.name}: {len(missing)} of its {count} layers with weights are "
        f"not there, or have other shapes, e.g. {first}; only the last layer may differ: give the weights of the same "
        "network, with the same model.args"
    )


def _shapes(layer: keras.Layer) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in layer.weights]
