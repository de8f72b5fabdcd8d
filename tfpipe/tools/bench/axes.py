"""The keys of a sweep and their values, and the config at each; without TensorFlow, which a refusal need not load."""

import json
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from tfpipe.config import Config
from tfpipe.errors import ConfigError

Setting = tuple[str, ...]
"""A value of each key."""

Load = Callable[[list[str]], Config]
"""(overrides) -> the config with them."""


class Axis(NamedTuple):
    """A key and its values, as --set takes them."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Parses KEY=V1,V2,...; raises ConfigError."""
        key, _, values = text.partition("=")
        try:
            texts = [json.dumps(value) for value in json.loads(f"[{values}]")]
        except ValueError:
            texts = values.split(",")
        if not key.startswith("data.") or not all(texts) or len(set(texts)) < 2:
            raise ConfigError(
                "--sweep wants a key of the data section and two or more values, e.g. data.parallel.read=16,64,128; "
                f'received "{text}"'
            )
        return cls(key, tuple(texts))


def settings_of(axes: Sequence[Axis], load: Load) -> dict[Setting, Config]:
    """Returns the config of every setting; `load` returns the config with overrides. Raises ConfigError."""
    if len(axes) > 2:
        raise ConfigError(f"--sweep takes one key or two at once, received {len(axes)}")
    keys = [axis.key for axis in axes]
    return {
        setting: load([f"{key}={value}" for key, value in zip(keys, setting, strict=True)])
        for setting in product(*(axis.values for axis in axes))
    }
