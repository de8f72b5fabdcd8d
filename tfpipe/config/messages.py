"""Explains errors in a config: turns pydantic's errors into one line per key."""

import difflib
import json
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tfpipe.config.section import Form

Location = tuple[int | str, ...]

# Type of the error of settings that contradict each other.
CONFLICT = "conflict"
PREFIX = "Input should be "
# Pydantic's errors of the length of a list; "missing": of a list that is too short.
LENGTHS = ("too_short", "too_long", "missing")
# Pydantic's words that are not those of JSON.
WORDS = {"a valid boolean": "true or false", "a valid dictionary": "an object"}
CLOSE = 0.75  # similarity of a key that is taken for a misspelt one, by difflib
ARRAYS = ("a valid array", "a valid tuple")
# Keys and arguments of other loaders and trainers, and the key here that does the same.
ELSEWHERE = {
    **dict.fromkeys(("size", "img_size", "target_size", "resolution", "input_size"), "data.crop_image_size"),
    **dict.fromkeys(("batch", "bs", "per_device_train_batch_size", "train_batch_size"), "data.batch_size"),
    **dict.fromkeys(("shuffle", "shuffle_files"), "data.shuffle_buffer (1: the order of the list)"),
    **dict.fromkeys(("validation_split", "val_split", "test_size"), "data.source.test_share"),
    **dict.fromkeys(("num_workers", "workers", "num_threads"), "data.threads"),
    **dict.fromkeys(("class_names", "class_name", "names"), "data.classes"),
    **dict.fromkeys(("transforms", "augmentation", "augmentations"), "data.augment"),
    **dict.fromkeys(("x_col", "image_column", "filename_column"), 'data.source.columns={"path": ...}'),
    **dict.fromkeys(("y_col", "label_column", "target_column"), 'data.source.columns={"label": ...}'),
    **dict.fromkeys(("save_every", "save_steps", "save_freq", "checkpoint_every"), "training.checkpoint"),
    "label_mode": 'data.targets={"kind": ...}',
    "color_mode": "data.num_channels (3: RGB, 1: grayscale)",
    "interpolation": "data.resize",
    "prefetch": "data.prefetch_buffer_size",
    "horizontal_flip": "data.flip",
    **dict.fromkeys(("dataset", "data_dir", "root", "data_path", "train_dir", "image_folder"), "data.source.path"),
    **dict.fromkeys(("valid_col", "split_column"), 'data.source.where={"split": {"train": ..., "test": ...}}'),
    **dict.fromkeys(("val_dir", "test_dir", "val_path", "valid_path"), "data.source.test_path"),
    **dict.fromkeys(("lr", "learning_rate", "base_lr"), "optimizer.args.learning_rate"),
    **{name: f"optimizer.args.{name}" for name in ("momentum", "weight_decay")},
    **dict.fromkeys(("num_epochs", "max_epochs", "n_epochs", "num_train_epochs"), "training.epochs"),
    **dict.fromkeys(("amp", "mixed_precision", "fp16", "bf16"), "training.precision"),
    **dict.fromkeys(("arch", "backbone", "model", "model_name"), "model.name"),
    **{"data": "data.source.path", "optimizer": "optimizer.name", "loss": "loss.name"},
    **dict.fromkeys(("pretrained", "pretrained_weights"), "model.weights"),
}


def explain(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Returns one line per wrong key, sorted by path: the path, what was received, and what is accepted."""
    lines: list[str] = []
    accepted: dict[str, list[str]] = {}
    received: dict[str, Any] = {}
    for detail in error.errors():
        unknown = detail["type"] == "extra_forbidden"
        path, section, field = _locate(detail["loc"], unknown, root)
        if unknown:
            lines.append(f"{path}: unknown key{_nearest(path, section, root)}")
        elif detail["type"] == "missing" and not isinstance(detail["input"], list | tuple):
            meaning = ": " + field.description.replace("\n", " ") if field and field.description else ""
            lines.append(f"{path}: is missing{meaning}")
        elif detail["type"] == CONFLICT:
            lines += detail["msg"].splitlines()  # each names its keys
        elif detail["type"] == "value_error":
            lines.append(f"{path or 'the config'}: {detail['msg'].removeprefix('Value error, ')}")
        else:
            if detail["type"] == "missing":
                path = path.rpartition("[")[0]  # a missing element: the list is too short
            accepted.setdefault(path, []).append(_accepted_values(detail, field))
            received[path] = detail["input"]
    for path, messages in accepted.items():
        # A union reports one error per member; an error inside the intended member, or of its value, says more.
        if any(other.startswith((f"{path}.", f"{path}[", f"{path}: ")) for other in (*lines, *accepted)):
            continue
        got = quote(received[path])
        choices = " or ".join(dict.fromkeys(messages))
        lines.append(f"{path or 'the config'}: received {got}; accepted: {choices}")
    return sorted(set(lines))


def quote(value: Any) -> str:
    """Returns a value as JSON, cut short at 80 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _accepted_values(detail: ErrorDetails, field: FieldInfo | None) -> str:
    """Returns what a key accepts instead, in the words of JSON."""
    message = detail["msg"].removeprefix(PREFIX)
    if message not in ARRAYS and detail["type"] not in LENGTHS:
        return WORDS.get(message, message)
    return next((part.text for part in (field.metadata if field else ()) if isinstance(part, Form)), "a list")


def _locate(location: Location, unknown: bool, root: type[BaseModel]) -> tuple[str, type[BaseModel], FieldInfo | None]:
    """Returns the key's path, section and field, without the names of union members that pydantic adds."""
    section, path, last = root, "", None
    members: dict[str, type[BaseModel]] = {}
    for depth, part in enumerate(location, start=1):
        if part in members:  # the tag of a discriminated union, which is the section's name
            section = members[str(part)]
            continue
        field = section.model_fields.get(str(part))
        if isinstance(part, int):
            path += f"[{part}]"
        elif field is not None:
            path += f".{part}"
            last = field
            inner = _sections(field.annotation)
            if inner and depth < len(location):
                section, members = inner[0], {member.__name__: member for member in inner}
        elif unknown and depth == len(location):
            path += f".{part}"
    return path.removeprefix("."), section, last


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for member in get_args(annotation) for section in _sections(member)]


def _nearest(path: str, section: type[BaseModel], root: type[BaseModel]) -> str:
    key = path.rpartition(".")[2]
    here = [path.removesuffix(key) + name for name in section.model_fields]
    guesses = [
        *same_named(key, root),
        *difflib.get_close_matches(path, here, n=1, cutoff=CLOSE),
        *_by_words(key, here),
        *difflib.get_close_matches(path, known_paths(root), n=1, cutoff=CLOSE),
    ]
    return f"; did you mean {guesses[0]}?" if guesses else f"; known here: {', '.join(here)}"


def _by_words(key: str, paths: Sequence[str]) -> list[str]:
    """Returns the path whose last key shares most words with `key`; none if several do, or none does."""
    words = {word.removesuffix("s") for word in key.split("_")}
    others = {path: {word.removesuffix("s") for word in path.rpartition(".")[2].split("_")} for path in paths}
    shared = {path: len(words & other) for path, other in others.items()}
    most = max(shared.values(), default=0)
    best = [path for path, count in shared.items() if count == most > 0]
    return best if len(best) == 1 else []


def same_named(name: str, root: type[BaseModel]) -> list[str]:
    """Returns the paths of the keys with this name and, last, the key that other tools call so."""
    same = [path for path in known_paths(root) if path.rpartition(".")[2] == name]
    return same + [path for other, path in ELSEWHERE.items() if other == name]


def known_paths(section: type[BaseModel], prefix: str = "") -> list[str]:
    paths = []
    for name, field in section.model_fields.items():
        paths.append(prefix + name)
        for inner in _sections(field.annotation):
            paths += known_paths(inner, f"{prefix}{name}.")
    return paths
