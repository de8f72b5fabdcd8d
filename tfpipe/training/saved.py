"""A trained model as a run keeps it: model.keras, and next to it classes.json, which says what its outputs mean."""

import json
import logging
import zipfile
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import keras

from tfpipe.config import Config, DataConfig
from tfpipe.data.loader import Loader
from tfpipe.errors import ConfigError, counted
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.json_text import to_json
from tfpipe.util.process import load_function
from tfpipe.util.retry import retried

logger = logging.getLogger(__name__)

MODEL, CLASSES, CONFIG = "model.keras", "classes.json", "config.json"
RESUME_ADVICE = "once it can be written, continue the run with --resume auto"
STEP = "tfpipe: step "  # begins the comment of MODEL, a zip file


class Meaning(NamedTuple):
    """The meaning of a model's outputs and inputs, as CLASSES has it."""

    classes: tuple[str, ...]  # class names by output; there may be more outputs
    normalize: dict[str, Any] | None  # the pixels' normalisation before the model, as data.normalize


def save_model(model: keras.Model, path: Path, step: int) -> None:
    """Saves a plain model of Keras, which loads without tfpipe, after `step` steps of its run.

    Raises ConfigError if `path` cannot be written.
    """
    with writing(path, RESUME_ADVICE):
        unfinished = path.parent / ".unfinished.keras"  # Keras writes only to names that end with .keras
        retried(model.save)(unfinished)
        with zipfile.ZipFile(unfinished, "a") as archive:
            archive.comment = f"{STEP}{step}".encode()
        unfinished.replace(path)


def saved_step(path: Path) -> int | None:
    """Returns the step of its run at which a model was saved; None if it is not there, damaged or does not say."""
    with suppress(OSError, ValueError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return int(archive.comment.decode().removeprefix(STEP))
    return None


def write_classes(run_dir: Path, loader: Loader) -> None:
    """Writes the class names of the training data, and the normalisation of its images, to CLASSES in `run_dir`."""
    meaning = Meaning(loader.data.classes, _normalize(loader.config.data))
    with atomic_write(run_dir / CLASSES) as partial:
        partial.write_text(to_json(meaning._asdict(), indent=1) + "\n", encoding="utf-8")


def read_classes(model: Path) -> Meaning | None:
    """Reads CLASSES next to a model; None if there is none, as next to a model that no run has written.

    Raises ConfigError if it is damaged.
    """
    path = model.parent / CLASSES
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        classes = values["classes"]
        if not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
            raise ValueError('"classes" is no list of names')
        return Meaning(tuple(classes), values.get("normalize"))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); expected the class names by output, as training writes them: "
            '{"classes": ["cat", "dog"], "normalize": null}'
        ) from error


def load_model(path: Path, config: Config) -> keras.Model:
    """Loads a model that takes the test crops of `config` to logits.

    Raises ConfigError if it cannot be loaded, or takes other images.
    """
    if not path.is_file():
        raise ConfigError(f"there is no model {path}: give the {MODEL} of a run, or another .keras file")
    if ":" in config.model.name:
        load_function(config.model.name, "model.name")  # its module registers the layers that it defines
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:  # zip files, JSON, layers of a user's own: Keras raises all kinds
        raise ConfigError(
            f"Keras cannot load the model {path}: {str(error).splitlines()[0]}; a model with layers of your own needs "
            "them registered (keras.saving.register_keras_serializable) in the module that model.name names"
        ) from error
    _check_shapes(model, path, config.data)
    return model


def _check_shapes(model: keras.Model, path: Path, data: DataConfig) -> None:
    inputs, outputs = model.inputs, model.outputs
    if len(inputs) != 1 or len(outputs) != 1 or len(inputs[0].shape) != 4 or len(outputs[0].shape) != 2:
        raise ConfigError(
            f"{path} takes {[list(each.shape) for each in inputs]} to {[list(each.shape) for each in outputs]}; "
            "expected a model from images [batch, height, width, channels] to logits [batch, classes]"
        )
    crop = (*data.for_split("test").phases[-1][1].crop_image_size, data.num_channels)
    taken = tuple(inputs[0].shape[1:])
    if any(side not in (None, of_crop) for side, of_crop in zip(taken, crop, strict=True)):
        raise ConfigError(
            f"{path} takes images {list(taken)}, and the config's test crops are {list(crop)}: set "
            "data.crop_image_size or data.test_crop_image_size, and data.num_channels, to those of the model's training"
        )
    if inputs[0].dtype != data.dtype:
        raise ConfigError(
            f"{path} takes images of the type {inputs[0].dtype}, and data.dtype is {data.dtype}: set it to "
            f'"{inputs[0].dtype}"'
        )


def check_meaning(meaning: Meaning | None, model: Path, classes: tuple[str, ...], data: DataConfig) -> None:
    """Checks that a config means by its `classes` and pixels what the model was trained with.

    Warns if that is not stored with the model. Raises ConfigError, which names the first class that differs.
    """
    if meaning is None:
        logger.warning(
            "no %s lies next to %s: that its outputs are the config's classes, in their order, is not checked",
            *(CLASSES, model),
        )
        return
    if meaning.normalize != _normalize(data):
        raise ConfigError(
            f"{model} was trained on images with data.normalize {to_json(meaning.normalize)}, and the config has "
            f"{to_json(_normalize(data))}: set it to the former"
        )
    if meaning.classes == classes:
        return
    number = next(n for n, (stored, given) in enumerate(zip_longest(meaning.classes, classes)) if stored != given)
    stored, given = (repr(names[number]) if number < len(names) else "none" for names in (meaning.classes, classes))
    raise ConfigError(
        f"the classes differ: class {number} is {stored} in {model.parent / CLASSES} (of {len(meaning.classes)}), and "
        f"{given} in the config's data (of {len(classes)}): set data.classes to {model.parent / CLASSES}'s list, in "
        "its order, or take the model that was trained on this data"
    )


def check_outputs(model: keras.Model, path: Path, classes: int) -> None:
    """Raises ConfigError if the model has another number of outputs than `classes`."""
    outputs = model.output_shape[-1]
    if outputs != classes:
        raise ConfigError(
            f"{path} has {counted(outputs, 'output')}, and the config's data {counted(classes, 'class')}: set "
            f"data.num_classes to {outputs}, or data.classes to the classes of the model's training"
        )


def _normalize(data: DataConfig) -> dict[str, Any] | None:
    return None if data.normalize is None else data.normalize.model_dump(mode="json")
