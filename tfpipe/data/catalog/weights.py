"""Weights of training samples: from a file or a table, and from shares of the classes."""

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.catalog.types import Catalog
from tfpipe.errors import ConfigError, counted
from tfpipe.util.files import text_of


def with_weights(catalog: Catalog, path: Path) -> Catalog:
    """Returns training data with the weights that a file has, one number a line and image.

    Raises ConfigError if the file cannot be read, a line is no number, there are more or fewer lines, or the data has
    weights already.
    """
    if catalog.weights is not None:
        raise ConfigError(f"data.sample_weights: {catalog.display_name} has weights of its own: leave one of them out")
    lines, count = text_of(path, "data.sample_weights: ").split(), len(catalog)
    if len(lines) != count:
        raise ConfigError(
            f"data.sample_weights: {path} has {counted(len(lines), 'number')} for {counted(count, 'training image')}; "
            "expected one per line and image, in the order of the images"
        )
    try:
        return replace(catalog, weights=np.array(lines, np.float64))
    except ValueError as error:
        raise ConfigError(f"data.sample_weights: {path} has a line that is no number: {error}") from error


def sample_weights(catalog: Catalog, config: DataConfig) -> np.ndarray | None:
    """Returns how often each training sample comes, float64 [samples], relative to the others; None if all alike.

    Raises ConfigError if a weight is no number of at least 0, all are 0, or `data.class_weights` does not fit the data.
    """
    boxes, weights = catalog.sampled_boxes, catalog.weights
    if catalog.lists and (weights is not None or config.class_weights is not None):
        raise ConfigError(
            "data.train_filelist mixes lists by weights: leave out data.class_weights and data.sample_weights, or give "
            "one list"
        )
    if weights is not None:
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
            raise ConfigError(
                f"{catalog.display_name}: weights of samples must be finite, none below 0 and one above it"
            )
        weights = weights if boxes is None else weights[boxes.images]
    if config.class_weights is None:
        return weights
    if config.targets.kind != "label":
        raise ConfigError(
            f'data.class_weights: with data.targets "{config.targets.kind}" samples have no class of their own: set it '
            "to null, and weigh them by data.sample_weights"
        )
    labels = catalog.labels if boxes is None else boxes.labels
    if (labels == BY_OBJECT).any():
        raise ConfigError('data.class_weights: with label_source "object" samples have classes with unit "box" only')
    totals = np.bincount(labels, weights, len(catalog.classes))
    shares = np.sign(totals)  # "balanced"
    if not isinstance(config.class_weights, str):
        shares = _shares(config.class_weights, catalog, totals)
    factors = np.divide(shares, totals, out=np.zeros_like(totals, float), where=totals > 0)[labels]
    return factors if weights is None else factors * weights


def _shares(class_weights: dict[str, float], catalog: Catalog, totals: np.ndarray) -> np.ndarray:
    """Returns each class's share, float64 [classes], relative to the others; `totals` are its samples' weights."""
    for name in class_weights.keys() - set(catalog.classes):
        near = get_close_matches(name, catalog.classes, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"the classes are {', '.join(catalog.classes[:3])} ..."
        raise ConfigError(f'data.class_weights: there is no class "{name}"; {hint}')
    missing = [name for name, total in zip(catalog.classes, totals, strict=True) if total and name not in class_weights]
    if missing:
        raise ConfigError(
            f"data.class_weights: {len(missing)} of {len(catalog.classes)} classes have no weight, e.g. "
            f'"{missing[0]}"; give each one, 0 for one that is left out'
        )
    shares = np.array([class_weights.get(name, 0.0) for name in catalog.classes])
    empty = np.flatnonzero((shares > 0) & (totals == 0))
    if empty.size:
        raise ConfigError(f'data.class_weights: the class "{catalog.classes[empty[0]]}" has no sample to draw')
    if not shares.any():
        raise ConfigError("data.class_weights: all weights are 0")
    return shares
