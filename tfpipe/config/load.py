"""Configs from JSON files and from dicts, with all errors at once and in words that teach."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tfpipe.config.messages import explain
from tfpipe.config.model import Config
from tfpipe.errors import ConfigError
from tfpipe.util.files import read_text

logger = logging.getLogger(__name__)

# The spelling in the ALCF example's config.
MISSPELT = "prefectch_buffer_size"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads the JSON config at `path`, with `overrides` such as "data.batch_size=64" on top.

    An override's value is parsed as JSON; if that fails, it is the text itself.

    Raises:
        ConfigError: names all errors at once, each by its path in the config.
    """
    path = Path(path)
    try:
        raw = json.loads(read_text(path))
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the config {path} is not JSON: {error}") from error
    return _validated(raw, overrides, f"the config {path}", path.resolve().parent)


def make_config(sections: Mapping[str, Any], overrides: Sequence[str] = (), base: str | Path = ".") -> Config:
    """Makes a config from a dict with the same keys, defaults and errors as a JSON file.

    Args:
        sections: the config, e.g. {"data": {"train_filelist": "train.txt"}}; paths may be strings or Paths.
        overrides: as load_config takes them.
        base: folder that relative paths are resolved against.

    Raises:
        ConfigError: names all errors at once, each by its path in the config.
    """
    try:
        raw = json.loads(json.dumps(sections, default=_as_json))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the config cannot be written as JSON: {error}") from error
    return _validated(raw, overrides, "the config", Path(base).resolve())


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is neither a number, a text, a list, a dict, a Path nor None")


def _validated(raw: Any, overrides: Sequence[str], name: str, base: Path) -> Config:
    data = raw.get("data") if isinstance(raw, dict) else None
    if isinstance(data, dict) and MISSPELT in data:
        if "prefetch_buffer_size" in data:
            raise ConfigError(f"{name} has both data.prefetch_buffer_size and data.{MISSPELT}")
        data["prefetch_buffer_size"] = data.pop(MISSPELT)
    for override in overrides:
        raw = _override(raw, override)
    try:
        # From JSON text, strict validation still accepts a list for a tuple and a string for a path.
        config = Config.model_validate_json(json.dumps(raw), context={"base": base})
    except ValidationError as error:
        lines = explain(error, Config)
        count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
        raise ConfigError("\n  ".join([f"{count} in {name}:", *lines])) from error
    if config.data.scaled_decode:
        logger.warning("data.scaled_decode has no effect any more: images are decoded at their full size")
    return config


def _override(raw: Any, override: str) -> Any:
    name, equals, text = override.partition("=")
    keys = name.replace(MISSPELT, "prefetch_buffer_size").split(".")
    if not equals or not all(keys):
        raise ConfigError(f'--set wants "section.key=value", e.g. data.batch_size=64; received "{override}"')
    try:
        value = json.loads(text)
    except ValueError:
        value = text

    def put(node: Any, keys: list[str]) -> Any:
        if not keys:
            return value
        if not isinstance(node, dict):
            raise ConfigError(f'--set {override}: "{keys[0]}" is no key of {json.dumps(node)}')
        return {**node, keys[0]: put(node.get(keys[0], {}), keys[1:])}

    return put(raw, keys)
