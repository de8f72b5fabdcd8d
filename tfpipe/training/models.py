"""Networks: ResNet-18, and keras.applications by name; the weights they start from, and the layers not trained.

A model includes the preprocessing of its pixels: so rescaling and normalisation run on the device, and a saved model
accepts images as the pipeline delivers them.
"""

import logging
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from urllib import request

import keras
import numpy as np
from keras import layers

from tfpipe.config import Config, DataConfig
from tfpipe.errors import ConfigError, counted
from tfpipe.training.by_name import call, find, named_errors
from tfpipe.util.process import load_function

# Statistics of ImageNet's training images, RGB in [0, 1]; used by torchvision and most published models.
IMAGENET_MEAN: tuple[float, ...] = (0.485, 0.456, 0.406)
IMAGENET_STD: tuple[float, ...] = (0.229, 0.224, 0.225)
# Name in the ALCF skeleton, and in keras.applications.
ALIASES = {"resnet": "ResNet50"}
logger = logging.getLogger(__name__)

IMAGENET_CLASSES = 1000
SUFFIXES = (".keras", ".weights.h5")
ANSWER_S = 10.0  # within which a server of weights has to answer


def build_model(config: Config, classes: int) -> keras.Model:
    """Builds the functional network `model.name`, from images of `data` to float32 logits [batch, classes].

    Raises ConfigError if there is no such network, or it does not accept `model.args`.
    """
    name, size = network_name(config), input_size(config.data)
    inputs = keras.Input((*size, config.data.num_channels), dtype=config.data.dtype)
    # To [0, 255] for every dtype, in float32: half precision is too coarse for the scaling.
    pixels = layers.Rescaling(*_scaling(config.data), dtype="float32", name="pixels")(inputs)
    try:
        if name == "resnet18":
            features = resnet18(_normalise(pixels), **config.model.args)
            logits = layers.Dense(classes, name="logits")(features)
        elif ":" in name:
            logits = _own_model(name, pixels, classes, config.model.args)
            name = name.rpartition(":")[2]
        else:
            logits = _application(name, pixels, classes, config.model.args, config.data.crop_image_size)
    except ConfigError as error:
        if None not in size:
            raise
        raise ConfigError(
            f"{error}\ncrops have several sizes, by data.crop_image_size and data.test_crop_image_size: model.name "
            f"{name} must take images {inputs.shape[1:]}, with a layer as GlobalAveragePooling2D at its end"
        ) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model.args {config.model.args} do not fit model.name {name}: {error}") from error
    shapes = [getattr(each, "shape", None) for each in keras.tree.flatten(logits)]
    if shapes != [(None, classes)]:
        raise ConfigError(
            f"model.name: {name} gives outputs of the shapes {shapes}, and the data have {counted(classes, 'class')}: "
            f"accepted: logits of the shape {(None, classes)}"
        )
    # Loss and metrics use full precision, even under a mixed policy.
    outputs = layers.Activation("linear", dtype="float32", name="float32")(logits)
    return keras.Model(inputs, outputs, name=name)


def network_name(config: Config) -> str:
    """Returns `model.name`; of a network of keras.applications, also one named with its module, the name there."""
    name = config.model.name
    if ":" in name:
        function = load_function(name, "model.name")
        return next((each for each, build in applications().items() if build is function), name)
    return ALIASES.get(name, name)


def applications() -> dict[str, Any]:
    """Returns the networks of keras.applications by name."""
    return {name: build for name, build in vars(keras.applications).items() if name[0].isupper()}


def _scaling(data: DataConfig) -> tuple[Any, Any]:
    """Returns factor and offset, numbers or one of each channel, that lead from the pipeline's values to [0, 255]."""
    if data.normalize is not None:
        return [255 * std for std in data.normalize.std], [255 * mean for mean in data.normalize.mean]
    return 1.0 if data.dtype == "uint8" else 255.0, 0.0


def input_size(data: DataConfig) -> tuple[int | None, int | None]:
    """Returns height and width of training and test crops; None for a side that is not the same in all of them."""
    sizes = {part.crop_image_size for _, part in data.phases} | {data.for_split("test").crop_image_size}
    height, width = ({size[side] for size in sizes} for side in range(2))
    return height.pop() if len(height) == 1 else None, width.pop() if len(width) == 1 else None


def _own_model(name: str, pixels: keras.KerasTensor, classes: int, args: dict[str, Any]) -> keras.KerasTensor:
    shape = tuple(pixels.shape[1:])
    network = call(load_function(name, "model.name"), "model.args", f"model.name {name}", args, shape, classes)
    if not isinstance(network, keras.Layer):
        raise ConfigError(f"model.name: {name} returned {network!r}; accepted: a keras.Model from images to logits")
    with named_errors("model.name", name):
        return network(pixels)


def _normalise(pixels: keras.KerasTensor) -> keras.KerasTensor:
    mean, std = IMAGENET_MEAN, IMAGENET_STD
    if pixels.shape[-1] == 1:
        mean, std = (sum(mean) / 3,), (sum(std) / 3,)
    return layers.Rescaling(
        [1 / (255 * deviation) for deviation in std],
        [-centre / deviation for centre, deviation in zip(mean, std, strict=True)],
        dtype="float32",
        name="normalise",
    )(pixels)


def _application(
    name: str, pixels: keras.KerasTensor, classes: int, args: dict[str, Any], size: tuple[int, int]
) -> keras.KerasTensor:
    """Builds keras.applications.`name` with its own preprocessing first, untrained unless args.weights is set.

    Built for images of `size`, which it needs to have a last layer; then taken to those of `pixels`.
    """
    build = find({"resnet18": None, **applications()}, name, "model.name")
    channels = pixels.shape[-1]
    try:
        prepared = import_module(build.__module__).preprocess_input(pixels)
    except ValueError:
        prepared = None
    # With one channel, some cannot index red, green and blue, and others return three channels.
    if prepared is None or prepared.shape[-1] != channels:
        raise ConfigError(
            f"model.name {name} prepares colour images, data.num_channels is {channels}; set it to 3, which repeats "
            "the channel of gray images, or take resnet18"
        )
    network = build(
        input_shape=(*size, channels), classes=classes, classifier_activation=None, **{"weights": None, **args}
    )
    if None in pixels.shape[1:]:
        network = _resize(network, pixels.shape[1:], name)
    return network(prepared)


def _resize(network: keras.Model, shape: tuple[int | None, ...], name: str) -> keras.Model:
    """Returns the same network for images of another shape. Raises ConfigError if its weights are for one size."""
    try:
        copy = keras.models.clone_model(network, input_tensors=keras.Input(shape))
    except ValueError as error:
        raise ConfigError(f"model.name {name} takes images of one size: {str(error).splitlines()[0]}") from error
    copy.set_weights(network.get_weights())
    return copy


def resnet18(x: keras.KerasTensor, width: int = 64, stem: str = "imagenet", norm: str = "batch") -> keras.KerasTensor:
    """Builds ResNet-18 (He et al. 2015, table 1) of normalised images up to its average pooling: [batch, 8 * width].

    `stem` "imagenet" is 7x7 with stride 2 and max pooling, an eighth of the work per pixel; "small" is 3x3 with stride
    1, for crops of about 32 pixels. `norm` "group" is independent of the batch's other images (Wu and He 2018).
    """
    if stem == "imagenet":
        x = layers.MaxPooling2D(3, 2, padding="same")(_relu(_conv(x, width, 7, 2, norm)))
    elif stem == "small":
        x = _relu(_conv(x, width, 3, 1, norm))
    else:
        raise ValueError(f'stem must be "imagenet" or "small", received "{stem}"')
    for stage in range(4):
        for block in range(2):
            x = _block(x, width * 2**stage, stride=2 if stage > 0 and block == 0 else 1, norm=norm)
    return layers.GlobalAveragePooling2D()(x)


def _block(x: keras.KerasTensor, channels: int, stride: int, norm: str) -> keras.KerasTensor:
    shortcut = x
    if stride > 1 or x.shape[-1] != channels:
        # Every other pixel, then 1x1, equals a 1x1 convolution of stride 2, whose gradient in TensorFlow 2.21's oneDNN
        # writes out of bounds if there are few channels, e.g. 8 of 48x48, and crashes the process.
        shortcut = layers.MaxPooling2D(1, stride)(x) if stride > 1 else x
        shortcut = _conv(shortcut, channels, 1, 1, norm)
    x = _relu(_conv(x, channels, 3, stride, norm))
    # With gamma 0 a block starts as the identity, which large batches need to train (Goyal et al. 2017, 5.1).
    x = _conv(x, channels, 3, 1, norm, gamma="zeros")
    return _relu(layers.add([x, shortcut]))


def _conv(
    x: keras.KerasTensor, channels: int, kernel: int, stride: int, norm: str, gamma: str = "ones"
) -> keras.KerasTensor:
    """Adds a convolution with `stride` and a normalisation whose factors begin as `gamma`."""
    x = layers.Conv2D(channels, kernel, stride, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
    if norm == "batch":
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=gamma)(x)
    if norm == "group":
        return layers.GroupNormalization(min(32, channels // 4), gamma_initializer=gamma)(x)
    raise ValueError(f'norm must be "batch" or "group", received "{norm}"')


def _relu(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.Activation("relu")(x)


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

    Raises ConfigError if they cannot be read or downloaded, or do not fit.
    """
    source = config.model.weights
    if source is None:
        return
    untrained = _load_imagenet(network, config) if source == "imagenet" else _load_file(network, Path(source))
    renew_statistics(network)
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
                f"model.freeze: received {frozen}; {network.name} has {counted(len(layers), 'layer')} with weights; "
                f"accepted: 1 to {len(layers) - 1} for the first ones, -1 for all but the last"
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
    """Copies the weights that Keras has of a keras.applications model trained on ImageNet; returns untrained layers.

    Keras downloads them into its cache, unless they are there.
    """
    name = network_name(config)
    build = applications().get(name)
    if build is None:
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
            with _connections_within(ANSWER_S):
                model = build(weights="imagenet", include_top=top, **shape, **args)
        except Exception as error:  # Keras raises no other class
            if not (url := re.match(r"URL fetch failure on (\S+): ", str(error))):
                raise
            missing.append(f"{url[1]} ({str(error).rpartition(' -- ')[2]})")
            continue
        given = weighted_layers(model)
        if [_shapes(layer) for layer in given] == [_shapes(layer) for layer in layers[: len(given)]]:
            for layer, trained in zip(layers, given, strict=False):
                layer.set_weights(trained.get_weights())
            _fold_scales(model, dict(zip(map(id, given), layers, strict=False)))
            return layers[len(given) :]
    if missing:
        folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "models"
        raise ConfigError(
            f"model.weights \"imagenet\": {name}'s are not in Keras' cache {folder}, and cannot be downloaded: put "
            f"there {' or '.join(missing)}"
        )
    _misfit(network, "imagenet", layers, len(layers))


def _fold_scales(given: keras.Model, ours: Mapping[int, keras.Layer]) -> None:
    """Lets our normalisations scale as the given network's do with a layer that only its weights of ImageNet bring.

    EfficientNet's have a Rescaling after the Normalization, of which a network without them has no trace. `ours` has
    our layers by the id of the given ones.
    """
    for layer, following in pairwise(given.layers):
        if isinstance(layer, layers.Normalization) and isinstance(following, layers.Rescaling):
            variance = ours[id(layer)].adapt_variance
            variance.assign(variance / np.square(np.asarray(following.scale, np.float32)))


def renew_statistics(network: keras.Model) -> None:
    """Renews what layers have made of weights that were assigned: a Normalization computes with a mean of its own."""
    for layer in weighted_layers(network):
        if isinstance(layer, layers.Normalization):
            layer.finalize_state()


@contextmanager
def _connections_within(seconds: float) -> Iterator[None]:
    """Ends connections that urllib makes in `with`, as Keras does, and that do not answer in time; no other ones."""
    before, opener = getattr(request, "_opener", None), request.build_opener()
    vars(opener)["open"] = lambda url, data=None, *_, send=opener.open: send(url, data, seconds)
    request.install_opener(opener)
    try:
        yield
    finally:
        request.install_opener(before)


def _misfit(network: keras.Model, source: str, missing: list[keras.Layer], count: int) -> NoReturn:
    first = f"{missing[0].name} {_shapes(missing[0])}"
    raise ConfigError(
        f"model.weights {source} does not fit {network.name}: {len(missing)} of its {count} layers with weights are "
        f"not there, or have other shapes, e.g. {first}; only the last layer may differ: give the weights of the same "
        "network, with the same model.args"
    )


def _shapes(layer: keras.Layer) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in layer.weights]
