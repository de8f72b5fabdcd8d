"""Makes a config, and a function that opens its source, of what a user gives a Loader."""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

from tfpipe.config import Config, DataConfig, make_config
from tfpipe.config.load import data_keys
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.sources.recognize import recognize
from tfpipe.data.sources.registry import open_source
from tfpipe.data.sources.source import BaseSource
from tfpipe.errors import ConfigError, mask_passwords

logger = logging.getLogger(__name__)
# Of a Loader's arguments that are numbers: which are accepted, by a function and in words.
NUMBERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "timeout_s": (lambda limit_s: limit_s > 0, "above 0 s, or math.inf for no limit"),
    "max_bad_fraction": (lambda share: 0 <= share <= 1 or share == math.inf, "in [0, 1], or math.inf for no limit"),
    "steps_per_epoch": (lambda steps: isinstance(steps, Integral) and int(steps) > 0, "a whole number above 0"),
}
OpenSource = Callable[[DataConfig], BaseSource]


def check_numbers(**arguments: Any) -> None:
    """Raises ValueError if one of a Loader's NUMBERS, by its name, is none that is accepted; None is the default."""
    for name, number in arguments.items():
        is_accepted, accepted = NUMBERS[name]
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        if number is not None and not (is_number and is_accepted(number)):
            raise ValueError(f"{name} must be {accepted}; received {number!r}")


def config_of_data(data: Any, split: str, keys: Mapping[str, Any], names: Sequence[str]) -> tuple[Config, OpenSource]:
    """Returns the config of `data`, as tfpipe.load takes it, and a function that opens its source.

    `keys` are arguments of a Loader besides those that its constructor `names`. Raises ConfigError if one is unknown,
    `data` is nothing that can be loaded, or test data does not tell its classes.
    """
    options = [name for name in names if name not in ("config_or_data", "keys", "options")]
    if isinstance(data, Config):
        if keys:
            data_keys(keys, options)
            name = next(iter(keys))
            raise ConfigError(
                f"{name}: a config has this key itself: set it there, e.g. by tfpipe.load_config(path, "
                f'overrides=["data.{name}=..."]), or give the data in place of the config'
            )
        return data, open_source
    if split not in ("train", "test"):
        raise ConfigError(f'split: received "{split}"; accepted: "train" or "test", which validation data is too')
    keys = dict(keys)
    labels = keys.pop("labels", None)
    section, source = data_keys(keys, [*options, "labels"])
    opened: OpenSource = open_source
    if isinstance(data, str | os.PathLike) and labels is None:
        kind = source.pop("kind", None)
        has_file = not section.keys().isdisjoint(("train_label_file", "test_label_file"))
        labelled = has_file or _needs_no_labels(section)
        base = {"source": {"kind": kind, "path": data}} if kind else recognize(data, split, labelled=labelled)
        if not kind:
            form = f'data.source of the kind "{base["source"]["kind"]}"' if "source" in base else "data.train_filelist"
            logger.info("%s is recognised as %s; another kind= says otherwise", mask_passwords(os.fspath(data)), form)
    else:
        from tfpipe.data.sources.tables.memory import KIND, InMemory, in_memory

        tables, columns = in_memory(data, labels, source.get("columns", {}), labelled=not _needs_no_labels(section))
        _check_in_memory(source, tables)
        if split == "test" and "test" not in tables and source.get("test_share") is None and _says_classes(section):
            tables = {**tables, "test": tables["train"]}
        opened, base = partial(InMemory, by_split=tables), {"source": {"kind": KIND, "columns": columns}}
    return _config(base, split, section, source, opened), opened


def _check_in_memory(source: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
    """Raises ConfigError for a key of `data.source` that data in memory would leave without effect."""
    if source.get("test_path") is not None:
        raise ConfigError(
            f'test_path: received "{source["test_path"]}", and the data are in memory: load the test data by '
            'tfpipe.load(data, "test", classes=train.class_names), or set test_share'
        )
    if source.get("test_share") is not None and "test" in tables:
        raise ConfigError(f"test_share: {tables['test'].name} is the test data: leave test_share out")
    if source.get("args"):
        raise ConfigError("args: are for kinds of your own, and the data are in memory: leave them out")


def _needs_no_labels(section: Mapping[str, Any]) -> bool:
    targets = section.get("targets")
    return (targets.get("kind") if isinstance(targets, dict) else targets) in UNCLASSED


def _says_classes(section: Mapping[str, Any]) -> bool:
    return section.get("classes") is not None or _needs_no_labels(section)


def _config(
    base: dict[str, Any], split: str, section: dict[str, Any], source: dict[str, Any], opened: OpenSource
) -> Config:
    """Returns the config of data with the keys `base`; test data without a name are all data, with classes given."""
    if "source" not in base:
        if source:
            raise ConfigError(f"{next(iter(source))}: is for data.source, and {base['train_filelist']} is a filelist")
        with_test = {**base, "test_filelist": base["train_filelist"]}
    else:
        columns = {**base["source"].get("columns", {}), **source.get("columns", {})}
        base = {"source": {**base["source"], **source, **({"columns": columns} if columns else {})}}
        with_test = {"source": {**base["source"], "test_path": base["source"].get("path")}}
    config = make_config({"data": {**base, **section}})
    if split == "train" or (test_source := opened(config.data)).has_test():
        return config
    if not _says_classes(section):
        raise ConfigError(
            f"{test_source.display_name} has no test data by its names (val, valid, validation or test): name them by "
            "test_path=, take a share of it by test_share=, or give the classes as in training, "
            "classes=train.class_names, to take all of it as test data"
        )
    return make_config({"data": {**with_test, **section}})
