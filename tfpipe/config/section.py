"""The base of all sections, and the types of values that several of them share."""

import json
import os
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo

from tfpipe.errors import LOGIN


def user_path(path: str | os.PathLike[str]) -> Path | str:
    """Returns the path that a user gave, or the URL: a text's variables are expanded, and ~ is the home folder.

    Raises ValueError if a variable or a user is not known.
    """
    text = _expand_variables(path)
    if isinstance(text, str) and "://" in text:
        return text
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f'received "{path}"; accepted: ~ of a user with a home folder') from error


def literal(value: Any) -> Any:
    """Returns a path or URL as a text of a config that stands for it; anything else as it is."""
    return str(value).replace("$", "$$") if isinstance(value, str | Path) else value


def _expand_variables(value: Any) -> Any:
    """Returns a text with the values of its variables, $NAME or ${NAME}, and $ for $$; anything else as it is.

    Raises ValueError if a variable is not set, or is empty, with which the path would be another one.
    """
    if not isinstance(value, str):
        return value
    try:
        return Template(value).substitute({name: text for name, text in os.environ.items() if text})
    except KeyError as error:
        problem = f"the variable {error.args[0]} is not set, or is empty"
    except ValueError:
        problem = "a $ is not followed by the name of a variable"
    raise ValueError(f'received "{value}", and {problem}; accepted: $NAME or ${{NAME}}, and $$ for a $ of a name')


def _beside_config(path: Path, info: ValidationInfo) -> Path:
    base: Path = (info.context or {}).get("base", Path())
    return (base / user_path(path)).resolve()


class Form(NamedTuple):
    """The form of a list, for messages; a key that takes a list has it in its type's annotation."""

    text: str
    """E.g. "[height, width]"."""


def _local(value: Any) -> Any:
    value = _expand_variables(value)
    if isinstance(value, str):
        check_login(value)
    if isinstance(value, str) and "://" in value:
        raise ValueError(
            f'received "{value}"; accepted: a path of a file system; URLs are for the images of filelists and tables'
        )
    if "\0" in str(value):
        raise ValueError(f"received {str(value)!a}; accepted: a path without the character NUL, which no name has")
    if isinstance(value, str) and not value.strip():
        # As a path, an empty text would be the config's own folder.
        raise ValueError(f'received "{value}"; accepted: a path, which is not empty; null for none')
    return value


def _finite(args: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(args, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"received {json.dumps(args)}; accepted: finite numbers only") from error
    return args


def check_login(text: str) -> None:
    """Raises ValueError if a text has a URL with a user or a password."""
    if LOGIN.search(text):
        raise ValueError(f"received a URL with a user or a password, which config.json would repeat: {NETRC}")


def _ascending(values: Any) -> Any:
    for pair in zip(values[::2], values[1::2], strict=True) if isinstance(values, tuple) else ():
        if pair[0] > pair[1]:
            raise ValueError(f"received {json.dumps(pair)}; accepted: [smallest, largest]")
    return values


def _without_login(url: str) -> str:
    check_login(url)
    return url.rstrip("/")


def square(size: Any) -> Any:
    """Returns (side, side) of a number. JSON's lists pass for tuples only before a validator."""
    return (size, size) if type(size) is int else tuple(size) if isinstance(size, list) else size


NETRC = 'put them into ~/.netrc, and set data.remote.options to {"client_kwargs": {"trust_env": true}}'
AS_TEXT = PlainSerializer(literal, when_used="json")
# A URL of any scheme that fsspec has; the package of the scheme may be missing.
SCHEME = Field(pattern=r"^[a-z][a-z0-9+.-]*://\S+$")
Url = Annotated[str, SCHEME, BeforeValidator(_expand_variables), AfterValidator(_without_login), AS_TEXT]
# A relative path is resolved against the config file's folder.
ConfigPath = Annotated[Path, BeforeValidator(_local), AfterValidator(_beside_config), AS_TEXT]
Fraction = Annotated[float, Field(gt=0, le=1)]
CropSide = Annotated[int, Field(gt=0, le=65_500)]  # a JPEG's largest side
# Height and width of crops.
Size = Annotated[tuple[CropSide, CropSide], BeforeValidator(square)]
SIZE = Form("a side, or [height, width]")
Seed = Annotated[int, Field(ge=0, lt=2**32)]
# Arguments that are passed on; Section refuses Infinity and NaN only in fields of its own.
Args = Annotated[dict[str, Any], AfterValidator(_finite)]
# A validator of one or more pairs of numbers, and the form of one.
ASCENDING = AfterValidator(_ascending)
PAIR = Form("[smallest, largest]")
Kernel = Literal["bilinear", "bicubic", "area", "antialias"]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )
