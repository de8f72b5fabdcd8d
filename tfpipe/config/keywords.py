"""The `data` section of a config from keyword arguments, with errors that name the nearest right argument."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from tfpipe.config.data import DataConfig
from tfpipe.config.data_source import SourceConfig
from tfpipe.config.messages import known_paths
from tfpipe.config.model import Config
from tfpipe.errors import ConfigError

# Keys of `data.source` that are arguments of their own; its path is what is loaded.
SOURCE = tuple(name for name in SourceConfig.model_fields if name != "path")
# Keys of `data` that say what is loaded.
NAMED_BY_DATA = ("source", "train_filelist")
DATA = tuple(name for name in DataConfig.model_fields if name not in NAMED_BY_DATA)
ALIASES = {"image_size": "crop_image_size"}
# Keys that take a single number for a square.
SQUARES = ("crop_image_size", "test_crop_image_size")
# Arguments of other loaders, and the one here that does the same.
ELSEWHERE = {
    **dict.fromkeys(("size", "img_size", "target_size", "resolution", "input_size"), "crop_image_size"),
    **dict.fromkeys(("shuffle", "shuffle_files"), "shuffle_buffer (1: the order of the list)"),
    **dict.fromkeys(("validation_split", "val_split", "test_size"), "test_share"),
    **dict.fromkeys(("num_workers", "workers", "num_threads"), "threads"),
    **dict.fromkeys(("subset", "mode"), "split"),
    **dict.fromkeys(("class_names", "names"), "classes"),
    **dict.fromkeys(("transforms", "augmentation", "augmentations"), "augment"),
    **dict.fromkeys(("rank", "num_replicas", "world_size", "num_shards"), "world=tfpipe.World(rank, size)"),
    **dict.fromkeys(("x_col", "image_column", "filename_column"), 'columns={"path": ...}'),
    **dict.fromkeys(("y_col", "label_column", "target_column"), 'columns={"label": ...}'),
    "label_mode": 'targets={"kind": ...}',
    "color_mode": "num_channels (3: RGB, 1: grayscale)",
    "interpolation": "resize",
    "prefetch": "prefetch_buffer_size",
    "horizontal_flip": "flip",
}


def data_keys(arguments: Mapping[str, Any], options: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the keys of `data` and those of `data.source` that arguments set; `options` are the caller's others.

    Raises ConfigError if an argument is unknown or comes under two names.
    """
    data: dict[str, Any] = {}
    source: dict[str, Any] = {}
    for argument, value in arguments.items():
        name = ALIASES.get(argument, argument)
        section = source if name in SOURCE else data
        if name not in (*SOURCE, *DATA):
            raise ConfigError(
                f"{argument}: unknown argument; {_nearest(argument, list(dict.fromkeys([*options, *SOURCE, *DATA])))}"
            )
        if name in section:
            alias = next(alias for alias, key in ALIASES.items() if key == name)
            raise ConfigError(f"{alias} and {name} are two names of one argument: leave one of them out")
        section[name] = _plain(name, value)
    return data, source


def _plain(name: str, value: Any) -> Any:
    """Returns a value as JSON has it: NumPy's numbers and arrays as Python's, the side of a square as both sides."""
    if callable(value):
        raise ConfigError(f'{name}: received {value!r}; accepted: the function\'s name, "package.module:function"')
    value = value.tolist() if hasattr(value, "tolist") else value
    return [value, value] if name in SQUARES and type(value) is int else value


def _nearest(argument: str, accepted: list[str]) -> str:
    if argument in NAMED_BY_DATA:
        return "what is loaded is the first argument: a path, a DataFrame, a list or a dataset"
    if argument in ELSEWHERE:
        return f"did you mean {ELSEWHERE[argument]}?"
    guesses = difflib.get_close_matches(argument, [*accepted, *ALIASES], n=1)
    if guesses:
        return f"did you mean {guesses[0]}?"
    for path in known_paths(Config):
        section, *inner = path.split(".")
        if inner and inner[-1] == argument:
            keys = inner[1:] if inner[0] == "source" else inner
            if section != "data":
                return f"{path} is a key of a config for `tfpipe train`, not of the data"
            return f'did you mean {keys[0]}={{"{argument}": ...}}?'
    return f"accepted: {', '.join(accepted)}"
