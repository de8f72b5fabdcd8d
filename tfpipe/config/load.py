"""Configs from JSON files, from dicts and from keyword arguments, with all errors at once and in words that teach."""

import difflib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tfpipe.config.data import DataConfig, unused_settings
from tfpipe.config.data_source import SourceConfig
from tfpipe.config.messages import ELSEWHERE, explain, known_paths, quote
from tfpipe.config.model import Config
from tfpipe.config.section import literal
from tfpipe.errors import ConfigError, counted
from tfpipe.util.files import read_text

logger = logging.getLogger(__name__)

# The spelling in the ALCF tutorial's config, and the keys there that have no effect here.
MISSPELT = "prefectch_buffer_size"
OPENING = '{{"{}": '  # of a section within an argument
IGNORED = (("accuracy", "name"), ("validation", "batches"), ("data", "handler"))
# Python's constants, in JSON.
CONSTANTS = {"None": None, "True": True, "False": False}
# Keys of `data.source` that are arguments of their own; its path is what is loaded.
SOURCE = tuple(name for name in SourceConfig.model_fields if name != "path")
# Keys of `data` that say what is loaded.
NAMED_BY_DATA = ("source", "train_filelist")
DATA = tuple(name for name in DataConfig.model_fields if name not in NAMED_BY_DATA)
ALIASES = {"image_size": "crop_image_size"}
# Arguments of other loaders that are no keys of a config, and the one here that does the same.
OF_LOADERS = {
    **dict.fromkeys(("subset", "mode"), "split"),
    **dict.fromkeys(("rank", "num_replicas", "world_size", "num_shards"), "world=tfpipe.World(rank, size)"),
}


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads the JSON config at `path`, with `overrides` such as "data.batch_size=64" on top.

    An override's value is JSON, or a text without quotes; None, True and False are read as null, true and false.

    Raises:
        ConfigError: names all errors at once, each by its path in the config.
    """
    path = Path(path)
    try:
        raw = _parse(read_text(path), f"the config {path}")
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the config {path} is not JSON: {error}{_of_yaml(path) or _remedy(error)}") from error
    return _validate(raw, overrides, f"the config {path}", path.resolve().parent)


def make_config(sections: Mapping[str, Any], overrides: Sequence[str] = (), base: str | Path = ".") -> Config:
    """Makes a config from a dict with the same keys, defaults and errors as a JSON file.

    Args:
        sections: the config, e.g. {"data": {"train_filelist": "train.txt"}}; a text of a path is
            expanded, a Path is not.
        overrides: as load_config takes them.
        base: folder that relative paths are resolved against.

    Raises:
        ConfigError: names all errors at once, each by its path in the config.
    """
    try:
        raw = json.loads(json.dumps(sections, default=_as_json))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the config cannot be written as JSON: {error}") from error
    return _validate(raw, overrides, "the config", Path(base).resolve())


def _of_yaml(path: Path) -> str:
    """Returns how to make JSON of a config that is YAML by its name."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        return ""
    convert = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, indent=2)"
    return f"; configs are JSON, not YAML: convert it by python -c '{convert}' < {path} > {path.with_suffix('.json')}"


def _remedy(error: ValueError) -> str:
    """Returns what to change in a text that is nearly JSON; "" if nothing is known."""
    if isinstance(error, UnicodeDecodeError):
        return "; save it as UTF-8"
    if not isinstance(error, json.JSONDecodeError):
        return ""
    before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()
    if not error.doc.strip():
        return '; the file is empty: write at least {"data": {"train_filelist": "train.txt"}}'
    if "," in (before[-1:], after[:1]) and after.lstrip(", \t\r\n")[:1] in ("}", "]"):
        return "; JSON has no comma after the last one of a list or an object: remove it"
    if after.startswith(("//", "/*", "#")):
        return "; JSON has no comments: remove it"
    return "; JSON has double quotes, not single ones" if after[:1] == "'" else ""


class _Object(dict[str, Any]):
    """An object of JSON, with the keys that it has twice, and their first values."""

    twice: tuple[tuple[str, Any], ...] = ()


def _parse(text: str, name: str) -> Any:
    """Parses JSON, which `name` stands for in messages.

    Raises ValueError if the text is not JSON, ConfigError if an object has a key twice: Python would drop one.
    """

    def keep(pairs: list[tuple[str, Any]]) -> _Object:
        result = _Object(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            result.twice = tuple(pair for number, pair in enumerate(pairs) if pair[0] in names[number + 1 :])
        return result

    def find_repeated(node: Any, path: str) -> Iterator[str]:
        parts: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for name, first in node.twice if isinstance(node, _Object) else ():
            yield f"{path}{name} is {quote(first)} and {quote(node[name])}"
        for key, part in parts:
            yield from find_repeated(part, f"{path}{key}.")

    value = json.loads(text, object_pairs_hook=keep)
    if several := list(find_repeated(value, "")):
        raise ConfigError(f"{name} has a key twice, of which one would be ignored: {'; '.join(several)}; keep one each")
    return value


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return literal(value)
    raise TypeError(f"{value!r} is neither a number, a text, a list, a dict, a Path nor None")


def _validate(raw: Any, overrides: Sequence[str], name: str, base: Path) -> Config:
    for section, key in IGNORED:
        if isinstance(raw, dict) and isinstance(content := raw.get(section), dict) and key in content:
            logger.warning("%s.%s of the ALCF tutorial's config has no effect", section, key)
            raw = {**raw, section: {name: value for name, value in content.items() if name != key}}
            raw = raw if raw[section] else {name: value for name, value in raw.items() if name != section}
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
        raise ConfigError("\n  ".join([f"{counted(len(lines), 'error')} in {name}:", *lines])) from error
    for message in unused_settings(config.data):
        logger.warning("%s", message)
    return config


def _override(raw: Any, override: str) -> Any:
    name, equals, text = override.partition("=")
    keys = name.replace(MISSPELT, "prefetch_buffer_size").split(".")
    if not equals or not all(keys):
        raise ConfigError(f'--set wants "section.key=value", e.g. data.batch_size=64; received "{override}"')
    value = _value(override, text)

    def put(node: Any, keys: list[str]) -> Any:
        if not keys:
            return value
        if not isinstance(node, dict):
            raise ConfigError(f'--set {override}: "{keys[0]}" is no key of {json.dumps(node)}')
        return {**node, keys[0]: put(node.get(keys[0], {}), keys[1:])}

    return put(raw, keys)


def _value(override: str, text: str) -> Any:
    """Returns the value of `override`, which `text` gives: JSON, one of Python's constants, or the text itself."""
    if not text.strip():
        raise ConfigError(f'--set "{override}": received no value; accepted: JSON, e.g. null for none, or a text')
    if text in CONSTANTS:
        return CONSTANTS[text]
    try:
        return _parse(text, f"--set {override}")
    except ValueError as error:
        # This text is JSON that a shell or a hand has spoilt, and as a path it would name nothing.
        if text[0] in "'\"[{" or text[-1] in "'\"]}":
            raise ConfigError(
                f"--set {override}: received {text}, which is not JSON ({error}); accepted: a text without quotes, or "
                f"""JSON with double quotes, which single quotes keep from the shell: --set 'data.classes=["a", "b"]'"""
            ) from error
        return text


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
        if callable(value):
            raise ConfigError(f'{name}: received {value!r}; accepted: the function\'s name, "package.module:function"')
        # NumPy's numbers and arrays as Python's.
        section[name] = value.tolist() if hasattr(value, "tolist") else value
    return data, source


def _nearest(argument: str, accepted: list[str]) -> str:
    if argument in NAMED_BY_DATA:
        return "what is loaded is the first argument: a path, a DataFrame, a list or a dataset"
    elsewhere = OF_LOADERS.get(argument) or ELSEWHERE.get(argument, "")
    if elsewhere in OF_LOADERS.values() or elsewhere.startswith("data."):
        return f"did you mean {elsewhere.removeprefix('data.').removeprefix('source.')}?"
    if elsewhere:
        return f"{elsewhere} is a key of a config for `tfpipe train`, not of the data"
    if guesses := difflib.get_close_matches(argument, [*accepted, *ALIASES], n=1):
        return f"did you mean {guesses[0]}?"
    # The outermost of the keys that are named so.
    for path in sorted(known_paths(Config), key=lambda path: path.count(".")):
        section, *inner = path.split(".")
        if inner and inner[-1] == argument:
            first, *keys = inner[1:] if inner[0] == "source" else inner
            if section != "data":
                return f"{path} is a key of a config for `tfpipe train`, not of the data"
            return f"did you mean {first}={''.join(map(OPENING.format, keys))}...{'}' * len(keys)}?"
    return f"accepted: {', '.join(accepted)}"
